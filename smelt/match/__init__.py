"""(baseline, variant, free dimensions) -> the variant whose budgets equal the baseline's, with the errors, or why not.

What is held equal is named, for papers differ in it (`HELD`):

    three_budgets   FLOPs per token, non-embedding parameters, KV cache                     SMELT
    flops_and_kv    FLOPs per token and KV cache; parameters are reported                   dense against sparse
    active_params   executed active parameters with embedding and head                      Looped-MoE
    expert_budget   stored experts, computed experts, executed depth                        Foil
    none            nothing moves; every difference is reported

**The order.** Of two candidates the better one is decided by the first of these that differs:

1. the tier of the worst held error: within `AIM` (1 %), within the user's bound, beyond it;
2. beyond the bound: the smaller worst held error;
3. the number of moves against SMELT's recipe: a wider model, fewer experts, wider heads, fewer query heads a KV head,
   another depth (`lattice.recipe`);
4. the distance from the proportions that the recipe keeps (depth, KV heads, attention and expert width over d_model,
   experts over visits a layer), in steps of 5 %, below which a smaller error is worth more;
5. the smaller worst held error, then the smaller distance.

A variant that is the baseline itself is its own match, whatever the multiples. Top-k is never moved. Errors are
relative and signed: +0.01 is 1 % more than the baseline has.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from smelt import budget
from smelt.errors import BadInput
from smelt.match.lattice import BUDGETS, DIMENSIONS, at_depth, sizes_of, with_sizes
from smelt.match.search import AIM, Search, movable
from smelt.spec import ArchSpec

FREE = ("d_model", "num_heads", "num_kv_heads", "head_dim", "num_experts", "width")
HELD: dict[str, tuple[str, ...]] = {
    "three_budgets": ("flops_per_token", "num_params", "kv_cache"),
    "flops_and_kv": ("flops_per_token", "kv_cache"),
    "active_params": ("active_params",),
    "expert_budget": ("e_real", "e_comp", "effective_depth"),
    "none": (),
}
# What each mode frees where the user names nothing: Looped-MoE keeps its width and Foil its sizes by construction.
DEFAULT_FREE: dict[str, tuple[str, ...]] = {
    "three_budgets": FREE,
    "flops_and_kv": FREE,
    "active_params": ("width",),
    "expert_budget": (),
    "none": (),
}

MAX_BASELINES = 400  # tried by co_design before it settles for the closest


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """One change with which the match fits, tried; exactly one field is given.

    free: dimensions to free besides those that are. multiples: finer ones, besides the others. held: a mode that holds
    fewer budgets.
    """

    free: tuple[str, ...] = ()
    multiples: Mapping[str, int] = field(default_factory=dict)
    held: str | None = None

    def __str__(self) -> str:
        if self.held is not None:
            return f"hold {self.held}"
        finer = [f"let {name} move in multiples of {multiple}" for name, multiple in self.multiples.items()]
        return " and ".join(finer) or f"free {' and '.join(self.free)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A matched pair. `errors` has every budget, held or not, relative to the baseline's and signed.

    `held` names what was equalised (`HELD`) and `bound` what was asked of it. `misfit` is empty where the bound is met,
    else it says which budget binds and by how much; `mends` are what to do, each of which alone is enough; `reason` is
    both in one line. `runners_up` are the next in the order.
    """

    arch: ArchSpec
    baseline: ArchSpec
    errors: dict[str, float]
    held: str
    bound: float
    context: int
    convention: str
    runners_up: tuple["Match", ...]
    misfit: str
    mends: tuple[Mend, ...]

    @property
    def reason(self) -> str:
        """Why the match does not fit, and the mends, in one line; empty where it does."""
        if not self.misfit:
            return ""
        mends = " or ".join(str(mend) for mend in self.mends)
        if all(mend.held is not None for mend in self.mends):
            mends = f"no dimension mends it: move the baseline too (co_design) or {mends}"
        return f"{self.misfit}; {mends}"

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
    """Every budget of `BUDGETS`: that of `arch` over the baseline's, minus one."""
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
    """The first candidate in the order of the module docstring; its `reason` says why where none meets the bound.

    variant: what a function of `variants` made of the baseline. A dimension that is not free stays as it is there.
    free: names out of `DIMENSIONS`; None takes `DEFAULT_FREE`. multiples: the values tried of a dimension are multiples
    of this; what is not named takes the first number in `DIMENSIONS`. context: tokens, for the FLOPs of attention.
    convention: of `budget.CONVENTIONS`.

    Raises BadInput for an unknown name, a number out of range, or multiples that leave nothing to try.

    >>> from smelt import variants
    >>> from smelt.spec import Attention, FFN, Loop, Router
    >>> arch = ArchSpec(vocab_size=256, d_model=64, num_prelude=0, num_coda=0, outer_ffn=None,
    ...     loop=Loop(num_layers=4, num_passes=1, residual_scale=1.0, attention_sets="shared"),
    ...     attention=Attention(num_heads=4, num_kv_heads=1, head_dim=24, scale="1/sqrt(d_k)"),
    ...     ffn=FFN(width=64, num_experts=8, top_k=2), router=Router(load_balance_coef=0.01, z_loss_coef=0.001),
    ...     norm_gain=True, tied_embeddings=False)
    >>> pair = match(arch, variants.loop_middle(arch), context=128, multiples={"d_model": 4, "width": 2})
    >>> pair.fits, pair.worst < 0.01, pair.arch.effective_depth
    (True, True, 6)
    """
    search = _search(
        baseline,
        variant,
        context=context,
        free=free,
        multiples=multiples,
        held=held,
        bound=bound,
        convention=convention,
    )
    ranked = [baseline] if variant == baseline else search.ranked()
    if not ranked:
        given = ", ".join(f"{name}={search.multiples[name]}" for name in ("num_layers", "num_heads", "num_kv_heads"))
        raise BadInput(f"multiples {given} leave no architecture to try: give smaller ones")
    best, *others = (
        Match(
            arch=arch,
            baseline=baseline,
            errors=relative_errors(arch, baseline, context=context, convention=convention),
            held=held,
            bound=float(bound),
            context=context,
            convention=convention,
            runners_up=(),
            misfit="",
            mends=(),
        )
        for arch in ranked
    )
    best = replace(best, runners_up=tuple(others))
    return best if best.fits else replace(best, misfit=_misfit(best, search), mends=_mends(search))


def _search(
    baseline: ArchSpec,
    variant: ArchSpec,
    *,
    context: int,
    free: Iterable[str] | None,
    multiples: Mapping[str, int] | None,
    held: str,
    bound: float,
    convention: str,
) -> "Search":
    if held not in HELD:
        raise BadInput(f"unknown held {held!r}: choose one of {', '.join(HELD)}")
    if not (isinstance(bound, int | float) and 0 < bound < 1):
        raise BadInput(f"bound is {bound!r}: give a relative error between 0 and 1, such as 0.04")
    budget.train_flops_per_token(baseline, context, convention)  # refuses a wrong convention or context
    return Search(
        baseline=baseline,
        variant=variant,
        moving=movable(variant, DEFAULT_FREE[held] if free is None else free, HELD[held]),
        multiples=_multiples(multiples),
        held=HELD[held],
        bound=float(bound),
        context=context,
        convention=convention,
    )


def _multiples(given: Mapping[str, int] | None) -> dict[str, int]:
    multiples = {name: default for name, (default, _, _) in DIMENSIONS.items()}
    for name, multiple in (given or {}).items():
        if name not in DIMENSIONS:
            raise BadInput(f"unknown dimension {name!r} in multiples: known are {', '.join(DIMENSIONS)}")
        if not isinstance(multiple, int) or isinstance(multiple, bool) or multiple < 1:
            raise BadInput(f"multiple of {name} is {multiple!r}: give a positive integer")
        multiples[name] = multiple
    if multiples["head_dim"] % 2:
        raise BadInput(f"multiple of head_dim is {multiples['head_dim']}: RoPE turns pairs, give an even number")
    return multiples


def _misfit(best: Match, search: Search) -> str:
    """Which budget binds and by how much. It was tried: a budget binds where the others fit once it is let go."""
    errors = ", ".join(f"{name} {error:+.1%}" for name, error in best.held_errors.items())
    released = [name for name in search.held if len(search.held) > 1 and _without(search, name).fits()]
    beyond = [name for name, error in best.held_errors.items() if abs(error) > best.bound]
    binding = " and ".join(released or beyond)
    together = "together " if len(released) > 1 else ""
    return f"{binding} cannot be met {together}within {best.bound:.1%} of the baseline (nearest: {errors})"


def _without(search: Search, let_go: str) -> Search:
    return search.holding(tuple(name for name in search.held if name != let_go))


def _mends(search: Search) -> tuple[Mend, ...]:
    """What fits when it is tried: one more free dimension or finer multiples of one, else several together, else a mode
    that holds less."""
    could_move = movable(search.variant, DIMENSIONS, search.held) - search.moving
    mends = [Mend(free=(name,)) for name in DIMENSIONS if name in could_move and search.freeing(name).fits()]
    for name in DIMENSIONS:
        finest = 2 if name == "head_dim" else 1
        if name in search.moving and search.multiples[name] > finest:
            finer = replace(search, multiples=search.multiples | {name: finest})
            if finer.fits():
                mends.append(Mend(multiples={name: finest}))
    if mends:
        return tuple(mends)
    together = [name for name in DIMENSIONS if name in could_move]
    if together and search.freeing(*together).fits():
        # what is not needed is dropped again, depth first since the recipe keeps it
        for name in sorted(together, key=lambda name: name != "num_layers"):
            fewer = [other for other in together if other != name]
            if search.freeing(*fewer).fits():
                together = fewer
        return (Mend(free=tuple(together)),)
    less = [mode for mode, budgets in HELD.items() if set(budgets) < set(search.held)]  # the last of them is "none"
    return (Mend(held=next(mode for mode in less if search.holding(HELD[mode]).fits())),)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoDesign:
    """A baseline moved a little and one match for each variant, in the order given."""

    baseline: ArchSpec
    matches: tuple[Match, ...]

    @property
    def worst(self) -> float:
        return max(pair.worst for pair in self.matches)

    @property
    def fits(self) -> bool:
        return all(pair.fits for pair in self.matches)

    def require(self) -> "CoDesign":
        """The design itself. Raises BadInput with the reason of the first match that does not fit."""
        for pair in self.matches:
            pair.require()
        return self


def co_design(
    baseline: ArchSpec,
    variants: Sequence[Callable[[ArchSpec], ArchSpec]],
    *,
    context: int,
    baseline_free: Iterable[str] = ("d_model", "num_heads", "num_kv_heads", "head_dim", "width"),
    baseline_steps: int = 2,
    free: Iterable[str] | None = None,
    multiples: Mapping[str, int] | None = None,
    held: str = "three_budgets",
    bound: float = 0.04,
    convention: str = "model",
) -> CoDesign:
    """The baseline nearest the given one (sum of |log ratio| of its sizes) with which every variant meets `AIM`; else,
    among the nearest MAX_BASELINES, the one whose worst match is closest.

    variants: functions ArchSpec -> ArchSpec, applied to each baseline tried. The baseline's dimensions move by up to
    `baseline_steps` multiples either way; depth and experts stay unless named. The rest as in `match`.
    """
    if not variants:
        raise BadInput("co_design got no variants: give at least one function of ArchSpec")
    if not isinstance(baseline_steps, int) or baseline_steps < 0:
        raise BadInput(f"baseline_steps is {baseline_steps!r}: give a non-negative integer")
    settings: dict[str, Any] = {
        "context": context,
        "free": free,
        "multiples": multiples,
        "held": held,
        "bound": bound,
        "convention": convention,
    }
    aim = min(AIM, bound)
    nearest, least = baseline, float("inf")
    for moved in _near(baseline, frozenset(baseline_free), baseline_steps, _multiples(multiples)):
        searches = [_search(moved, variant(moved), **settings) for variant in variants]
        searches = [search for search in searches if search.variant != moved]
        # The nearest KV cache is cheap to know: a baseline that cannot win on it is not searched.
        if max((search.least_kv_error() for search in searches), default=0.0) >= max(least, aim):
            continue
        worst = max((search.best_worst() for search in searches), default=0.0)
        if worst < least:
            nearest, least = moved, worst
        if least <= aim:
            break
    pairs = (match(nearest, variant(nearest), **settings) for variant in variants)
    return CoDesign(baseline=nearest, matches=tuple(pairs))


def _near(arch: ArchSpec, free: frozenset[str], steps: int, multiples: Mapping[str, int]) -> Iterator[ArchSpec]:
    """The architecture itself, then its neighbours by the sum of |log ratio| of their sizes, at most MAX_BASELINES."""
    if unknown := sorted(free - DIMENSIONS.keys()):
        raise BadInput(f"unknown dimension {unknown[0]!r} in baseline_free: known are {', '.join(DIMENSIONS)}")
    own = sizes_of(arch)
    axes = [
        [value + multiples[name] * step for step in range(-steps, steps + 1)] if name in free else [value]
        for name, value in own.items()
    ]
    near = []
    for values in itertools.product(*axes):
        sizes = dict(zip(own, values, strict=True))
        if min(values) >= 1 and sizes["num_heads"] % sizes["num_kv_heads"] == 0:
            distance = sum(abs(math.log(sizes[name] / own[name])) for name in own)
            near.append((distance, values))
    for _, values in heapq.nsmallest(MAX_BASELINES, near):
        sizes = dict(zip(own, values, strict=True))
        deeper = at_depth(arch, sizes["num_layers"])
        if deeper is not None and sizes["num_experts"] >= arch.ffn.top_k:
            yield with_sizes(deeper, sizes)
