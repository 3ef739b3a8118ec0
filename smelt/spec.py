"""What a run is: frozen dataclasses from which everything about it follows, and whose hash is its identity.

    ArchSpec (attention, ffn, router, loop)  +  OptimSpec  +  DataSpec  +  steps and seed  ->  RunSpec -> run_id

One decoder covers every architecture:

    tokens -> embed -> prelude layers -> [loop block: D layers] x P passes -> coda layers -> norm -> unembed

A *visit* is one layer in one pass. Every field changes a result, so none has a default that could be meant
by accident; a variant is `dataclasses.replace` or a function in `variants`. Sizes are plain integers, and
what is not written here (RMSNorm before each sublayer, SwiGLU, RoPE, token-choice dropless experts) is the same for
all and stands in `model`.

The one default is absence: a part that an architecture does not have (sigmoid scores, a shared expert, a latent, views,
muP, parts of the user's own) is None or empty, and what is absent is not hashed, so that the family can grow without
renaming a run.
"""

import dataclasses
import json
import math
import types
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from smelt.errors import BadInput
from smelt.files import digest

AttentionScale = Literal["1/sqrt(d_k)", "1/d_k"]
AttentionSets = Literal["shared", "per_pass"]
Fusion = Literal["sum", "max", "product", "geometric_mean"]
Mixing = Literal["routers", "routers_detached", "learned"]
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
class Views:
    """What each chosen expert reads: a mixture of several projections of the hidden state (Multi-View).

        view 1 = P h;   view m = P h + gamma(t) Delta_m h;   input of expert i = sum_m a_{m,i} view m

    mixing: the ratios a are the routers' scores of that expert over their sum (one view a router), the same without
    their gradient, or a softmax over views of weights of their own.
    """

    num_views: int
    mixing: Mixing

    def __post_init__(self) -> None:
        _positive(self, "num_views")
        _choice(self, "mixing", Mixing)
        _require(self.num_views >= 2, f"num_views is {self.num_views}: give 2 or more, or no views at all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Experts work on a projection of the hidden state (LatentMoE, arXiv 2601.18089): y = U sum_i g_i FFN_i(P h)."""

    width: int
    views: Views | None = None

    def __post_init__(self) -> None:
        _positive(self, "width")
        if self.views is not None:
            _member(self, "views", Views)


@dataclass(frozen=True, slots=True, kw_only=True)
class FFN:
    """E SwiGLU experts of width F, of which each token takes the best k; dense is one expert and no router.

    shared_width: of a further expert that every token takes, on the full width and unweighted.
    latent: what the routed experts work on instead of the hidden state.
    """

    width: int
    num_experts: int
    top_k: int
    shared_width: int | None = None
    latent: Latent | None = None

    def __post_init__(self) -> None:
        _positive(self, "width", "num_experts", "top_k")
        _require(
            self.top_k <= self.num_experts,
            f"top_k {self.top_k} is more than num_experts {self.num_experts}",
        )
        if self.shared_width is not None:
            _positive(self, "shared_width")
        if self.latent is not None:
            _member(self, "latent", Latent)
        _require(
            self.has_router or self.views is None,
            "one expert (num_experts 1) has no router to mix its views: leave views out or give more experts",
        )

    @property
    def has_router(self) -> bool:
        return self.num_experts > 1

    @property
    def views(self) -> Views | None:
        return None if self.latent is None else self.latent.views


@dataclass(frozen=True, slots=True, kw_only=True)
class SigmoidScores:
    """Scores of R linear heads, each through a sigmoid, then fused (Multi-Router); one head is DeepSeek-V3's router.

    One choice of k over the fused scores plus a selection bias; gates are the unbiased fused scores over their sum.
    bias_rate: by how much the bias of an expert moves each step, against the sign of its load's excess; 0 is no bias.
    """

    num_heads: int
    fusion: Fusion
    bias_rate: float

    def __post_init__(self) -> None:
        _positive(self, "num_heads")
        _choice(self, "fusion", Fusion)
        _number(self, "bias_rate", 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """Coefficients of the load-balance loss and the z-loss, both averaged over visits (as Looped-MoE and Foil do; SMELT
    does not say), and how logits become weights: a softmax renormalised over the chosen k, or as `sigmoid` says."""

    load_balance_coef: float
    z_loss_coef: float
    sigmoid: SigmoidScores | None = None

    def __post_init__(self) -> None:
        _number(self, "load_balance_coef", 0.0, 10.0)
        _number(self, "z_loss_coef", 0.0, 10.0)
        if self.sigmoid is not None:
            _member(self, "sigmoid", SigmoidScores)


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
    """An architecture. `ffn` serves every layer, unless `outer_ffn` gives prelude and coda another (Foil).

    mup_base_width: where given, muP over the ratio of d_model to it: initial variances and learning rates of all
    matrices but the embedding (`model.initialisation`), whose other sizes are taken to grow with d_model. own: parts
    that an experiment file brings, one of a kind.
    """

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
    mup_base_width: int | None = None
    own: tuple["Own", ...] = ()

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
        if self.mup_base_width is not None:
            _positive(self, "mup_base_width")
            _require(
                not self.tied_embeddings,
                "muP wants a head of its own, whose rate falls with the width: give tied_embeddings=False",
            )
        for ffn in (self.ffn, self.outer_ffn):
            _check_views(ffn, self.router)
        _check_own(self.own, self.loop.attention_sets)

    def own_part(self, replaces: str) -> "Own | None":
        """The user's own router, experts, attention or layer, where there is one."""
        return next((part for part in self.own if part.replaces == replaces), None)

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


def _check_views(ffn: FFN | None, router: Router) -> None:
    views = ffn.views if ffn else None
    if views is None or views.mixing == "learned":
        return
    heads = router.sigmoid.num_heads if router.sigmoid else 0
    _require(
        views.num_views == heads,
        f"num_views is {views.num_views} and the router has {heads} sigmoid heads: ratios of routers want one a view",
    )


OWN_PLACES = ("router", "experts", "attention", "layer")


@dataclass(frozen=True)
class Own:
    """A part of the user's own: a frozen dataclass in an experiment file that says what it replaces, builds its Flax
    module and counts it. Its fields are its settings, plain values.

    replaces: one of OWN_PLACES. Every method is given the architecture and the FFN of the layers that it serves.
    `module` returns what the built-in module of that place is called like (`model.layer`); the counts are whole
    numbers of one layer, exact, and `own.check` holds them against the parameter tree, the traced program and XLA
    before anything trains. The matcher gives them arrays, so they are written with + - * and //.
    """

    replaces: ClassVar[str] = ""

    def module(self, arch: ArchSpec, ffn: FFN) -> Any:
        """The Flax module of this place."""
        raise BadInput(f"{type(self).__name__} has no module(arch, ffn): return a Flax module")

    def num_params(self, arch: ArchSpec, ffn: FFN) -> int:
        """Stored parameters of one layer's part."""
        raise BadInput(f"{type(self).__name__} has no num_params(arch, ffn): count its parameters")

    def active_params(self, arch: ArchSpec, ffn: FFN) -> int:
        """Those that one token meets."""
        return self.num_params(arch, ffn)

    def forward_flops(self, arch: ArchSpec, ffn: FFN, context: int) -> int:
        """Forward matmul FLOPs of one token in one visit, averaged over positions of a context."""
        return 2 * self.active_params(arch, ffn)

    def uncounted_flops(self, arch: ArchSpec, ffn: FFN, context: int) -> int:
        """Forward matmul FLOPs of one token in one visit that its program spends beyond `forward_flops`: the masked
        half of attention, experts that nobody chose. Asked by the check alone."""
        return 0

    def kv_values(self, arch: ArchSpec, ffn: FFN) -> int:
        """Values that a visit keeps of a token for decoding; asked of an attention or a layer."""
        raise BadInput(f"{type(self).__name__} has no kv_values(arch, ffn): count what decoding keeps")

    def record(self) -> dict[str, Any]:
        """What is hashed and written of it: its place, the name of its class and its settings."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"replaces": self.replaces, "name": type(self).__name__, "settings": settings}


@dataclass(frozen=True)
class RecordedOwn(Own):
    """A part of somebody's own as it was written down: it has a record, and only its experiment file can build it."""

    recorded: str  # JSON, so that it can be hashed

    @property
    def replaces(self) -> str:  # type: ignore[override]
        return self.record()["replaces"]

    def record(self) -> dict[str, Any]:
        return json.loads(self.recorded)

    def _unknown(self, *_: Any) -> Any:
        raise BadInput(f"{self.record()['name']} is a part of an experiment's own: load the experiment's file for it")

    module = num_params = active_params = forward_flops = uncounted_flops = kv_values = _unknown


def _check_own(own: Any, attention_sets: AttentionSets) -> None:
    _require(isinstance(own, tuple), f"ArchSpec.own is {own!r}: give a tuple of parts")
    places = []
    for part in own:
        _require(isinstance(part, Own), f"ArchSpec.own holds {part!r}: give instances of a subclass of spec.Own")
        name = type(part).__name__
        _require(part.replaces in OWN_PLACES, f"{name}.replaces is {part.replaces!r}: one of {', '.join(OWN_PLACES)}")
        _check_settings(part, name)
        places.append(part.replaces)
    _require(len(set(places)) == len(places), f"two own parts replace {places[-1:]}: give one of a kind")
    _require(
        "layer" not in places or len(places) == 1, "an own layer brings everything: give no other own part with it"
    )
    _require(
        "layer" not in places or attention_sets == "shared",
        "an own layer has all its weights in one: give attention_sets='shared'",
    )


def _check_settings(part: Own, name: str) -> None:
    _require(
        "__dataclass_params__" in vars(type(part)),
        f"{name} is no dataclass, its settings would not be told apart: put @dataclass(frozen=True) above it",
    )
    try:
        json.dumps(part.record(), allow_nan=False)
        hash(part)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{part!r} cannot be written down ({error}): give numbers, texts and tuples of them") from None


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

    warmup_steps, decay_steps: either of them in whole steps, the same for a run of any length; its share is then 0.
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
    warmup_steps: int | None = None
    decay_steps: int | None = None

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
            self.schedule == "wsd" or self.decay_steps is None,
            f"decay_steps is {self.decay_steps}: the cosine schedule decays throughout, leave it out",
        )
        _require(
            self.schedule == "wsd" or self.decay_frac == 1.0,
            f"decay_frac is {self.decay_frac}: the cosine schedule decays throughout, give 1.0",
        )
        _require(
            self.schedule == "cosine" or self.warmup_frac + self.decay_frac <= 1.0,
            f"warmup_frac {self.warmup_frac} + decay_frac {self.decay_frac} is over 1: shorten one",
        )
        for part in ("warmup", "decay"):
            steps, frac = getattr(self, f"{part}_steps"), getattr(self, f"{part}_frac")
            if steps is not None:
                _non_negative(self, f"{part}_steps")
                _require(frac == 0.0, f"{part}_steps {steps} and {part}_frac {frac} say it twice: give {part}_frac=0.0")

    def num_warmup_steps(self, num_steps: int) -> int:
        """Of a run of `num_steps`."""
        return math.ceil(self.warmup_frac * num_steps) if self.warmup_steps is None else self.warmup_steps

    def num_decay_steps(self, num_steps: int) -> int:
        """Steps at the end of a run of `num_steps` whose rate is under the peak by the schedule; a cosine decays from
        the end of the warm-up."""
        if self.schedule == "cosine":
            return num_steps - self.num_warmup_steps(num_steps)
        return math.ceil(self.decay_frac * num_steps) if self.decay_steps is None else self.decay_steps


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
        warmup_steps, decay_steps = self.optim.warmup_steps or 0, self.optim.decay_steps or 0
        _require(
            warmup_steps + decay_steps <= self.num_steps,
            f"warmup_steps {warmup_steps} + decay_steps {decay_steps} are more than the {self.num_steps} of the run: "
            "shorten one or train longer",
        )

    @cached_property
    def run_id(self) -> str:
        """Hash of the spec alone: code, data and library versions live in the fingerprint of the run folder."""
        return digest(to_dict(self))

    @property
    def num_tokens(self) -> int:
        """Training tokens, repeats included."""
        return self.num_steps * self.data.tokens_per_step


def to_dict(spec: Any) -> dict[str, Any]:
    """A spec as nested plain values, in the order of its fields; parts that it does not have are left out."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if field.default is not dataclasses.MISSING and value == field.default:
            continue
        plain[field.name] = _plain(value)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Own):
        return value.record()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return to_dict(value) if dataclasses.is_dataclass(value) else value


def flatten(spec: Any) -> dict[str, Any]:
    """A spec as one level of dotted names: {'arch.loop.num_passes': 2, ...}; an absent part gives nulls, and parts of
    one's own are one JSON text."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any, kind: Any) -> None:
        if dataclasses.is_dataclass(kind):
            for field in dataclasses.fields(kind):
                inner = None if value is None else getattr(value, field.name)
                walk(f"{prefix}{field.name}.", inner, member_kind(field.type))
        elif isinstance(value, tuple):
            flat[prefix.removesuffix(".")] = json.dumps(_plain(value), sort_keys=True) if value else None
        else:
            flat[prefix.removesuffix(".")] = value

    walk("", spec, type(spec))
    return flat


def member_kind(annotation: Any) -> Any:
    """FFN | None -> FFN and int | None -> int; anything else as it is."""
    members = [member for member in getattr(annotation, "__args__", ()) if member is not type(None)]
    if isinstance(annotation, types.UnionType) and len(members) == 1:
        return members[0]
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
    needed = {name for name, field in names.items() if field.default is dataclasses.MISSING}
    if missing := sorted(needed - value.keys()):
        raise BadInput(f"field {where}{missing[0]} is missing")
    parts = {
        name: None if part is None else _build(member_kind(names[name].type), part, f"{where}{name}.")
        for name, part in value.items()
        if name != "own"
    }
    if "own" in value:
        parts["own"] = tuple(RecordedOwn(_recorded(record, f"{where}own")) for record in value["own"])
    return kind(**parts)


def _recorded(record: Any, where: str) -> str:
    if not isinstance(record, dict) or record.keys() != {"replaces", "name", "settings"}:
        raise BadInput(f"{where} holds {record!r}: expected the keys replaces, name, settings")
    return json.dumps(record)
