"""Two frontiers and budgets in, the share of compute that the target saves over the reference out.

    saving(C) = 1 - C / C_ref,    C_ref: where the reference's frontier reaches the loss that the target has at C

0.15 says: the reference needs C / 0.85 for the same loss. Negative is a loss of compute. Draws of the two frontiers
are taken pairwise, so frontiers from one joint bootstrap keep what matched runs share; frontiers that were drawn
apart are treated as independent. It does not know whether the pairs were matched in their budgets.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from smelt.fit import tables
from smelt.fit.frontier import Frontier, inverted
from smelt.fit.result import Estimate, Flag, estimate

# Beyond this factor outside the reference's data an inverted frontier is an opinion of its form, not of the rows.
MAX_EXTRAPOLATION = 10.0


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


def _outside(compute: float, covered: tuple[float, float]) -> float:
    return max(compute / covered[1], covered[0] / compute, 1.0)


def savings(target: Frontier, reference: Frontier, budgets_flops: Sequence | np.ndarray) -> list[Saving]:
    """The compute-equivalent saving at each budget, with 95 % intervals from joint draws where both have them.

    A target's loss at or below the reference's floor, or an inversion more than ten times outside the reference's
    data, gives no value but the reason. Up to ten times outside is flagged "extrapolated". A curve is a call with
    many budgets.

    >>> from smelt.fit.frontier import given_frontier
    >>> half = given_frontier(0.0, 10.0 * 2**-0.1, 0.1, (1e18, 1e20)), given_frontier(0.0, 10.0, 0.1, (1e18, 1e20))
    >>> round(savings(*half, [1e19])[0].estimate.value, 6)
    0.5
    """
    budgets = tables.positive("budgets_flops", budgets_flops)
    found = []
    for budget in budgets:
        loss = float(target.loss(budget))
        needed = float(reference.compute(loss))
        flags, reason, value = [], None, None
        outside = _outside(budget, target.compute_range_flops)
        if not np.isfinite(needed):
            reason = f"the target's loss {loss:.4g} is not above the reference's floor {reference.floor:.4g}"
        else:
            outside = max(outside, _outside(needed, reference.compute_range_flops))
            value = 1 - budget / needed
            if outside > MAX_EXTRAPOLATION:
                reason = f"it extrapolates {outside:.3g} times beyond the data, above {MAX_EXTRAPOLATION:g}"
                value = None
            elif outside > 1 + 1e-6:
                flags.append(
                    Flag(
                        code="extrapolated",
                        message=f"at {budget:.3g} FLOPs the saving extrapolates {outside:.3g} times beyond the data",
                    )
                )
        if reason is not None:
            flags.append(Flag(code="no_saving", message=f"no saving at {budget:.3g} FLOPs: {reason}"))
        draws = None
        if target.draws is not None and reference.draws is not None:
            num = min(len(target.draws["exponent"]), len(reference.draws["exponent"]))
            at = target.loss_draws([budget])[:num, 0]
            need = inverted(*(reference.draws[k][:num] for k in ("floor", "log_coefficient", "exponent")), at)
            with np.errstate(divide="ignore"):  # a frontier so steep that it needs no compute saves -infinity
                draws = 1 - budget / need
        usable = None if draws is None else draws[~np.isnan(draws)]
        known = usable is not None and usable.size > 0
        found.append(
            Saving(
                budget_flops=float(budget),
                target_loss=loss,
                estimate=estimate(value, draws, method="both frontiers inverted draw by draw", reason=reason),
                reference_flops=needed if np.isfinite(needed) else None,
                extrapolation=float(outside),
                unreached_frac=float(np.mean(usable == 1.0)) if known else None,
                share_positive=float(np.mean(usable > 0)) if known else None,
                warnings=tuple(flags),
            )
        )
    return found
