"""Points of training curves in, the lowest loss at every compute and power laws along it out (Approach 1, envelope).

    loss*(C) = min over runs of the loss that a run has at C;    size*(C), tokens*(C): those of that run

Curves are interpolated in logarithms and never extrapolated. The envelope is a staircase in size: one step for each
size trained. A power law through all of its points takes the treads of the smallest and the largest size, which hold
the ends because nothing smaller or larger was trained, for optima (`DISCRETENESS_NOTE`). The laws of size and tokens
therefore go through the hand-overs, where two sizes have one loss, at the geometric mean of the two; that of the loss
through the middles of the treads that have a hand-over at both ends. It does not know schedules: a point in the middle
of a decaying rate is no finished run of that length.

Arrays carry their axes: R runs, G grid points of compute.
"""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from smelt.errors import BadInput
from smelt.fit import intervals, tables
from smelt.fit.frontier import Frontier
from smelt.fit.isoflop import Allocation
from smelt.fit.result import Estimate, Flag, estimate

# Measured on noise-free curves of the replicated Chinchilla law, 0.5 to 200 tokens per parameter, true exponent .513.
DISCRETENESS_NOTE = (
    "An envelope steps from size to size. On noise-free curves of Chinchilla's law with exponent .513, a line through "
    "all its points gives .42, .45 and .42 for 6 and 8 sizes a factor 2 apart and 12 a factor 1.5 apart, a line "
    "through its hand-overs .513 each time. Runs that scatter draw the latter to smaller exponents, by 1 to 5 % "
    "where they scatter by 0.3 %, the more the closer the sizes are."
)
EARLY_FRAC = 0.05  # of a run's tokens: chosen
FEW_SIZES = 6  # chosen
LAWS = ("num_params", "num_tokens", "loss")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The lowest losses of training curves, and power laws of what is optimal in compute.

    compute_flops, num_params, num_tokens, loss   [num_points], where the curves of two sizes or more are to be had
    run              the run that is lowest there [num_points]
    handovers        compute_flops, num_params, num_tokens of each, in rising compute
    allocation       "num_params" and "num_tokens" against compute through the hand-overs; None with a reason
    frontier         loss = A C^-alpha through the middles of whole treads, with draws; None with a reason
    exponents_of_all_points   of size, tokens and loss, as Hoffmann et al. 2022 fitted them: biased, see the module
    runs_left_out    run -> reason
    """

    compute_flops: np.ndarray
    num_params: np.ndarray
    num_tokens: np.ndarray
    loss: np.ndarray
    run: tuple[Hashable, ...]
    handovers: dict[str, np.ndarray]
    allocation: dict[str, Allocation | None]
    frontier: Frontier | None
    exponents_of_all_points: dict[str, Estimate]
    reasons: dict[str, str]
    runs_left_out: dict[Hashable, str]
    warnings: tuple[Flag, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Curves:
    """Curves on one grid of compute, NaN where a run has none."""

    labels: list[Hashable]
    log_size_R: np.ndarray
    log_compute_G: np.ndarray
    log_loss_RG: np.ndarray
    log_tokens_RG: np.ndarray
    last_tokens_R: np.ndarray
    ranges: np.ndarray  # [R, 2] ln compute of the first and the last point


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Staircase:
    """The envelope of some of the runs."""

    covered_G: np.ndarray  # two sizes or more are to be had
    holder_G: np.ndarray
    log_loss_G: np.ndarray
    log_tokens_G: np.ndarray
    handovers: np.ndarray  # [num, 3] ln compute, ln size, ln tokens
    middles: np.ndarray  # [num, 2] ln compute, ln loss of whole treads
    pairs: list[tuple[int, int]]  # the runs of each hand-over
    cut_off: list[int]  # runs whose curve ends while it is the lowest


def envelope(
    run: Sequence[Hashable],
    num_params: Sequence | np.ndarray,
    num_tokens: Sequence | np.ndarray,
    loss: Sequence | np.ndarray,
    *,
    flops_per_unit: float | None = None,
    train_flops: Sequence | np.ndarray | None = None,
    skip_tokens: float = 0.0,
    finished_points: bool = False,
    num_points: int = 400,
    draws: int = 1000,
    seed: int = 0,
) -> Envelope:
    """Approach 1 of Hoffmann et al. 2022: one row a point of a run's training curve, several points a run.

    Compute is `train_flops` spent up to the point, or `flops_per_unit` * num_params * num_tokens (6 by Chinchilla's
    count): give one. Points before `skip_tokens` are left out (warm-up). `finished_points` says that every point is a
    finished run: the rate did not decay, or the finished runs of one size, of several lengths, are labelled as one
    curve. Intervals are percentiles of `draws` in which whole runs are resampled. Raises BadInput for a run that
    changes its size, repeats a point or goes back in compute, and where no two sizes have curves at one compute.
    """
    columns = {"num_params": num_params, "num_tokens": num_tokens, "loss": loss}
    table = tables.positive_columns(columns, list(columns))
    if (flops_per_unit is None) == (train_flops is None):
        raise BadInput("compute is not known, or known twice; give flops_per_unit (6) or train_flops, one of them")
    if train_flops is None:
        tables.number("flops_per_unit", flops_per_unit, "k of C = k N D, 6 by Chinchilla's count", low=0)
        table["train_flops"] = flops_per_unit * table["num_params"] * table["num_tokens"]
    else:
        table |= tables.positive_columns({"train_flops": train_flops}, ["train_flops"], len(table["loss"]))
    labels = tables.labels("run", run, len(table["loss"]))
    num_points = intervals.whole("num_points", num_points, 10, "give 10 or more, 400 for a smooth envelope")
    if skip_tokens != 0:
        tables.number("skip_tokens", skip_tokens, "the tokens of a warm-up, 0 or more", low=0)
    curves, left_out = _curves(labels, table, skip_tokens, num_points)
    stairs = _staircase(curves, np.arange(len(curves.labels)))
    slopes = _slopes(curves, stairs)
    slopes_D = _drawn(curves, draws, seed) if draws else {}
    covered = np.flatnonzero(stairs.covered_G)
    holder = stairs.holder_G[covered]
    compute = np.exp(curves.log_compute_G[covered])
    flags = _flags(curves, stairs, left_out, skip_tokens, finished_points)
    method = "through hand-overs of the envelope, whole runs resampled"
    reasons, allocation = {}, {}
    for name in ("num_params", "num_tokens"):
        if np.isnan(slopes[name][0]):
            allocation[name] = None
            reasons[name] = f"{len(stairs.handovers)} hand-overs between sizes; an exponent needs 2: train more sizes"
            continue
        allocation[name] = Allocation(
            quantity=name,
            exponent=estimate(float(slopes[name][0]), _first(slopes_D, name), method=method),
            log_coefficient=float(slopes[name][1]),
            budgets_flops=tuple(np.exp(stairs.handovers[:, 0]).tolist()),
            warnings=(),
        )
    frontier = None
    if np.isnan(slopes["loss"][0]):
        reasons["frontier"] = f"{len(stairs.middles)} sizes with a hand-over at both ends; the law of the loss needs 2"
    else:
        frontier = _frontier(slopes["loss"], slopes_D.get("loss"), stairs)
    return Envelope(
        compute_flops=compute,
        num_params=np.exp(curves.log_size_R[holder]),
        num_tokens=np.exp(stairs.log_tokens_G[covered]),
        loss=np.exp(stairs.log_loss_G[covered]),
        run=tuple(curves.labels[index] for index in holder),
        handovers=dict(zip(("compute_flops", "num_params", "num_tokens"), np.exp(stairs.handovers.T), strict=True)),
        allocation=allocation,
        frontier=frontier,
        exponents_of_all_points={
            name: estimate(
                float(slopes[f"all {name}"][0]),
                _first(slopes_D, f"all {name}"),
                method="through every point of the envelope, whole runs resampled",
            )
            for name in LAWS
        },
        reasons=reasons,
        runs_left_out=left_out,
        warnings=tuple(flags),
    )


def _first(slopes_D: Mapping[str, np.ndarray], name: str) -> np.ndarray | None:
    return slopes_D[name][:, 0] if name in slopes_D else None


def _curves(
    labels: Sequence[Hashable], table: Mapping[str, np.ndarray], skip_tokens: float, num_points: int
) -> tuple[_Curves, dict[Hashable, str]]:
    members: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        members.setdefault(label, []).append(row)
    left_out: dict[Hashable, str] = {}
    kept: dict[Hashable, np.ndarray] = {}
    for label in sorted(members, key=lambda value: (str(type(value)), str(value))):
        rows = np.array(members[label])
        sizes = table["num_params"][rows]
        if np.ptp(sizes) > 1e-6 * sizes.max():
            raise BadInput(
                f"run {label!r} has sizes {sizes.min():g} to {sizes.max():g}; give each size a run of its own"
            )
        rows = rows[np.argsort(table["num_tokens"][rows], kind="stable")]
        rows = rows[table["num_tokens"][rows] >= skip_tokens]
        for name in ("num_tokens", "train_flops"):
            steps = np.diff(table[name][rows])
            if (steps <= 0).any():
                where = table["num_tokens"][rows][int(np.argmax(steps <= 0)) + 1]
                raise BadInput(
                    f"run {label!r} repeats a point or goes back in {name} at {where:g} tokens; keep one point"
                )
        if len(rows) < 2:
            left_out[label] = f"{len(rows)} points at {skip_tokens:g} tokens or more; a curve needs 2"
            continue
        kept[label] = rows
    if not kept:
        raise BadInput("no run has two points; an envelope needs curves, finished runs alone need isoflop_minima")
    log = {name: np.log(values) for name, values in table.items()}
    ranges = np.array([[log["train_flops"][rows[0]], log["train_flops"][rows[-1]]] for rows in kept.values()])
    grid = np.linspace(ranges.min(), ranges.max(), num_points)

    def on_grid(name: str) -> np.ndarray:
        curves = (
            np.interp(grid, log["train_flops"][r], log[name][r], left=np.nan, right=np.nan) for r in kept.values()
        )
        return np.stack(list(curves))

    curves = _Curves(
        labels=list(kept),
        log_size_R=np.array([log["num_params"][rows[0]] for rows in kept.values()]),
        log_compute_G=grid,
        log_loss_RG=on_grid("loss"),
        log_tokens_RG=on_grid("num_tokens"),
        last_tokens_R=np.array([table["num_tokens"][rows[-1]] for rows in kept.values()]),
        ranges=ranges,
    )
    if not _staircase(curves, np.arange(len(kept))).covered_G.any():
        raise BadInput(
            f"no two sizes of {len(kept)} runs have curves at one compute; train them over ranges that overlap"
        )
    return curves, left_out


def _staircase(curves: _Curves, runs: np.ndarray) -> _Staircase:
    loss_RG, log_size_R = curves.log_loss_RG[runs], curves.log_size_R[runs]
    there_RG = ~np.isnan(loss_RG)
    smallest = np.where(there_RG, log_size_R[:, None], np.inf).min(axis=0)
    largest = np.where(there_RG, log_size_R[:, None], -np.inf).max(axis=0)
    covered_G = largest > smallest + 1e-9
    place_G = np.where(there_RG, loss_RG, np.inf).argmin(axis=0)
    index_G = np.arange(len(place_G))
    lowest_G, tokens_RG, x_G = loss_RG[place_G, index_G], curves.log_tokens_RG[runs], curves.log_compute_G
    handovers, pairs, cut_off, middles = [], [], [], []
    last = None  # ln compute of the hand-over that the present tread begins with
    size_G = log_size_R[place_G]
    for g in np.flatnonzero(covered_G[:-1] & covered_G[1:] & (np.abs(np.diff(size_G)) > 1e-9)):
        i, j = place_G[g], place_G[g + 1]
        if not (there_RG[i, g + 1] and there_RG[j, g]):
            if not there_RG[i, g + 1]:
                cut_off.append(int(runs[i]))
            last = None
            continue
        before, after = loss_RG[i, g] - loss_RG[j, g], loss_RG[i, g + 1] - loss_RG[j, g + 1]
        share = before / (before - after) if before < after else 0.5
        at = x_G[g] + share * (x_G[g + 1] - x_G[g])
        both = (i, j)
        tokens = np.mean([(1 - share) * tokens_RG[r, g] + share * tokens_RG[r, g + 1] for r in both])
        handovers.append((at, np.mean(log_size_R[list(both)]), tokens))
        pairs.append((int(runs[i]), int(runs[j])))
        if last is not None:
            middle = 0.5 * (last + at)
            middles.append((middle, np.interp(middle, x_G, lowest_G)))
        last = at
    return _Staircase(
        covered_G=covered_G,
        holder_G=runs[place_G],
        log_loss_G=lowest_G,
        log_tokens_G=tokens_RG[place_G, index_G],
        handovers=np.array(handovers).reshape(-1, 3),
        middles=np.array(middles).reshape(-1, 2),
        pairs=pairs,
        cut_off=cut_off,
    )


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope and intercept by least squares, NaN for fewer than two places."""
    if len(x) < 2 or np.ptp(x) < 1e-9:
        return np.nan, np.nan
    centre = x.mean()
    slope = float((x - centre) @ y / ((x - centre) @ (x - centre)))
    return slope, float(y.mean() - slope * centre)


def _slopes(curves: _Curves, stairs: _Staircase) -> dict[str, tuple[float, float]]:
    x, size, tokens = stairs.handovers.T
    where = stairs.covered_G
    x_all = curves.log_compute_G[where]
    return {
        "num_params": _line(x, size),
        "num_tokens": _line(x, tokens),
        "loss": _line(*stairs.middles.T),
        "all num_params": _line(x_all, curves.log_size_R[stairs.holder_G[where]]),
        "all num_tokens": _line(x_all, stairs.log_tokens_G[where]),
        "all loss": _line(x_all, stairs.log_loss_G[where]),
    }


def _drawn(curves: _Curves, draws: int, seed: int) -> dict[str, np.ndarray]:
    """Slopes and intercepts [draws, 2] of envelopes of resampled runs; a run drawn twice counts once."""
    counts_DR = intervals.joint_counts({"": list(range(len(curves.labels)))}, draws=draws, seed=seed)[""]
    found = [_slopes(curves, _staircase(curves, np.flatnonzero(counts_R))) for counts_R in counts_DR]
    return {name: np.array([slopes[name] for slopes in found]) for name in found[0]}


def _frontier(line: tuple[float, float], lines_D: np.ndarray | None, stairs: _Staircase) -> Frontier:
    draws = None
    if lines_D is not None:
        slope_D, intercept_D = lines_D.T
        floor_D = np.where(np.isnan(slope_D), np.nan, 0.0)
        draws = {"floor": floor_D, "log_coefficient": intercept_D, "exponent": -slope_D}
    low, high = np.exp(stairs.handovers[[0, -1], 0])
    method = "through the middles of whole treads, whole runs resampled"
    return Frontier(
        kind="envelope",
        floor=0.0,
        log_coefficient=line[1],
        exponent=-line[0],
        compute_range_flops=(float(low), float(high)),
        estimates={"exponent": estimate(-line[0], None if draws is None else draws["exponent"], method=method)},
        draws=draws,
    )


def _flags(
    curves: _Curves, stairs: _Staircase, left_out: Mapping, skip_tokens: float, finished_points: bool
) -> list[Flag]:
    flags = []

    def flag(code: str, message: str) -> None:
        flags.append(Flag(code=code, message=message))

    if left_out:
        label, reason = next(iter(left_out.items()))
        flag("runs_left_out", f"{len(left_out)} runs are left out (such as {label!r}: {reason})")
    if not finished_points:
        flag(
            "mid_schedule",
            "points in the middle of a decaying rate lie above a run that ends there; give finished runs, or say that "
            "these are (finished_points)",
        )
    sizes = np.unique(np.round(curves.log_size_R, 9))
    ranges = []
    for size in sizes:
        own = curves.ranges[np.abs(curves.log_size_R - size) < 1e-8]
        ranges.append((own[:, 0].min(), own[:, 1].max()))
    apart = [
        i for i in range(len(sizes) - 1) if max(ranges[i][0], ranges[i + 1][0]) >= min(ranges[i][1], ranges[i + 1][1])
    ]
    if apart:
        one, other = np.exp(sizes[apart[0]]), np.exp(sizes[apart[0] + 1])
        flag(
            "curves_do_not_overlap",
            f"{len(apart)} pairs of neighbouring sizes (such as {one:.3g} and {other:.3g}) share no compute: which is "
            "lower is not seen",
        )
    if stairs.cut_off:
        names = ", ".join(repr(curves.labels[index]) for index in dict.fromkeys(stairs.cut_off))
        flag(
            "lowest_curve_ends", f"runs end while they are the lowest ({names}): no hand-over there, train them longer"
        )
    where = stairs.covered_G
    held = curves.log_size_R[stairs.holder_G[where]]
    for end, word in ((sizes[0], "smaller"), (sizes[-1], "larger")):
        share = float(np.mean(np.abs(held - end) < 1e-8))
        if share > 1 / len(sizes):
            flag(
                "held_by_an_end",
                f"the size {np.exp(end):.3g} holds {share:.0%} of the envelope because none {word} was trained: its "
                "points there are no optima",
            )
    early = [
        curves.labels[r]
        for pair, (_, _, tokens) in zip(stairs.pairs, stairs.handovers, strict=True)
        for r in pair
        if np.exp(tokens) < EARLY_FRAC * curves.last_tokens_R[r]
    ]
    if early and not skip_tokens:
        flag(
            "early_points",
            f"{len(set(early))} runs (such as {early[0]!r}) meet others in their first {EARLY_FRAC:.0%}, where warm-up "
            "shows; leave it out with skip_tokens",
        )
    if len(sizes) < FEW_SIZES:
        flag("few_runs", f"{len(sizes)} sizes in {len(curves.labels)} runs: exponents and their intervals are rough")
    return flags
