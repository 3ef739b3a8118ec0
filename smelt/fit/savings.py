"""Two frontiers in; the compute that the target saves over the reference, at budgets or losses, and their crossing out.

    saving(C) = 1 - C / C_ref,     C_ref: where the reference's frontier reaches the loss that the target has at C
    gain(l)   = C_ref(l) / C(l),   the computes at which the two reach a loss l

A saving of 0.15 says: the reference needs C / 0.85 for the same loss. Negative is a loss of compute. Draws of the two
frontiers are taken pairwise, so frontiers from one joint bootstrap keep what matched runs share; frontiers that were
drawn apart are treated as independent. It does not know whether the pairs were matched in their budgets.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from smelt.fit import tables, traded
from smelt.fit.frontier import Frontier
from smelt.fit.result import Estimate, Flag, estimate

# Beyond this factor outside the reference's data an inverted frontier is an opinion of its form, not of the rows.
MAX_EXTRAPOLATION = 10.0
# Crossings are sought this many e-folds either side of the data, beyond anything that will be trained.
CROSSING_REACH_LOG = 40.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """The saving at one budget of the target.

    estimate        as a fraction; value None with the reason where it cannot be had
    reference_flops what the reference needs for the same loss, None where it never gets there
    extrapolation   the largest factor by which C or C_ref leaves its own frontier's data (1 inside)
    unreached_frac  the share of draws in which the reference never reaches the loss (they count as a saving of 1)
    share_positive  the share of draws that save compute
    """

    budget_flops: float
    target_loss: float
    estimate: Estimate
    reference_flops: float | None
    extrapolation: float
    unreached_frac: float | None
    share_positive: float | None
    warnings: tuple[Flag, ...]


def savings(target: Frontier, reference: Frontier, budgets_flops: Sequence | np.ndarray) -> list[Saving]:
    """The compute-equivalent saving at each budget, with 95 % intervals from joint draws where both have them.

    A target's loss at or below the reference's floor, or an inversion more than ten times outside the reference's
    data, gives no value but the reason. Up to ten times outside is flagged "extrapolated". A curve is a call with
    many budgets. Two `currency.ServingFrontier` in place of frontiers give savings of total cost.

    >>> from smelt.fit.frontier import given_frontier
    >>> half = given_frontier(0.0, 10.0 * 2**-0.1, 0.1, (1e18, 1e20)), given_frontier(0.0, 10.0, 0.1, (1e18, 1e20))
    >>> round(savings(*half, [1e19])[0].estimate.value, 6)
    0.5
    """
    budgets = tables.asked("budgets_flops", budgets_flops)
    found = []
    for budget in budgets:
        loss = float(target.loss(budget))
        needed = float(reference.compute(loss))
        reason, outside = None, target.outside(budget)
        if np.isnan(needed):  # of one law or the other the loss falls to an end of all sizes there
            reason = traded.NO_OPTIMUM
        elif not np.isfinite(needed):
            reason = f"the target's loss {loss:.4g} is not above the reference's floor {reference.floor:.4g}"
        else:
            outside = max(outside, reference.outside(needed))
        reason = reason or too_far(outside)
        draws = None
        num = shared_draws(target, reference)
        if num:
            need = reference.compute_draws(target.loss_draws([budget])[:num, 0])
            with np.errstate(divide="ignore"):  # a frontier so steep that it needs no compute saves -infinity
                draws = 1 - budget / need
        found.append(
            written(
                budget,
                loss,
                None if reason is not None else 1 - budget / needed,
                draws,
                reference_flops=needed,
                outside=outside,
                reason=reason,
                method="both frontiers inverted draw by draw",
                spread=max(target.spread, reference.spread),
            )
        )
    return found


def written(
    budget: float,
    loss: float,
    value: float | None,
    draws: np.ndarray | None,
    *,
    reference_flops: float,
    outside: float,
    reason: str | None,
    method: str,
    spread: float = 1.0,
    warnings: Sequence[Flag] = (),
) -> Saving:
    """A saving with its interval and flags; `value` is None where there is a `reason`."""
    usable = None if draws is None else draws[~np.isnan(draws)]
    known = usable is not None and usable.size > 0
    return Saving(
        budget_flops=float(budget),
        target_loss=loss,
        estimate=estimate(value, draws, method=method, spread=spread, reason=reason),
        reference_flops=reference_flops if np.isfinite(reference_flops) else None,
        extrapolation=float(outside),
        unreached_frac=float(np.mean(usable == 1.0)) if known else None,
        share_positive=float(np.mean(usable > 0)) if known else None,
        warnings=(*_flags(f"{budget:.3g} FLOPs", outside, reason), *warnings),
    )


def too_far(outside: float) -> str | None:
    """The reason why an extrapolation gives no number, or None."""
    if outside <= MAX_EXTRAPOLATION:
        return None
    return f"it extrapolates {outside:.3g} times beyond the data, above {MAX_EXTRAPOLATION:g}"


def shared_draws(target: Frontier, reference: Frontier) -> int:
    """The number of draws that both have."""
    if target.draws is None or reference.draws is None:
        return 0
    return min(len(next(iter(frontier.draws.values()))) for frontier in (target, reference))


def _flags(where: str, outside: float | None, reason: str | None) -> list[Flag]:
    if reason is not None:
        return [Flag(code="no_saving", message=f"no saving at {where}: {reason}")]
    if outside is not None and outside > 1 + 1e-6:
        message = f"at {where} the saving extrapolates {outside:.3g} times beyond the data"
        return [Flag(code="extrapolated", message=message)]
    return []


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The compute-equivalent gain at one loss.

    gain            C_ref / C, above 1 where the target needs less; saving is 1 - C / C_ref
    extrapolation   the largest factor by which C or C_ref leaves its own frontier's data (1 inside); None unreached
    unreached_frac  the share of draws in which a frontier never reaches the loss (a gain of 0 or infinity, by which)
    share_positive  the share of draws with a gain above 1
    """

    loss: float
    gain: Estimate
    saving: Estimate
    target_flops: float | None
    reference_flops: float | None
    extrapolation: float | None
    unreached_frac: float | None
    share_positive: float | None
    warnings: tuple[Flag, ...]


def gain_at_loss(target: Frontier, reference: Frontier, losses: Sequence | np.ndarray) -> list[Gain]:
    """The compute-equivalent gain at each loss, with 95 % intervals from joint draws where both have them.

    Refusals and flags are those of `savings`. The gain is a curve, not a number: where the exponents differ it grows
    or shrinks with scale (Gundlach et al., arXiv 2511.21622).

    >>> from smelt.fit.frontier import given_frontier
    >>> pair = given_frontier(1.5, 8.0, 0.1, (1e18, 1e21)), given_frontier(1.5, 10.0, 0.1, (1e18, 1e21))
    >>> round(gain_at_loss(*pair, [1.6])[0].gain.value, 3)  # (10 / 8) ** (1 / 0.1)
    9.313
    """
    found = []
    for loss in tables.asked("losses", losses):
        ours, theirs = float(target.compute(loss)), float(reference.compute(loss))
        reason = outside = None
        for who, needed, frontier in (("target", ours, target), ("reference", theirs, reference)):
            if reason is None and np.isnan(needed):
                reason = traded.NO_OPTIMUM
            elif reason is None and not np.isfinite(needed):
                reason = f"the loss {loss:.4g} is not above the {who}'s floor {frontier.floor:.4g}"
        if reason is None:
            outside = max(target.outside(ours), reference.outside(theirs))
            reason = too_far(outside)
        gain_R = saving_R = unreached = positive = None
        num = shared_draws(target, reference)
        if num:
            loss_R = np.full(num, loss)
            ours_R, theirs_R = target.compute_draws(loss_R), reference.compute_draws(loss_R)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                gain_R, saving_R = theirs_R / ours_R, 1 - ours_R / theirs_R
            drawn = ~(np.isnan(ours_R) | np.isnan(theirs_R))
            if drawn.any():
                unreached = float(np.mean(np.isinf(ours_R[drawn]) | np.isinf(theirs_R[drawn])))
                positive = float(np.mean(gain_R[drawn] > 1))
        method, spread = "both frontiers inverted draw by draw", max(target.spread, reference.spread)
        value = None if reason is not None else theirs / ours
        found.append(
            Gain(
                loss=float(loss),
                gain=estimate(value, gain_R, method=method, spread=spread, reason=reason),
                saving=estimate(
                    None if value is None else 1 - 1 / value, saving_R, method=method, spread=spread, reason=reason
                ),
                target_flops=ours if np.isfinite(ours) else None,
                reference_flops=theirs if np.isfinite(theirs) else None,
                extrapolation=outside,
                unreached_frac=unreached,
                share_positive=positive,
                warnings=tuple(_flags(f"a loss of {loss:.4g}", outside, reason)),
            )
        )
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where two frontiers have the same loss at the same compute.

    compute        in FLOPs; value None with the reason where they do not cross, or too far outside the data
    loss           there
    better_above   the target is the better one above the crossing; None without one
    extrapolation  the larger factor by which the crossing leaves a frontier's data (1 inside both)
    crossing_frac  the share of draws that cross the same way; the others count as a crossing at 0 or at infinity,
                   by which frontier is the better one throughout
    """

    compute: Estimate
    loss: float | None
    better_above: bool | None
    extrapolation: float | None
    crossing_frac: float | None
    warnings: tuple[Flag, ...]


def crossing(target: Frontier, reference: Frontier) -> Crossing:
    """The compute at which the two frontiers cross, nearest the data that both cover, with a 95 % interval.

    Inside those data it is flagged "frontiers_cross": which of the two is better depends on the budget there, and one
    number of saving is none. Up to ten times outside it is flagged "extrapolated", beyond that it gives no value but
    the reason. Two frontiers cross at most once in either direction.

    >>> from smelt.fit.frontier import given_frontier
    >>> pair = given_frontier(0.0, 20.0, 0.2, (1e8, 1e12)), given_frontier(0.0, 2.0, 0.1, (1e8, 1e12))
    >>> round(crossing(*pair).compute.value)  # 20 C^-0.2 = 2 C^-0.1
    10000000000
    """
    low = max(target.compute_range_flops[0], reference.compute_range_flops[0])
    high = min(target.compute_range_flops[1], reference.compute_range_flops[1])
    middle = 0.5 * (np.log(low) + np.log(high))
    ends = sorted((np.log(low), np.log(high)))
    (down, up, gap) = (float(value[0]) for value in _all_crossings(target, reference, ends, None))
    roots = [root for root in (down, up) if np.isfinite(root)]
    method = "the frontiers crossed draw by draw"
    if not roots:
        which = "the same as" if gap == 0 else "below" if gap < 0 else "above"
        where = "at every compute" if _are_powers(target, reference) else "as far as ten times outside the data"
        reason = f"the target's frontier is {which} the reference's {where}"
        return Crossing(
            compute=estimate(None, method=method, reason=reason),
            loss=None,
            better_above=None,
            extrapolation=None,
            crossing_frac=None,
            warnings=(),
        )
    root = min(roots, key=lambda value: abs(value - middle))
    better_above = root == down
    compute = float(np.exp(root))
    outside = max(target.outside(compute), reference.outside(compute))
    reason = too_far(outside)
    if reason is not None:
        reason = f"the frontiers cross at {compute:.3g} FLOPs: {reason}"
    draws, frac = None, None
    num = shared_draws(target, reference)
    if num:
        down_R, up_R, gap_R = _all_crossings(target, reference, ends, num)
        same_R, other_R = (down_R, up_R) if better_above else (up_R, down_R)
        # Better throughout: what is sought lies below all computes where the target wins above it, else beyond them.
        never_R = np.where((gap_R < 0) == better_above, -np.inf, np.inf)
        never_R = np.where(np.isnan(gap_R) | np.isfinite(other_R), np.nan, never_R)
        draws = np.exp(np.where(np.isfinite(same_R), same_R, never_R))
        drawn = ~np.isnan(gap_R)
        frac = float(np.mean(np.isfinite(same_R[drawn]))) if drawn.any() else None
    flags = []
    if reason is None and outside > 1 + 1e-6:
        message = f"the frontiers cross at {compute:.3g} FLOPs, {outside:.3g} times outside the data"
        flags.append(Flag(code="extrapolated", message=message))
    elif reason is None:
        who = "target" if better_above else "reference"
        message = f"the frontiers cross at {compute:.3g} FLOPs, inside the data: above it the {who} is the better one"
        flags.append(Flag(code="frontiers_cross", message=message))
    return Crossing(
        compute=estimate(
            None if reason is not None else compute,
            draws,
            method=method,
            spread=max(target.spread, reference.spread),
            reason=reason,
        ),
        loss=float(target.loss(compute)),
        better_above=better_above,
        extrapolation=float(outside),
        crossing_frac=frac,
        warnings=tuple(flags),
    )


def _are_powers(target: Frontier, reference: Frontier) -> bool:
    return isinstance(target, Frontier) and isinstance(reference, Frontier)


def _all_crossings(
    target: Frontier, reference: Frontier, ends: Sequence[float], num_draws: int | None
) -> tuple[np.ndarray, ...]:
    """`_crossings` of the point, or of draws. Frontiers that are no power law are searched no further than a saving
    may extrapolate."""
    if not _are_powers(target, reference):
        reach = np.log(MAX_EXTRAPOLATION)
        return traded.crossings(target, reference, (ends[0] - reach, ends[1] + reach), num_draws)
    window = (ends[0] - CROSSING_REACH_LOG, ends[1] + CROSSING_REACH_LOG)
    names = ("floor", "log_coefficient", "exponent")
    if num_draws is None:
        return _crossings(*([np.array([getattr(f, name)]) for name in names] for f in (target, reference)), window)
    return _crossings(*([f.draws[name][:num_draws] for name in names] for f in (target, reference)), window)


def _crossings(ours: Sequence, theirs: Sequence, window: tuple[float, float]) -> tuple[np.ndarray, ...]:
    """ln C where target minus reference falls through zero, where it rises through zero, and its sign in the middle.

    For floor + exp(p - g ln C) of both, arrays of draws. The difference has one stationary point at most, so that it
    is monotone on either side of it: two bisections find whatever there is. NaN where there is no such crossing.
    """
    (floor, p, g), (floor_ref, p_ref, g_ref) = ours, theirs

    def gap(u: np.ndarray) -> np.ndarray:
        return floor - floor_ref + np.exp(p - g * u) - np.exp(p_ref - g_ref * u)

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        turn = (p - p_ref + np.log(g / g_ref)) / (g - g_ref)
        turn = np.clip(np.where(np.isnan(turn), window[0], turn), *window)
        ends = np.full_like(turn, window[0]), turn, np.full_like(turn, window[1])
        falling, rising = np.full_like(turn, np.nan), np.full_like(turn, np.nan)
        for left, right in (ends[:2], ends[1:]):
            at_left, at_right = gap(left), gap(right)
            low, high = left, right
            for _ in range(60):
                middle = 0.5 * (low + high)
                same = np.sign(gap(middle)) == np.sign(at_left)
                low, high = np.where(same, middle, low), np.where(same, high, middle)
            falling = np.where((at_left > 0) & (at_right < 0), low, falling)
            rising = np.where((at_left < 0) & (at_right > 0), low, rising)
        return falling, rising, np.sign(gap(np.full_like(turn, np.mean(window))))
