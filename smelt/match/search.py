"""(baseline, variant, what may move, what is held) -> the first candidates in the order that `match` states.

Every width is tried with every shape of the heads that meets the KV cache; at each such point FLOPs fix the expert
width and parameters the number of experts, both solved for and then rounded to the multiples around. All of it is done
on arrays (`lattice`), one physical depth at a time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from smelt.errors import BadInput
from smelt.match.lattice import BUDGETS, DIMENSIONS, HEADS, at_depth, lattice_spec, recipe, sizes_of, tried, with_sizes
from smelt.spec import ArchSpec

AIM = 0.01
RECIPE_STEP = 0.05  # a difference of proportion below this is traded for a smaller error
NUM_RUNNERS_UP = 3

# Limits, so that a match stays under 2 s on a slow core: a lattice is thinned to its points nearest the recipe before
# widths and experts are rounded. The lattice of a small model is never thinned.
MAX_HEAD_SHAPES = 500
MAX_POINTS = 10_000
WIDTH_STEPS = (-2, -1, 0, 1, 2)


def movable(variant: ArchSpec, free: Iterable[str], held: tuple[str, ...]) -> frozenset[str]:
    """The free dimensions that can move. Experts stay where there are none to add (a dense model) and where no held
    budget fixes their number; with nothing held nothing moves."""
    names = frozenset([free] if isinstance(free, str) else free)
    if unknown := sorted(names - DIMENSIONS.keys()):
        raise BadInput(f"unknown dimension {unknown[0]!r} in free: known are {', '.join(DIMENSIONS)}")
    if not held:
        return frozenset()
    if not variant.ffn.has_router or not {"num_params", "e_real"} & set(held):
        names -= {"num_experts"}
    return names


@dataclass(frozen=True, kw_only=True)
class Search:
    """One match: every width with every shape of the heads, and for each of them the expert width and number that
    meet FLOPs and parameters, solved for and rounded to the multiples around."""

    baseline: ArchSpec
    variant: ArchSpec
    moving: frozenset[str]
    multiples: dict[str, int]
    held: tuple[str, ...]
    bound: float
    context: int
    convention: str

    @cached_property
    def targets(self) -> dict[str, float]:
        return {name: float(self._value(name, self.baseline)) for name in self.held}

    @cached_property
    def solvers(self) -> dict[str, str]:
        """Expert width or number -> the held budget that fixes it."""
        by_flops = ("flops_per_token", "active_params")
        wanted = {
            "width": by_flops if "num_experts" in self.moving else (*by_flops, "num_params"),
            "num_experts": ("num_params", "e_real"),
        }
        found = {name: [solver for solver in solvers if solver in self.held] for name, solvers in wanted.items()}
        return {name: solvers[0] for name, solvers in found.items() if solvers and name in self.moving}

    @cached_property
    def expected_experts(self) -> float:
        """The number that keeps parameters where every other proportion is kept: the baseline's, times what the variant
        executes for a stored layer over what the baseline does (SMELT: 64 -> 96 with 1.5 visits a layer)."""
        visits = [arch.effective_depth / arch.num_layers for arch in (self.variant, self.baseline)]
        return self.baseline.ffn.num_experts * visits[0] / visits[1]

    def _recipe(self, arch: ArchSpec, sizes: Mapping[str, Any]) -> tuple[Any, Any]:
        here = {**sizes, "num_layers": arch.num_layers}
        return recipe(here, sizes_of(self.variant), self.expected_experts)

    def _value(self, name: str, arch: ArchSpec) -> Any:
        return BUDGETS[name](arch, self.context, self.convention)

    def _error(self, name: str, arch: ArchSpec, sizes: Mapping[str, Any]) -> Any:
        return np.abs(self._value(name, lattice_spec(arch, sizes)) / self.targets[name] - 1.0)

    def _tried(self, name: str) -> np.ndarray:
        own = sizes_of(self.variant)[name]
        if name not in self.moving:
            return np.array([own])
        least = max(2, self.variant.ffn.top_k) if name == "num_experts" else 1
        return tried(name, own, self.multiples[name], least=least)

    def ranked(self) -> list[ArchSpec]:
        """The first 1 + NUM_RUNNERS_UP architectures in the order; none where the multiples leave nothing to try."""
        found = []
        for num_layers in self._tried("num_layers").tolist():
            arch = at_depth(self.variant, num_layers)
            if arch is not None and self._head_shapes()["num_heads"].size:
                found += self._ranked_at(arch)
        found.sort(key=lambda item: item[0])
        return [arch for _, arch in found[: 1 + NUM_RUNNERS_UP]]

    def _ranked_at(self, arch: ArchSpec) -> list[tuple[tuple[float, ...], ArchSpec]]:
        """The first of one depth, with their keys."""
        sizes = self._rounded(arch, self._thinned(arch, self._solved(arch, self._points(arch))))
        keys = self._keys(arch, sizes)
        return [
            (
                tuple(float(key[i]) for key in keys),
                with_sizes(arch, {name: int(value[i]) for name, value in sizes.items()}),
            )
            for i in _first(keys, 1 + NUM_RUNNERS_UP).tolist()
        ]

    def _head_shapes(self) -> dict[str, np.ndarray]:
        axes = np.meshgrid(*(self._tried(name) for name in HEADS), indexing="ij")
        shapes = {name: axis.ravel() for name, axis in zip(HEADS, axes, strict=True)}
        whole = shapes["num_heads"] % shapes["num_kv_heads"] == 0
        return {name: value[whole] for name, value in shapes.items()}

    def least_kv_error(self) -> float:
        """The least error of the KV cache that any shape of the heads reaches; 0 where it is not held or the depth may
        move too."""
        if "kv_cache" not in self.held or "num_layers" in self.moving:
            return 0.0
        sizes = sizes_of(self.variant) | self._head_shapes()
        return float(np.min(self._error("kv_cache", self.variant, sizes), initial=np.inf))

    def _points(self, arch: ArchSpec) -> dict[str, np.ndarray]:
        """Every width with every shape of the heads; where the KV cache is held, with those that are within the bound
        of it, or else the nearest to it."""
        shapes = self._head_shapes()
        own = sizes_of(arch)
        if "kv_cache" in self.held:
            error = self._error("kv_cache", arch, own | shapes)
            shapes = {name: value[error <= max(self.bound, error.min())] for name, value in shapes.items()}
        against, distance = recipe(own | shapes, own, own["num_experts"])
        nearest = np.lexsort((distance, against))[:MAX_HEAD_SHAPES]
        widths = self._tried("d_model")
        points = {name: np.tile(value[nearest], widths.size) for name, value in shapes.items()}
        return {"d_model": np.repeat(widths, nearest.size), **points}

    def _root(self, name: str, arch: ArchSpec, sizes: Mapping[str, Any]) -> np.ndarray:
        """The expert width or number at which its budget is met exactly: every budget is affine in either."""
        solver = self.solvers[name]
        at_0, at_1 = (self._value(solver, lattice_spec(arch, {**sizes, name: x})) for x in (0, 1))
        root = (self.targets[solver] - at_0) / np.maximum(at_1 - at_0, 1e-9)
        return np.broadcast_to(root, sizes["d_model"].shape)  # a budget of experts alone is the same at every point

    def _solved(self, arch: ArchSpec, points: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Points with unrounded expert width and number. The router alone couples the two and it is small, so that two
        alternations settle them."""
        own = sizes_of(arch)
        sizes = dict(points)
        for name in ("width", "num_experts"):
            sizes[name] = np.full(points["d_model"].shape, own[name])
        for _ in range(2 if len(self.solvers) == 2 else 1):
            for name in self.solvers:
                sizes[name] = self._root(name, arch, sizes)
        return sizes

    def _thinned(self, arch: ArchSpec, sizes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The points nearest the recipe; those that no expert width or number can serve go first."""
        unserved = np.zeros(sizes["d_model"].shape, dtype=bool)
        kept = dict(sizes)
        for name in self.solvers:
            values = self._tried(name)
            half = self.multiples[name] / 2
            unserved |= (sizes[name] < values[0] - half) | (sizes[name] > values[-1] + half)
            kept[name] = np.clip(sizes[name], values[0], values[-1])
        if unserved.size > MAX_POINTS:
            against, distance = self._recipe(arch, kept)
            badness = unserved * 1e6 + against * 1e3 + distance
            nearest = np.argpartition(badness, MAX_POINTS)[:MAX_POINTS]
            kept = {name: value[nearest] for name, value in kept.items()}
        return kept

    def _rounded(self, arch: ArchSpec, sizes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Each point with the multiples around its expert width, and with each of them the two nearest numbers of
        experts; integers throughout."""
        for name, steps in (("width", np.array(WIDTH_STEPS)), ("num_experts", np.array((0, 1)))):
            if name in self.solvers:
                multiple, values = self.multiples[name], self._tried(name)
                if name == "width":
                    middle = np.rint(sizes[name] / multiple) * multiple
                else:
                    middle = np.floor(self._root(name, arch, sizes) / multiple) * multiple
                near = (np.clip(middle, values[0], values[-1])[:, None] + steps * multiple).ravel()
                inside = (near >= values[0]) & (near <= values[-1])
                sizes = {key: np.repeat(value, steps.size)[inside] for key, value in sizes.items()}
                sizes[name] = near[inside]
        return {name: value.astype(np.int64) for name, value in sizes.items()}

    def _keys(self, arch: ArchSpec, sizes: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """The order of the module docstring, first key first; smaller is better."""
        worst = np.zeros(sizes["d_model"].shape)
        for name in self.held:
            worst = np.maximum(worst, self._error(name, arch, sizes))
        tier = (worst > min(AIM, self.bound)) * 1 + (worst > self.bound)
        beyond = np.where(tier == 2, worst, 0.0)
        against, distance = self._recipe(arch, sizes)
        return tier, beyond, against, np.rint(distance / RECIPE_STEP), worst, distance

    def best_worst(self) -> float:
        """The worst held error of the first candidate; infinite where there is none."""
        ranked = self.ranked()
        if not ranked:
            return float("inf")
        sizes = sizes_of(ranked[0])
        return max((float(self._error(name, ranked[0], sizes)) for name in self.held), default=0.0)

    def fits(self) -> bool:
        return self.best_worst() <= self.bound

    def holding(self, held: tuple[str, ...]) -> "Search":
        """The same search with fewer budgets held."""
        return replace(self, held=held, moving=movable(self.variant, self.moving, held))

    def freeing(self, *names: str) -> "Search":
        """The same search with more dimensions free."""
        return replace(self, moving=self.moving | set(names))


def _first(keys: tuple[np.ndarray, ...], count: int) -> np.ndarray:
    """Indices of the first `count` in lexicographic order of the keys; only ties go on to the next key, so that a
    large lattice is never sorted."""
    sure, tied = np.array([], dtype=np.int64), np.arange(keys[0].size)
    for key in keys:
        missing = count - sure.size
        if tied.size <= missing:
            break
        last = np.partition(key[tied], missing - 1)[missing - 1]
        sure, tied = np.concatenate([sure, tied[key[tied] < last]]), tied[key[tied] == last]
    kept = np.concatenate([sure, tied])
    return kept[np.lexsort([key[kept] for key in reversed(keys)])[:count]]
