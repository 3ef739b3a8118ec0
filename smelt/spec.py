"""What a run is: frozen dataclasses from which everything about it follows, and whose hash is its identity.

    ArchSpec (attention, ffn, router, loop)  +  OptimSpec  +  DataSpec  +  steps and seed  ->  RunSpec -> run_id

One decoder covers every architecture:

    tokens -> embed -> prelude layers -> [loop block: D layers] x P passes -> coda layers -> norm -> unembed

A *visit* is one layer in one pass. Every field changes a result, so none has a default that could be meant
by accident; a variant is `dataclasses.replace` or a function in `variants`. Sizes are plain integers, and
what is not written here (RMSNorm before each sublayer, SwiGLU, RoPE, token-choice dropless experts with a
softmax router renormalised over the chosen k) is the same for all and stands in `model`.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from smelt.errors import BadInput
from smelt.files import digest

AttentionScale = Literal["1/sqrt(d_k)", "1/d_k"]
AttentionSets = Literal["shared", "per_pass"]
ScheduleKind = Literal["wsd", "cosine"]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise BadInput(message)


def _positive(spec: Any, *names: str) -> None:
    for name in names:
        value = getattr(spec, name)
        _require(
            isinstance(value, int) and not isinstance(value, bool) and value >= 1,
            f"{type(spec).__name__}.{name} is {value!r}: give a positive integer",
        )


def _choice(spec: Any, name: str, choices: Any) -> None:
    value = getattr(spec, name)
    _require(
        value in choices.__args__,
        f"{type(spec).__name__}.{name} is {value!r}: choose one of {', '.join(choices.__args__)}",
    )


def _number(spec: Any, name: str, low: float, high: float, *, low_open: bool = False) -> None:
    value = getattr(spec, name)
    real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not real or not low <= value <= high or (low_open and value == low):
        bracket = "(" if low_open else "["
        raise BadInput(f"{type(spec).__name__}.{name} is {value!r}: give a number in {bracket}{low}, {high}]")
    object.__setattr__(spec, name, value + 0.0)  # 1 and 1.0 are one spec and must have one hash


def _member(spec: Any, name: str, kind: type) -> None:
    value = getattr(spec, name)
    _require(isinstance(value, kind), f"{type(spec).__name__}.{name} is {value!r}: give a {kind.__name__}")


def _non_negative(spec: Any, *names: str) -> None:
    for name in names:
        value = getattr(spec, name)
        _require(
            isinstance(value, int) and not isinstance(value, bool) and value >= 0,
            f"{type(spec).__name__}.{name} is {value!r}: give a non-negative integer",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention with a free head width: H query heads share G key-value heads of width K."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: AttentionScale

    def __post_init__(self) -> None:
        _positive(self, "num_heads", "num_kv_heads", "head_dim")
        _choice(self, "scale", AttentionScale)
        _require(
            self.num_heads % self.num_kv_heads == 0,
            f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}",
        )
        _require(self.head_dim % 2 == 0, f"head_dim is {self.head_dim}: RoPE turns pairs, give an even number")


@dataclass(frozen=True, slots=True, kw_only=True)
class FFN:
    """E SwiGLU experts of width F, of which each token takes the best k; dense is one expert and no router."""

    width: int
    num_experts: int
    top_k: int

    def __post_init__(self) -> None:
        _positive(self, "width", "num_experts", "top_k")
        _require(
            self.top_k <= self.num_experts,
            f"top_k {self.top_k} is more than num_experts {self.num_experts}",
        )

    @property
    def has_router(self) -> bool:
        return self.num_experts > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """Coefficients of the load-balance loss and the z-loss, both averaged over visits (as Looped-MoE and Foil do; SMELT
    does not say)."""

    load_balance_coef: float
    z_loss_coef: float

    def __post_init__(self) -> None:
        _number(self, "load_balance_coef", 0.0, 10.0)
        _number(self, "z_loss_coef", 0.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """D layers passed P times as a block; each visit has its own keys and values.

    residual_scale multiplies what both sublayers write, in the block only (SMELT: 1/P; Foil, Looped-MoE: 1).
    attention_sets: one set of attention weights a layer, or one a (layer, pass) as in Foil.
    """

    num_layers: int
    num_passes: int
    residual_scale: float
    attention_sets: AttentionSets

    def __post_init__(self) -> None:
        _positive(self, "num_layers", "num_passes")
        _number(self, "residual_scale", 0.0, 1.0, low_open=True)
        _choice(self, "attention_sets", AttentionSets)


@dataclass(frozen=True, kw_only=True)
class ArchSpec:
    """An architecture. `ffn` serves every layer, unless `outer_ffn` gives prelude and coda another (Foil)."""

    vocab_size: int
    d_model: int
    num_prelude: int
    loop: Loop
    num_coda: int
    attention: Attention
    ffn: FFN
    outer_ffn: FFN | None
    router: Router
    norm_gain: bool
    tied_embeddings: bool

    def __post_init__(self) -> None:
        _positive(self, "vocab_size", "d_model")
        _non_negative(self, "num_prelude", "num_coda")
        for name, kind in (("loop", Loop), ("attention", Attention), ("ffn", FFN), ("router", Router)):
            _member(self, name, kind)
        if self.outer_ffn is not None:
            _member(self, "outer_ffn", FFN)
        _member(self, "norm_gain", bool)
        _member(self, "tied_embeddings", bool)
        _require(
            self.outer_ffn is None or self.num_prelude + self.num_coda > 0,
            "outer_ffn is given but there is no prelude or coda layer to have it: give None",
        )

    @cached_property
    def segments(self) -> tuple["Segment", ...]:
        """Prelude, loop and coda in order of execution; empty ones are left out."""
        outer = self.outer_ffn or self.ffn
        loop = self.loop
        sets = loop.num_passes if loop.attention_sets == "per_pass" else 1
        segments = (
            Segment("prelude", self.num_prelude, 1, 1, outer, 1.0),
            Segment("loop", loop.num_layers, loop.num_passes, sets, self.ffn, loop.residual_scale),
            Segment("coda", self.num_coda, 1, 1, outer, 1.0),
        )
        return tuple(segment for segment in segments if segment.num_layers > 0)

    @property
    def num_layers(self) -> int:
        """Physical layers L."""
        return self.num_prelude + self.loop.num_layers + self.num_coda

    @property
    def effective_depth(self) -> int:
        """Executed layers L_eff: every visit counted."""
        return sum(segment.num_visits for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of layers that are passed together: what `budget` counts and `model` executes."""

    name: str
    num_layers: int
    num_passes: int
    num_attention_sets: int
    ffn: FFN
    residual_scale: float

    @property
    def num_visits(self) -> int:
        return self.num_layers * self.num_passes


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimSpec:
    """AdamW with decoupled weight decay, clipping by global norm, warm-up and one of two schedules.

    wsd: constant after the warm-up; over the last `decay_frac` of the steps the rate falls as 1 - sqrt(x) from
    peak to `final_frac` x peak (x from 0 to 1; the form of Foil's released trainer). cosine: falls from the end of the
    warm-up to the last step; decay_frac is then 1.
    """

    peak_lr: float
    schedule: ScheduleKind
    warmup_frac: float
    decay_frac: float
    final_frac: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip_norm: float

    def __post_init__(self) -> None:
        _choice(self, "schedule", ScheduleKind)
        _number(self, "peak_lr", 0.0, 10.0, low_open=True)
        for name in ("warmup_frac", "decay_frac", "final_frac"):
            _number(self, name, 0.0, 1.0)
        for name in ("beta1", "beta2"):
            _number(self, name, 0.0, 0.99999)
        _number(self, "eps", 0.0, 1.0, low_open=True)
        _number(self, "weight_decay", 0.0, 10.0)
        _number(self, "clip_norm", 0.0, 1e6, low_open=True)
        _require(
            self.schedule == "wsd" or self.decay_frac == 1.0,
            f"decay_frac is {self.decay_frac}: the cosine schedule decays throughout, give 1.0",
        )
        _require(
            self.schedule == "cosine" or self.warmup_frac + self.decay_frac <= 1.0,
            f"warmup_frac {self.warmup_frac} + decay_frac {self.decay_frac} is over 1: shorten one",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """What is read: a built corpus, windows of `seq_len` tokens, `batch_seqs` of them a step.

    confine_attention: attention stays inside a packed document (SMELT) or runs over the whole window.
    validation_tokens: size of the fixed validation slice of each domain.
    """

    corpus: str
    seq_len: int
    batch_seqs: int
    confine_attention: bool
    validation_tokens: int

    def __post_init__(self) -> None:
        _positive(self, "seq_len", "batch_seqs", "validation_tokens")
        _member(self, "confine_attention", bool)
        _member(self, "corpus", str)
        _require(bool(self.corpus), "DataSpec.corpus is empty: name a built corpus (smelt corpus info)")

    @property
    def tokens_per_step(self) -> int:
        return self.seq_len * self.batch_seqs


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One training run, complete: no field is filled in later. The seed draws the weights and orders the data."""

    arch: ArchSpec
    optim: OptimSpec
    data: DataSpec
    num_steps: int
    seed: int

    def __post_init__(self) -> None:
        _positive(self, "num_steps")
        _non_negative(self, "seed")
        for name, kind in (("arch", ArchSpec), ("optim", OptimSpec), ("data", DataSpec)):
            _member(self, name, kind)

    @cached_property
    def run_id(self) -> str:
        """Hash of the spec alone: code, data and library versions live in the fingerprint of the run folder."""
        return digest(to_dict(self))

    @property
    def num_tokens(self) -> int:
        """Training tokens, repeats included."""
        return self.num_steps * self.data.tokens_per_step


def to_dict(spec: Any) -> dict[str, Any]:
    """A spec as nested plain values, in the order of its fields."""
    return dataclasses.asdict(spec)


def flatten(spec: Any) -> dict[str, Any]:
    """A spec as one level of dotted names: {'arch.loop.num_passes': 2, ...}; an absent outer_ffn gives nulls."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any, kind: Any) -> None:
        if dataclasses.is_dataclass(kind):
            for field in dataclasses.fields(kind):
                inner = None if value is None else getattr(value, field.name)
                walk(f"{prefix}{field.name}.", inner, member_kind(field.type))
        else:
            flat[prefix.removesuffix(".")] = value

    walk("", spec, type(spec))
    return flat


def member_kind(annotation: Any) -> Any:
    """FFN | None -> FFN; anything else as it is."""
    for member in getattr(annotation, "__args__", ()):
        if dataclasses.is_dataclass(member):
            return member
    return annotation


def run_from_dict(value: dict[str, Any]) -> RunSpec:
    """The RunSpec that `to_dict` wrote. Raises BadInput naming a missing or unknown field."""
    return _build(RunSpec, value, "")


def arch_from_dict(value: dict[str, Any]) -> ArchSpec:
    return _build(ArchSpec, value, "arch.")


def _build(kind: Any, value: Any, where: str) -> Any:
    if not dataclasses.is_dataclass(kind):
        return value
    if not isinstance(value, dict):
        raise BadInput(f"{where.removesuffix('.') or 'spec'} is {value!r}: expected an object")
    names = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := sorted(value.keys() - names.keys()):
        raise BadInput(f"unknown field {where}{unknown[0]}: known are {', '.join(names)}")
    if missing := sorted(names.keys() - value.keys()):
        raise BadInput(f"field {where}{missing[0]} is missing")
    parts = {
        name: None if value[name] is None else _build(member_kind(field.type), value[name], f"{where}{name}.")
        for name, field in names.items()
    }
    return kind(**parts)
