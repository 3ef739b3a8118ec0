"""Budgets (or token counts) x sizes x variants x seeds -> a Grid: complete runs, matched in pairs, in training order.

    num_steps = round(budget_flops / (flops_per_token x tokens_per_step))

so that the achieved FLOPs differ from the budget by the rounding alone; rows record what was achieved. A pair (the
baseline and a variant of one size, budget and seed) shares its DataSpec and seed: it sees the same tokens in the same
order. Nothing is trained or timed here; prices stand in `plan`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from smelt import budget, match, trunk
from smelt.errors import BadInput
from smelt.spec import ArchSpec, DataSpec, OptimSpec, RunSpec

Variant = Callable[[ArchSpec], ArchSpec]
Recipe = Callable[[ArchSpec, float], tuple[OptimSpec, DataSpec]]

ROLES = ("grid", "seed", "control", "prediction")
MIN_SIZES = 5  # a parabola has 3 coefficients; 5 sizes leave 2 degrees of freedom to see that it fits
SEEDS = 2**32  # a jax key keeps 32 bits of its seed
MIN_STEPS = 20  # below this the warm-up is the run


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a design, with the labels under which its row is read.

    role: grid (enters the fits), seed (another seed of a grid cell: gives the seed spread), control (enters nothing:
    a rate or batch check), prediction (trained after its loss was predicted from the grid).
    baseline: the architecture that `run.arch` is paired with and whose budgets it was matched to.
    """

    run: RunSpec
    variant: str
    size: int
    role: str
    budget_flops: float
    baseline: ArchSpec


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A design (isoflop, horizons, branches): its cells and what they share."""

    cells: tuple[Cell, ...]
    design: str
    reference: str
    held: str
    bound: float
    convention: str
    expected_optimum: Callable[[float], float] | None

    def __post_init__(self) -> None:
        if self.held not in match.HELD:
            raise BadInput(f"unknown held {self.held!r}: choose one of {', '.join(match.HELD)}")
        if not self.cells:
            raise BadInput("the grid has no cell: give at least one budget, size, variant and seed")
        seen: dict[str, Cell] = {}
        for cell in self.cells:
            if cell.run.seed >= SEEDS:
                raise BadInput(f"seed {cell.run.seed} is too large: {SEEDS} and more draw the weights of smaller ones")
            other = seen.setdefault(cell.run.run_id, cell)
            if other is not cell:
                raise BadInput(
                    f"two cells are the same run {cell.run.run_id}: {describe(other)} and {describe(cell)}; drop one"
                )

    @property
    def budgets_flops(self) -> tuple[float, ...]:
        return tuple(sorted({cell.budget_flops for cell in self.cells if cell.role == "grid"}))

    @property
    def variants(self) -> tuple[str, ...]:
        """Labels in order of appearance, the reference first."""
        return tuple(dict.fromkeys([self.reference, *(cell.variant for cell in self.cells)]))

    def cell(self, run_id: str) -> Cell:
        for cell in self.cells:
            if cell.run.run_id == run_id:
                return cell
        raise BadInput(f"no run {run_id} in this grid")

    def flops_per_token(self, cell: Cell) -> float:
        """Training FLOPs per token under the grid's convention."""
        return budget.train_flops_per_token(cell.run.arch, cell.run.data.seq_len, self.convention)

    def train_flops(self, cell: Cell) -> float:
        """Achieved training FLOPs."""
        return self.flops_per_token(cell) * cell.run.num_tokens

    def worst_held_error(self, cell: Cell) -> float:
        """The largest absolute error of what this grid holds equal; 0 where it holds nothing."""
        errors = self.match_errors(cell)
        return max((abs(errors[name]) for name in match.HELD[self.held]), default=0.0)

    def match_errors(self, cell: Cell) -> dict[str, float]:
        """Every budget of the cell over the paired baseline's, minus one."""
        return match.relative_errors(
            cell.run.arch, cell.baseline, context=cell.run.data.seq_len, convention=self.convention
        )


def describe(cell: Cell) -> str:
    """A cell for people: rendered from its columns, never parsed back."""
    arch = cell.run.arch
    return (
        f"{cell.variant} width {arch.d_model} at {cell.budget_flops:.3g} FLOPs, rate {cell.run.optim.peak_lr:.3g}, "
        f"seed {cell.run.seed}, {cell.role}"
    )


def isoflop(
    *,
    ladder: Sequence[ArchSpec],
    sizes: Mapping[float, Sequence[int]],
    variants: Sequence[Variant],
    recipe: Recipe,
    seeds: Sequence[int],
    matcher: Callable[[ArchSpec, ArchSpec], "match.Match"] | None,
    held: str,
    bound: float,
    convention: str = "model",
    extra_seeds: Mapping[tuple[float, int], Sequence[int]] | None = None,
    predictions: Mapping[float, Sequence[int]] | None = None,
    expected_optimum: Callable[[float], float] | None = None,
) -> Grid:
    """An IsoFLOP grid of matched pairs.

    ladder: baselines, smallest first. sizes: budget in FLOPs -> indices into the ladder that are trained at it.
    variants: functions ArchSpec -> ArchSpec, the first being the reference. matcher(baseline, variant's arch) gives
    the Match whose architecture is trained; None trains the variant as it is. recipe(arch, budget) says how a cell
    is trained. extra_seeds: (budget, size) -> further seeds of the reference, for the seed spread. predictions:
    budgets that are trained last, after their loss was predicted. expected_optimum(budget): num_params at which the
    minimum is expected, used only to warn of one-sided grids.

    Raises BadInput: a ladder entry or a budget that no cell uses, an index outside the ladder, a pair matched worse
    than `bound`, a pair with unequal data, fewer than MIN_STEPS steps, two cells that are the same run.
    """
    _check_listed(ladder=ladder, variants=variants, seeds=seeds)
    _check_sizes(ladder, sizes, predictions or {})
    _check_labels(variants)
    reference = variants[0].__name__
    archs = _matched(ladder, variants, matcher, bound)

    def cell(budget_flops: float, size: int, variant: str, seed: int, role: str) -> Cell:
        arch = archs[size, variant]
        optim, data = recipe(arch, budget_flops)
        if data != recipe(ladder[size], budget_flops)[1]:
            raise BadInput(f"the recipe gives {variant} of size {size} other data than its baseline: pairs share data")
        per_step = budget.train_flops_per_token(arch, data.seq_len, convention) * data.tokens_per_step
        num_steps = round(budget_flops / per_step)
        if num_steps < MIN_STEPS:
            raise BadInput(
                f"{variant} of size {size} gets {num_steps} steps from {budget_flops:.3g} FLOPs: "
                f"give a smaller batch or size, at least {MIN_STEPS} steps are needed"
            )
        run = RunSpec(arch=arch, optim=optim, data=data, num_steps=num_steps, seed=seed)
        return Cell(
            run=run, variant=variant, size=size, role=role, budget_flops=float(budget_flops), baseline=ladder[size]
        )

    labels = [variant.__name__ for variant in variants]
    cells = [
        cell(flops, size, label, seed, "grid")
        for flops in sorted(sizes)
        for size in sizes[flops]
        for label in labels
        for seed in seeds
    ]
    for (flops, size), extra in (extra_seeds or {}).items():
        if flops not in sizes or size not in sizes[flops]:
            raise BadInput(f"extra_seeds names budget {flops:.3g}, size {size}, which is no cell of the grid")
        cells += [cell(flops, size, reference, seed, "seed") for seed in extra]
    for flops, indices in (predictions or {}).items():
        if flops <= max(sizes):
            raise BadInput(f"prediction at {flops:.3g} FLOPs is not above the largest budget {max(sizes):.3g}")
        cells += [cell(flops, size, label, seeds[0], "prediction") for size in indices for label in labels]
    return Grid(
        cells=tuple(cells),
        design="isoflop",
        reference=reference,
        held=held,
        bound=bound,
        convention=convention,
        expected_optimum=expected_optimum,
    )


def _matched(
    ladder: Sequence[ArchSpec],
    variants: Sequence[Variant],
    matcher: Callable[[ArchSpec, ArchSpec], "match.Match"] | None,
    bound: float,
) -> dict[tuple[int, str], ArchSpec]:
    """(size, label) -> the architecture that is trained."""
    if not (isinstance(bound, int | float) and bound >= 0):
        raise BadInput(f"bound is {bound!r}: give a relative error, such as 0.04")
    archs = {}
    for index, baseline in enumerate(ladder):
        for variant in variants:
            arch = variant(baseline)
            if not isinstance(arch, ArchSpec):
                raise BadInput(f"variant {variant.__name__} gives {arch!r} of size {index}: it must give an ArchSpec")
            if arch != baseline and matcher is not None:
                arch = _within(matcher(baseline, arch), bound).arch
            archs[index, variant.__name__] = arch
    return archs


def _within(found: "match.Match", bound: float) -> "match.Match":
    if not isinstance(found, match.Match):
        raise BadInput(f"the matcher gives a {type(found).__name__}: return what smelt.match.match gives, a Match")
    if not found.within(bound):
        raise BadInput(found.reason or f"the matcher's best is {found.worst:.2%} off, the grid's bound is {bound:.2%}")
    return found


def _check_listed(**given: Sequence[object]) -> None:
    for name, values in given.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise BadInput(f"{name} is {values!r}: give a list with at least one")


def _check_labels(variants: Sequence[Variant]) -> None:
    """A variant's name is its label in every row, so it has one that says something, and no two have the same."""
    labels = [getattr(variant, "__name__", None) for variant in variants]
    for variant, label in zip(variants, labels, strict=True):
        if not callable(variant) or label in (None, "<lambda>"):
            raise BadInput(f"variant {variant!r} has no name to label its runs: give a function made with def")
        if labels.count(label) > 1:
            raise BadInput(f"two variants are named {label}: give each a name of its own")


def _check_sizes(
    ladder: Sequence[ArchSpec], sizes: Mapping[float, Sequence[int]], predictions: Mapping[float, Sequence[int]]
) -> None:
    used: set[int] = set()
    for index, arch in enumerate(ladder):
        if not isinstance(arch, ArchSpec):
            raise BadInput(f"size {index} of the ladder is {arch!r}: give an ArchSpec")
    for given in (sizes, predictions):
        if not isinstance(given, Mapping):
            raise BadInput(f"{given!r} is no mapping: give budget in FLOPs -> indices into the ladder")
    if not sizes:
        raise BadInput("sizes is empty: give at least one budget with its indices into the ladder")
    for flops, indices in {**sizes, **predictions}.items():
        _check_amount("budget", "FLOPs", flops)
        if not isinstance(indices, Sequence) or not indices:
            raise BadInput(f"budget {flops:.3g} has no size: give indices into the ladder or drop the budget")
        for index in indices:
            if type(index) is not int or not 0 <= index < len(ladder):
                raise BadInput(f"budget {flops:.3g} names size {index!r}, the ladder has 0 to {len(ladder) - 1}")
        used |= set(indices)
    if unused := sorted(set(range(len(ladder))) - used):
        raise BadInput(
            f"size {unused[0]} of the ladder (width {ladder[unused[0]].d_model}) is used by no budget: drop it"
        )


def _check_amount(what: str, unit: str, value: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise BadInput(f"{what} {value!r} is no positive number of {unit}")


def horizons(
    *,
    ladders: Mapping[str, Sequence[ArchSpec]],
    num_tokens: Sequence[float],
    recipe: Recipe,
    seeds: Sequence[int],
    held: str,
    bound: float,
    convention: str = "model",
) -> Grid:
    """Given pairs at given token counts: the design of a paper whose shapes are printed rather than matched.

    ladders: label -> architectures, the first label being the reference; the i-th of each are a pair. recipe(arch,
    num_tokens). The budget of a cell is what its baseline spends on num_tokens, so that a pair shares it; both train
    on num_tokens. Raises BadInput for ladders of unequal length and for pairs worse than `bound`."""
    _check_listed(ladders=list(ladders), num_tokens=num_tokens, seeds=seeds)
    for tokens in num_tokens:
        _check_amount("horizon", "tokens", tokens)
    (reference, baselines), *_ = ladders.items()
    cells = []
    for label, archs in ladders.items():
        if len(archs) != len(baselines):
            raise BadInput(f"{label} has {len(archs)} architectures, {reference} has {len(baselines)}: give pairs")
    for tokens in sorted(num_tokens):
        for size, baseline in enumerate(baselines):
            for label, archs in ladders.items():
                optim, data = recipe(archs[size], tokens)
                num_steps = round(tokens / data.tokens_per_step)
                spent = budget.train_flops_per_token(baseline, data.seq_len, convention)
                for seed in seeds:
                    run = RunSpec(arch=archs[size], optim=optim, data=data, num_steps=num_steps, seed=seed)
                    cells.append(
                        Cell(
                            run=run,
                            variant=label,
                            size=size,
                            role="grid",
                            budget_flops=spent * run.num_tokens,
                            baseline=baseline,
                        )
                    )
    grid = Grid(
        cells=tuple(cells),
        design="horizons",
        reference=reference,
        held=held,
        bound=bound,
        convention=convention,
        expected_optimum=None,
    )
    for cell in cells:
        errors = grid.match_errors(cell)
        for name in match.HELD[held]:
            if abs(errors[name]) > bound:
                raise BadInput(
                    f"{describe(cell)}: {name} is {errors[name]:+.2%} off its baseline, the bound is {bound:.0%}"
                )
    return grid


def branches(
    *,
    ladder: Sequence[ArchSpec],
    variants: Sequence[Variant],
    recipe: Callable[[ArchSpec], tuple[OptimSpec, DataSpec]],
    seeds: Sequence[int],
    matcher: Callable[[ArchSpec, ArchSpec], "match.Match"] | None,
    held: str,
    bound: float,
    num_tokens: Sequence[float] | None = None,
    fork_steps: Sequence[int] | None = None,
    convention: str = "model",
) -> Grid:
    """Matched pairs at several horizons, those of one architecture and seed being branches of one trunk (`trunk`): one
    constant-rate run that is left at several steps to decay, so that many token counts cost little more than one.

    recipe(arch) gives one OptimSpec for all horizons: wsd, the warm-up in whole steps, the decay in steps (SMELT: 10 B
    tokens) or as a share of each run (Foil: 10 %). Horizons are token counts at the end of the decay, or the steps at
    which the trunk is left. ladder, variants and matcher are those of `isoflop`; the budget of a cell is what its
    baseline spends, as in `horizons`. To continue is to add a longer horizon: it moves no other run, and as long as it
    is planned and not trained, the state that it begins from is kept.

    An `isoflop` grid whose recipe states the warm-up in steps shares trunks just so, a trunk decaying at each of its
    budgets. Raises BadInput where branches of a size share no trunk, and as `isoflop` does."""
    _check_listed(ladder=ladder, variants=variants, seeds=seeds)
    _check_labels(variants)
    if (num_tokens is None) == (fork_steps is None):
        raise BadInput("branches want one of num_tokens (at the end of a run) and fork_steps (where its decay begins)")
    horizons = num_tokens if fork_steps is None else fork_steps
    _check_listed(**{"num_tokens" if fork_steps is None else "fork_steps": horizons})
    for horizon in horizons:
        _check_amount("horizon", "tokens" if fork_steps is None else "steps", horizon)
    archs = _matched(ladder, variants, matcher, bound)
    cells = []
    for horizon in sorted(horizons):
        for (size, label), arch in archs.items():
            name, baseline = f"{label} of size {size}", ladder[size]
            optim, data = recipe(arch)
            _check_constant_rate(optim, name)
            num_steps = round(horizon / data.tokens_per_step) if fork_steps is None else _num_steps(optim, horizon)
            of_baseline, its_data = recipe(baseline)
            if data != its_data or optim.num_decay_steps(num_steps) != of_baseline.num_decay_steps(num_steps):
                raise BadInput(f"the recipe gives {name} other data or decay than its baseline: pairs share both")
            for seed in seeds:
                run = RunSpec(arch=arch, optim=optim, data=data, num_steps=num_steps, seed=seed)
                _check_branch(run, name)
                spent = budget.train_flops_per_token(baseline, data.seq_len, convention) * run.num_tokens
                cells.append(
                    Cell(run=run, variant=label, size=size, role="grid", budget_flops=spent, baseline=baseline)
                )
    return Grid(
        cells=tuple(cells),
        design="branches",
        reference=variants[0].__name__,
        held=held,
        bound=bound,
        convention=convention,
        expected_optimum=None,
    )


def _num_steps(optim: OptimSpec, fork_step: float) -> int:
    """The length of the run that leaves its trunk at `fork_step`."""
    if fork_step != int(fork_step):
        raise BadInput(f"fork_steps has {fork_step}: give whole steps")
    num_steps = int(fork_step)
    while (missing := int(fork_step) - (num_steps - optim.num_decay_steps(num_steps))) > 0:
        num_steps += missing
    return num_steps


def _check_constant_rate(optim: OptimSpec, name: str) -> None:
    """Branches have a constant rate to leave, and a warm-up that does not depend on when they leave."""
    if optim.schedule != "wsd" or optim.decay_frac == 1.0:
        raise BadInput(f"{name} decays throughout: branches leave a constant rate, give wsd with a decay_frac below 1")
    if optim.warmup_frac > 0:
        raise BadInput(f"{name} warms up over a share of its steps, another at each horizon: give warmup_steps")


def _check_branch(run: RunSpec, name: str) -> None:
    fork_step = trunk.trunk_of(run).fork_step
    if fork_step < max(1, run.optim.num_warmup_steps(run.num_steps)):
        raise BadInput(
            f"{name} would leave its trunk at step {fork_step} of {run.num_steps}, within its warm-up: give a longer "
            "horizon, a shorter warm-up or a shorter decay"
        )
    if run.num_steps < MIN_STEPS:
        raise BadInput(f"{name} gets {run.num_steps} steps: give a smaller batch, at least {MIN_STEPS} are needed")


def only(
    grid: Grid,
    *,
    budgets_flops: Sequence[float] | None = None,
    roles: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    variants: Sequence[str] | None = None,
) -> Grid:
    """The cells at these budgets, of these roles, sizes and variants. Raises BadInput where nothing is left."""

    def kept(cell: Cell) -> bool:
        return (
            (budgets_flops is None or cell.budget_flops in budgets_flops)
            and (roles is None or cell.role in roles)
            and (sizes is None or cell.size in sizes)
            and (variants is None or cell.variant in variants)
        )

    return replace(grid, cells=tuple(cell for cell in grid.cells if kept(cell)))


def sweep(base: Grid, changes: Mapping[str, Callable[[RunSpec], RunSpec]]) -> Grid:
    """The cells of `base` again under each named change (a rate times 2, another batch): a tuning check.

    The label of a change is appended to the variant ("smelt, rate x2"), so that each arm of the sweep is a group."""
    if not changes:
        raise BadInput("the sweep has no change: give at least one under its label")
    cells = []
    for cell in base.cells:
        for label, change in changes.items():
            cells.append(
                Cell(
                    run=change(cell.run),
                    variant=f"{cell.variant}, {label}" if label else cell.variant,
                    size=cell.size,
                    role=cell.role,
                    budget_flops=cell.budget_flops,
                    baseline=cell.baseline,
                )
            )
    return Grid(
        cells=tuple(cells),
        design=base.design,
        reference=cells[0].variant,
        held=base.held,
        bound=base.bound,
        convention=base.convention,
        expected_optimum=base.expected_optimum,
    )
