"""(baseline, variant, free dimensions) -> the variant whose budgets equal the baseline's, with the errors, or why not.

What is held equal is named, for papers differ in it (`HELD`):

    three_budgets   FLOPs per token, non-embedding parameters, KV cache                     SMELT
    flops_and_kv    FLOPs per token and KV cache; parameters are reported                   dense against sparse
    active_params   executed active parameters with embedding and head                      Looped-MoE
    expert_budget   stored experts, computed experts, executed depth                        Foil
    none            nothing moves; every difference is reported

**The order.** Of two candidates the better one is decided by the first of these that differs:

1. the tier of its worst held error: within `AIM` (1 %), within the user's bound, beyond;
2. (beyond the bound: the smaller worst error;) the number of moves against SMELT's recipe: a wider model, fewer
   experts, wider heads, fewer query heads a KV head, another depth;
3. the distance from the recipe, in steps of 5 %: how far the proportions that the recipe keeps have moved, as a sum
   of |log ratio| over depth, KV heads, attention width H K / d and expert width F / d;
4. the smaller worst held error, then the smaller distance.

Top-k is never moved. Errors are relative and signed: +0.01 is 1 % more than the baseline has.
Letters as in `budget`: d d_model, H query heads, G KV heads, K head width, F expert width, E experts.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from smelt import budget
from smelt.errors import BadInput
from smelt.spec import FFN, ArchSpec

AIM = 0.01
RECIPE_STEP = 0.05  # differences of proportion below this are traded for smaller errors
NUM_RUNNERS_UP = 3

# A dimension's name -> (multiple where the user gives none, lowest and highest value as shares of the variant's own).
DIMENSIONS: dict[str, tuple[int, float, float]] = {
    "d_model": (8, 0.25, 1.25),
    "num_layers": (1, 0.5, 1.5),
    "num_heads": (1, 0.25, 2.0),
    "num_kv_heads": (1, 0.0, 2.0),
    "head_dim": (2, 0.1, 1.5),
    "num_experts": (1, 0.1, 10.0),
    "width": (8, 0.1, 4.0),
}
FREE = ("d_model", "num_heads", "num_kv_heads", "head_dim", "num_experts", "width")

Budget = Callable[[ArchSpec, int, str], Any]
BUDGETS: dict[str, Budget] = {
    "flops_per_token": lambda arch, context, convention: budget.CONVENTIONS[convention](arch, context),
    "num_params": lambda arch, context, convention: budget.params(arch).non_embedding,
    "kv_cache": lambda arch, context, convention: budget.kv_cache_bytes_per_token(arch),
    "active_params": lambda arch, context, convention: budget.looped_moe_active(arch),
    "e_real": lambda arch, context, convention: budget.expert_budget(arch).e_real,
    "e_comp": lambda arch, context, convention: budget.expert_budget(arch).e_comp,
    "effective_depth": lambda arch, context, convention: arch.effective_depth,
}
HELD: dict[str, tuple[str, ...]] = {
    "three_budgets": ("flops_per_token", "num_params", "kv_cache"),
    "flops_and_kv": ("flops_per_token", "kv_cache"),
    "active_params": ("active_params",),
    "expert_budget": ("e_real", "e_comp", "effective_depth"),
    "none": (),
}

# Bounds of the search: a lattice is thinned to its points nearest the recipe before widths and experts are rounded.
MAX_HEAD_SHAPES = 500
MAX_POINTS = 20_000
WIDTH_STEPS = (-2, -1, 0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A matched pair. `errors` has every budget, held or not, relative to the baseline's and signed.

    `held` names what was equalised (`HELD`), `bound` what was asked of it; `reason` is empty where it was met,
    else one line: which budget binds, by how much, and what to free. `runners_up` are the next in the order.
    """

    arch: ArchSpec
    baseline: ArchSpec
    errors: dict[str, float]
    held: str
    bound: float
    context: int
    convention: str
    runners_up: tuple["Match", ...]
    reason: str

    @property
    def held_errors(self) -> dict[str, float]:
        return {name: self.errors[name] for name in HELD[self.held]}

    @property
    def worst(self) -> float:
        """The largest absolute held error; 0 where nothing is held."""
        return max((abs(error) for error in self.held_errors.values()), default=0.0)

    @property
    def fits(self) -> bool:
        return self.within(self.bound)

    def within(self, bound: float) -> bool:
        """Whether every held error is at most `bound`."""
        return self.worst <= bound

    def require(self) -> "Match":
        """The match itself. Raises BadInput with the reason where it does not fit."""
        if not self.fits:
            raise BadInput(self.reason)
        return self


def relative_errors(arch: ArchSpec, baseline: ArchSpec, *, context: int, convention: str = "model") -> dict[str, float]:
    """Every budget of `arch` over the baseline's, minus one."""
    return {
        name: value(arch, context, convention) / value(baseline, context, convention) - 1.0
        for name, value in BUDGETS.items()
    }


def match(
    baseline: ArchSpec,
    variant: ArchSpec,
    *,
    context: int,
    free: Iterable[str] | None = None,
    multiples: Mapping[str, int] | None = None,
    held: str = "three_budgets",
    bound: float = 0.04,
    convention: str = "model",
) -> Match:
    """The first candidate in the order of the module docstring; its `reason` says why where none fits the bound.

    variant: what a function of `variants` made of the baseline; dimensions that are not free stay as they are in
        it. free: names out of `DIMENSIONS`; None frees `FREE` where parameters or FLOPs and KV are held, the
        expert width where active parameters are, and nothing else. multiples: values tried of a dimension are
        multiples of this. context: tokens, for the FLOPs of attention. convention: of `budget.CONVENTIONS`.

    Raises BadInput for an unknown name or a number that is not positive.
    """
    if held not in HELD:
        raise BadInput(f"unknown held {held!r}: choose one of {', '.join(HELD)}")
    budget.train_flops_per_token(baseline, context, convention)  # raises for a wrong convention or context
    if not (isinstance(bound, int | float) and 0 < bound < 1):
        raise BadInput(f"bound is {bound!r}: give a relative error between 0 and 1, such as 0.04")
    steps = _multiples(multiples)
    moving = _moving(variant, _default_free(held) if free is None else free, held)
    search = _Search(baseline, variant, moving, steps, held, float(bound), context, convention)
    ranked = search.ranked()
    matches = [
        Match(
            arch=arch,
            baseline=baseline,
            errors=relative_errors(arch, baseline, context=context, convention=convention),
            held=held,
            bound=float(bound),
            context=context,
            convention=convention,
            runners_up=(),
            reason="",
        )
        for arch in ranked
    ]
    best = replace(matches[0], runners_up=tuple(matches[1:]))
    return best if best.fits else replace(best, reason=_reason(best, variant, moving))


def _default_free(held: str) -> tuple[str, ...]:
    if held == "active_params":
        return ("width",)
    return FREE if held in ("three_budgets", "flops_and_kv") else ()


def _multiples(given: Mapping[str, int] | None) -> dict[str, int]:
    steps = {name: default for name, (default, _, _) in DIMENSIONS.items()}
    for name, multiple in (given or {}).items():
        if name not in DIMENSIONS:
            raise BadInput(f"unknown dimension {name!r} in multiples: known are {', '.join(DIMENSIONS)}")
        if not isinstance(multiple, int) or isinstance(multiple, bool) or multiple < 1:
            raise BadInput(f"multiple of {name} is {multiple!r}: give a positive integer")
        steps[name] = multiple
    steps["head_dim"] = math.lcm(2, steps["head_dim"])  # RoPE turns pairs
    return steps


def _moving(variant: ArchSpec, free: Iterable[str], held: str) -> frozenset[str]:
    """The free dimensions that can move: a dense model has no experts to add, and where no held budget depends on
    the number of experts, it stays."""
    names = frozenset([free] if isinstance(free, str) else free)
    if unknown := sorted(names - DIMENSIONS.keys()):
        raise BadInput(f"unknown dimension {unknown[0]!r} in free: known are {', '.join(DIMENSIONS)}")
    if not variant.ffn.has_router or not {"num_params", "e_real"} & set(HELD[held]):
        names -= {"num_experts"}
    return names


class _RoutedFFN(FFN):
    """Experts whose number is an array: the lattice never leaves the sparse models."""

    __slots__ = ()
    has_router = True


def _unchecked(spec: Any, kind: type | None = None, **sizes: Any) -> Any:
    """A copy of a spec with other sizes, arrays too, that skips validation: `budget`'s formulas then give the
    counts of a whole lattice at once, and no count is defined a second time."""
    twin = object.__new__(kind or type(spec))
    for field in fields(spec):
        object.__setattr__(twin, field.name, sizes.get(field.name, getattr(spec, field.name)))
    return twin


def _with_sizes(arch: ArchSpec, sizes: Mapping[str, Any]) -> ArchSpec:
    """`arch` with arrays for d_model, heads, experts and expert width."""
    heads = {name: sizes[name] for name in ("num_heads", "num_kv_heads", "head_dim")}
    kind = _RoutedFFN if arch.ffn.has_router else FFN
    ffn = _unchecked(arch.ffn, kind, width=sizes["width"], num_experts=sizes["num_experts"])
    outer = arch.outer_ffn
    if outer is not None and outer.width == arch.ffn.width:
        outer = _unchecked(outer, width=sizes["width"])
    return _unchecked(
        arch,
        d_model=sizes["d_model"],
        attention=_unchecked(arch.attention, **heads),
        ffn=ffn,
        outer_ffn=outer,
    )


def _spec(arch: ArchSpec, sizes: Mapping[str, int]) -> ArchSpec:
    """The validated ArchSpec at one point of the lattice; prelude and coda experts follow the width they shared."""
    outer = arch.outer_ffn
    if outer is not None and outer.width == arch.ffn.width:
        outer = replace(outer, width=sizes["width"])
    return replace(
        arch,
        d_model=sizes["d_model"],
        attention=replace(
            arch.attention,
            **{name: sizes[name] for name in ("num_heads", "num_kv_heads", "head_dim")},
        ),
        ffn=replace(arch.ffn, width=sizes["width"], num_experts=sizes["num_experts"]),
        outer_ffn=outer,
    )


def sizes_of(arch: ArchSpec) -> dict[str, int]:
    """The movable dimensions of an architecture, in the order of `DIMENSIONS`."""
    heads = arch.attention
    return {
        "d_model": arch.d_model,
        "num_layers": arch.num_layers,
        "num_heads": heads.num_heads,
        "num_kv_heads": heads.num_kv_heads,
        "head_dim": heads.head_dim,
        "num_experts": arch.ffn.num_experts,
        "width": arch.ffn.width,
    }


def at_depth(arch: ArchSpec, num_layers: int) -> ArchSpec | None:
    """`arch` with another physical depth, the looped share kept exactly, or None where that is no whole number.

    Prelude and coda that have an FFN of their own (Foil) are kept and only the loop block changes."""
    if arch.outer_ffn is not None:
        looped = num_layers - arch.num_prelude - arch.num_coda
        return replace(arch, loop=replace(arch.loop, num_layers=looped)) if looped >= 1 else None
    looped, rest = divmod(num_layers * arch.loop.num_layers, arch.num_layers)
    if rest or looped < 1:
        return None
    before = (num_layers - looped) // 2 if arch.num_prelude else 0
    after = num_layers - looped - before
    return replace(arch, num_prelude=before, num_coda=after, loop=replace(arch.loop, num_layers=looped))


@dataclass(frozen=True)
class _Search:
    baseline: ArchSpec
    variant: ArchSpec
    moving: frozenset[str]
    steps: dict[str, int]
    held: str
    bound: float
    context: int
    convention: str

    def value(self, name: str, arch: ArchSpec) -> Any:
        return BUDGETS[name](arch, self.context, self.convention)

    def target(self, name: str) -> float:
        return float(self.value(name, self.baseline))

    def values(self, name: str) -> np.ndarray:
        """What a dimension is tried at: its multiples between the limits, or the variant's own value."""
        own = sizes_of(self.variant)[name]
        if name not in self.moving:
            return np.array([own])
        _, low, high = DIMENSIONS[name]
        step = self.steps[name]
        first, last = max(1, math.ceil(low * own / step)), math.floor(high * own / step)
        tried = np.arange(first, last + 1) * step
        return tried if tried.size else np.array([own])

    def ranked(self) -> list[ArchSpec]:
        """The best 1 + NUM_RUNNERS_UP architectures in order."""
        found: list[tuple[tuple[float, ...], int, ArchSpec]] = []
        for num_layers in self.values("num_layers").tolist():
            arch = self.variant
            if num_layers != arch.num_layers:
                arch = at_depth(arch, num_layers)
            if arch is not None:
                found += [(key, len(found) + i, spec) for i, (key, spec) in enumerate(self._at(arch))]
        return [arch for _, _, arch in sorted(found, key=lambda item: item[:2])[: 1 + NUM_RUNNERS_UP]]

    def _at(self, arch: ArchSpec) -> list[tuple[tuple[float, ...], ArchSpec]]:
        """The best of one depth with their keys."""
        sizes = self._points(arch)
        sizes["width"], sizes["num_experts"] = self._roots(arch, sizes)
        sizes = self._nearest_recipe(arch, sizes, MAX_POINTS)
        sizes = self._rounded(arch, sizes)
        keys = self._keys(arch, sizes)
        best = _first(keys, 1 + NUM_RUNNERS_UP)
        return [
            (
                tuple(float(key[i]) for key in keys),
                _spec(arch, {name: int(value[i]) for name, value in sizes.items()}),
            )
            for i in best.tolist()
        ]

    def _points(self, arch: ArchSpec) -> dict[str, np.ndarray]:
        """Every width with every shape of the heads; where KV is held, only shapes within the bound of it."""
        shapes = np.meshgrid(*(self.values(name) for name in ("num_heads", "num_kv_heads", "head_dim")))
        heads, kv_heads, head_dim = (axis.ravel() for axis in shapes)
        whole = heads % kv_heads == 0
        heads, kv_heads, head_dim = heads[whole], kv_heads[whole], head_dim[whole]
        own = arch.attention
        far = (
            np.abs(np.log(kv_heads / own.num_kv_heads))
            + (head_dim > own.head_dim)
            + (heads * own.num_kv_heads < own.num_heads * kv_heads)
        )
        if "kv_cache" in HELD[self.held]:
            sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim}
            here = _with_sizes(arch, {**sizes_of(arch), **sizes})
            error = np.abs(self.value("kv_cache", here) / self.target("kv_cache") - 1.0)
            kept = np.flatnonzero(error <= max(self.bound, error.min()))
        else:
            kept = np.arange(heads.size)
        kept = kept[np.argsort(far[kept], kind="stable")[:MAX_HEAD_SHAPES]]
        d_model = self.values("d_model")
        sizes = {"num_heads": heads[kept], "num_kv_heads": kv_heads[kept], "head_dim": head_dim[kept]}
        points = {name: np.tile(value, d_model.size) for name, value in sizes.items()}
        return {"d_model": np.repeat(d_model, kept.size), **points}

    def _solved_by(self, name: str) -> str | None:
        """The held budget that fixes the number of experts or the expert width."""
        held = HELD[self.held]
        if name == "num_experts":
            wanted = ("num_params", "e_real")
        elif "num_experts" in self.moving:
            wanted = ("flops_per_token", "active_params")
        else:
            wanted = ("flops_per_token", "active_params", "num_params")
        return next((budget for budget in wanted if budget in held), None) if name in self.moving else None

    def _roots(self, arch: ArchSpec, sizes: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Expert width and number, unrounded, that meet FLOPs and parameters at each point: both budgets are affine in
        either; the router, which couples them, is small, so that a few alternations settle it."""
        own = sizes_of(arch)
        solved = {name: np.full(sizes["d_model"].shape, float(own[name])) for name in ("width", "num_experts")}
        unknown = [name for name in solved if self._solved_by(name)]
        for _ in range(4 if len(unknown) == 2 else 1):
            for name in unknown:
                solver = self._solved_by(name)
                at_0, at_1 = (self.value(solver, _with_sizes(arch, {**sizes, **solved, name: x})) for x in (0.0, 1.0))
                slope = np.maximum(at_1 - at_0, 1e-9)
                solved[name] = (self.target(solver) - at_0) / slope
        return solved["width"], solved["num_experts"]

    def _limits(self, name: str, arch: ArchSpec) -> tuple[int, int]:
        """The lowest and highest multiple of the step that is tried."""
        own, step = sizes_of(arch)[name], self.steps[name]
        _, low, high = DIMENSIONS[name]
        least = max(2, arch.ffn.top_k) if name == "num_experts" else 1
        first = max(math.ceil(least / step), math.ceil(low * own / step))
        return first, max(first, math.floor(high * own / step))

    def _nearest_recipe(self, arch: ArchSpec, sizes: dict[str, np.ndarray], most: int) -> dict[str, np.ndarray]:
        """The points nearest the recipe, those that no expert width or number could serve last."""
        outside = np.zeros(sizes["d_model"].shape, dtype=bool)
        clipped = dict(sizes)
        for name in ("width", "num_experts"):
            if self._solved_by(name):
                first, last = self._limits(name, arch)
                low, high = (first - 0.5) * self.steps[name], (last + 0.5) * self.steps[name]
                outside |= (sizes[name] < low) | (sizes[name] > high)
                clipped[name] = np.clip(sizes[name], first * self.steps[name], last * self.steps[name])
        if outside.size <= most:
            return clipped
        against, distance = self._recipe(arch, clipped)
        order = np.argpartition(outside * 1e6 + against * 1e3 + distance, most)[:most]
        return {name: value[order] for name, value in clipped.items()}

    def _rounded(self, arch: ArchSpec, sizes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Each point with the multiples around its expert width, and for each of them the two nearest numbers of
        experts; integers throughout."""
        own = sizes_of(arch)
        width = sizes["width"]
        if self._solved_by("width"):
            first, last = self._limits("width", arch)
            step = self.steps["width"]
            near = np.rint(width / step)[:, None] + np.array(WIDTH_STEPS)
            width = np.clip(near, first, last).ravel() * step
        repeats = width.size // sizes["d_model"].size
        sizes = {name: np.repeat(value, repeats) for name, value in sizes.items()} | {"width": width}
        solver = self._solved_by("num_experts")
        if solver:
            at_0, at_1 = (self.value(solver, _with_sizes(arch, {**sizes, "num_experts": x})) for x in (0.0, 1.0))
            step = self.steps["num_experts"]
            first, last = self._limits("num_experts", arch)
            root = (self.target(solver) - at_0) / np.maximum(at_1 - at_0, 1e-9) / step
            experts = np.clip(np.floor(root)[:, None] + np.array((0, 1)), first, last).ravel() * step
            sizes = {name: np.repeat(value, 2) for name, value in sizes.items()} | {"num_experts": experts}
        else:
            sizes["num_experts"] = np.full(sizes["d_model"].shape, own["num_experts"])
        table = np.unique(np.stack([sizes[name].astype(np.int64) for name in sizes]), axis=1)
        return dict(zip(sizes, table, strict=True))

    def _recipe(self, arch: ArchSpec, sizes: Mapping[str, Any]) -> tuple[Any, Any]:
        """(moves against the recipe, distance from the proportions it keeps) of points at the depth of `arch`."""
        own = sizes_of(self.variant)
        d, heads, kv_heads, head_dim, experts, width = (sizes[n] for n in FREE)
        against = (
            (d > own["d_model"]) * 1
            + (experts < own["num_experts"])
            + (head_dim > own["head_dim"])
            + (heads * own["num_kv_heads"] < own["num_heads"] * kv_heads)
            + (arch.num_layers != own["num_layers"])
        )
        distance = (
            abs(math.log(arch.num_layers / own["num_layers"]))
            + np.abs(np.log(kv_heads / own["num_kv_heads"]))
            + np.abs(np.log(heads * head_dim * own["d_model"] / (own["num_heads"] * own["head_dim"] * d)))
            + np.abs(np.log(width * own["d_model"] / (own["width"] * d)))
        )
        return against, distance

    def _keys(self, arch: ArchSpec, sizes: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """The order of the module docstring, first key first; smaller is better."""
        here = _with_sizes(arch, sizes)
        worst = np.zeros(sizes["d_model"].shape)
        for name in HELD[self.held]:
            worst = np.maximum(worst, np.abs(self.value(name, here) / self.target(name) - 1.0))
        tier = (worst > min(AIM, self.bound)) * 1 + (worst > self.bound)
        against, distance = self._recipe(arch, sizes)
        beyond = np.where(tier == 2, worst, 0.0)
        return tier, beyond, against, np.rint(distance / RECIPE_STEP), worst, distance


def _first(keys: tuple[np.ndarray, ...], count: int) -> np.ndarray:
    """Indices of the first `count` in lexicographic order; only ties go on to the next key, so that a large lattice
    is never sorted."""
    sure, tied = np.array([], dtype=np.int64), np.arange(keys[0].size)
    for key in keys:
        missing = count - sure.size
        if tied.size <= missing:
            break
        last = np.partition(key[tied], missing - 1)[missing - 1]
        sure, tied = np.concatenate([sure, tied[key[tied] < last]]), tied[key[tied] == last]
    kept = np.concatenate([sure, tied])
    return kept[np.lexsort([key[kept] for key in reversed(keys)])[:count]]


def _reason(best: Match, variant: ArchSpec, moving: frozenset[str]) -> str:
    """Which budget binds, by how much, and what to free."""
    binding, error = max(best.held_errors.items(), key=lambda item: abs(item[1]))
    return f"{binding} cannot be met: {error:+.1%} at best, the bound is {best.bound:.1%}"
