"""An architecture and the sizes that may move -> the lattice of its neighbours, counted by `budget` as whole arrays.

A size is one of `DIMENSIONS`; a lattice is a dict of equally long arrays, one a dimension. `budget`'s formulas are sums
and products, so that an ArchSpec whose sizes are arrays (built here without validation) gives every count of the
whole lattice at once, and no count is defined a second time.

Letters as in `budget`: d d_model, H query heads, G KV heads, K head width, F expert width, E experts.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from smelt import budget
from smelt.errors import BadInput
from smelt.spec import FFN, ArchSpec, Own

# A dimension -> (multiple where the user gives none, lowest and highest value tried as shares of the variant's own).
DIMENSIONS: dict[str, tuple[int, float, float]] = {
    "d_model": (8, 0.25, 1.25),
    "num_layers": (1, 0.5, 1.5),
    "num_heads": (1, 0.25, 2.0),
    "num_kv_heads": (1, 0.0, 2.0),
    "head_dim": (2, 0.1, 1.5),
    "num_experts": (1, 0.1, 10.0),
    "width": (8, 0.1, 4.0),
}
HEADS = ("num_heads", "num_kv_heads", "head_dim")

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


def sizes_of(arch: ArchSpec) -> dict[str, int]:
    """The sizes that can move, in the order of `DIMENSIONS`."""
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


def with_sizes(arch: ArchSpec, sizes: Mapping[str, int]) -> ArchSpec:
    """`arch` with other d_model, heads, experts and expert width. The experts of prelude and coda keep their number
    (Foil) and follow the width where they shared it; a latent and a shared expert keep their proportion to d_model.
    Raises BadInput as the spec does."""
    outer = arch.outer_ffn
    if outer is not None:
        shared = outer.width == arch.ffn.width
        outer = replace(outer, **_following(arch, outer, sizes), width=sizes["width"] if shared else outer.width)
    return replace(
        arch,
        d_model=sizes["d_model"],
        attention=replace(arch.attention, **{name: sizes[name] for name in HEADS}),
        ffn=replace(
            arch.ffn, **_following(arch, arch.ffn, sizes), width=sizes["width"], num_experts=sizes["num_experts"]
        ),
        outer_ffn=outer,
    )


def _following(arch: ArchSpec, ffn: FFN, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of an FFN that go with d_model, whole numbers; of arrays, arrays."""

    def scaled(own: int) -> Any:
        widths = np.maximum(1, np.rint(own * np.asarray(sizes["d_model"]) / arch.d_model)).astype(np.int64)
        return widths if widths.ndim else int(widths)

    moved: dict[str, Any] = {}
    if ffn.shared_width is not None:
        moved["shared_width"] = scaled(ffn.shared_width)
    if ffn.latent is not None:
        moved["latent"] = _unchecked(ffn.latent, width=scaled(ffn.latent.width))
    return moved


def at_depth(arch: ArchSpec, num_layers: int) -> ArchSpec | None:
    """`arch` with another physical depth, the looped share kept exactly, or None where that is no whole number.

    A prelude and coda with an FFN of their own (Foil) stay, and only the loop block changes."""
    if num_layers == arch.num_layers:
        return arch
    if arch.outer_ffn is not None:
        looped = num_layers - arch.num_prelude - arch.num_coda
        return replace(arch, loop=replace(arch.loop, num_layers=looped)) if looped >= 1 else None
    looped, rest = divmod(num_layers * arch.loop.num_layers, arch.num_layers)
    if rest or looped < 1:
        return None
    before = (num_layers - looped) // 2
    loop = replace(arch.loop, num_layers=looped)
    return replace(arch, num_prelude=before, num_coda=num_layers - looped - before, loop=loop)


def recipe(sizes: Mapping[str, Any], own: Mapping[str, Any], expected_experts: float) -> tuple[Any, Any]:
    """(moves against SMELT's recipe, distance from the proportions it keeps) of sizes that started from `own`.

    Against it: a wider model, fewer experts, wider heads, fewer query heads a KV head, another depth. Kept by it (the
    reconstructed geometries of its six sparse pairs): depth, KV heads, H K / d, F / d, and experts in proportion to
    executed over physical depth (`expected_experts`); the distance is the sum of |log ratio| over these five.
    """

    def ratio(name: str) -> Any:
        return sizes[name] / own[name]

    against = (
        (ratio("d_model") > 1) * 1
        + (ratio("num_experts") < 1)
        + (ratio("head_dim") > 1)
        + (ratio("num_heads") < ratio("num_kv_heads"))
        + (ratio("num_layers") != 1)
    )
    kept = (
        ratio("num_layers"),
        ratio("num_kv_heads"),
        ratio("num_heads") * ratio("head_dim") / ratio("d_model"),
        ratio("width") / ratio("d_model"),
        sizes["num_experts"] / expected_experts,
    )
    return against, sum(np.abs(np.log(proportion)) for proportion in kept)


class _RoutedFFN(FFN):
    """Experts whose number is an array; a lattice never mixes dense and sparse models."""

    __slots__ = ()
    has_router = True


def _unchecked(spec: Any, kind: type | None = None, **sizes: Any) -> Any:
    """A copy of a spec with other values, arrays too, without validation."""
    twin = object.__new__(kind or type(spec))
    for field in fields(spec):
        object.__setattr__(twin, field.name, sizes.get(field.name, getattr(spec, field.name)))
    return twin


def lattice_spec(arch: ArchSpec, sizes: Mapping[str, Any]) -> ArchSpec:
    """`with_sizes` for arrays: an ArchSpec that only `budget` may read."""
    ffn = _unchecked(arch.ffn, width=sizes["width"], **_following(arch, arch.ffn, sizes))
    if ffn.has_router:
        ffn = _unchecked(ffn, _RoutedFFN, num_experts=sizes["num_experts"])
    outer = arch.outer_ffn
    if outer is not None:
        width = sizes["width"] if outer.width == arch.ffn.width else outer.width
        outer = _unchecked(outer, width=width, **_following(arch, outer, sizes))
    return _unchecked(
        arch,
        d_model=sizes["d_model"],
        attention=_unchecked(arch.attention, **{name: sizes[name] for name in HEADS}),
        ffn=ffn,
        outer_ffn=outer,
        own=tuple(_OnArrays(part) for part in arch.own),
    )


class _OnArrays:
    """A part of the user's own that says which of its counts cannot take arrays."""

    def __init__(self, part: Own) -> None:
        self.part, self.replaces = part, part.replaces

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def count(*given: Any) -> Any:
            try:
                return getattr(self.part, name)(*given)
            except (TypeError, ValueError, ArithmeticError) as error:
                if isinstance(error, BadInput):
                    raise
                raise BadInput(
                    f"{type(self.part).__name__}.{name} cannot count all sizes at once, as the matcher asks ({error}): "
                    "write it with + - * and //, without int(), math and if"
                ) from None

        return count


def tried(name: str, own: int, multiple: int, *, least: int = 1) -> np.ndarray:
    """The multiples between a dimension's limits, ascending; the one nearest the limits where none lies between."""
    _, low, high = DIMENSIONS[name]
    first = max(math.ceil(least / multiple), math.ceil(low * own / multiple))
    return np.arange(first, max(first, math.floor(high * own / multiple)) + 1) * multiple
