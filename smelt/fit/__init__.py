"""Arrays of sizes, tokens, compute and losses in; laws, frontiers and savings with intervals and warnings out.

Useful alone: `from smelt import fit`. Knows nothing of training, of a ledger or of files.

    laws        a law is a value: a floor and power-law terms in named columns, some of them formulas of others
    jets        exact derivatives of a formula
    objective   the objective of a law and its derivatives
    solver      its certified minimum, many reweighted copies at once
    binding     a law and rows in groups -> the solver's problem and back
    checks      what cannot be fitted; what a fit cannot carry
    surface     Approach 3: fit_surface, bootstrap, predict
    shared      several groups in one fit with common exponents or floor: fit_shared, bootstrap_shared, efficiencies
    isoflop     Approach 2: isoflop_minima, correct_minima (without the parabola's bias), allocation
    envelope    Approach 1: envelope of training curves
    frontier    loss = E + A C^-alpha through points, or of a surface; optima of a surface
    traded      the same of laws of every form, found number by number over the size at fixed compute
    savings     two frontiers: savings at budgets, gain_at_loss, crossing
    currency    savings in a measured column, or with tokens to serve: currency_savings, serving_frontier
    link        accuracy against loss: fit_link, predict_accuracy
    diagnostics what a fit hangs on, where it fails and what to do: diagnose (leave_out, patterns: its parts)
    profiles    how the objective rises as a parameter is held elsewhere: profile
    jackknife   intervals from leaving budgets out in turn: jackknife; residual_bootstrap for those who ask
    nested      are exponents shared, is there a floor: shared_test, floor_test (refits: what all four share)
    groups      all of it for a table of runs in groups: fit_groups
    summary     the same as one plain dict: group_analysis
    answers     questions to fits of groups: optima, losses of runs, what is saved at budgets and at losses
    examine     diagnostics and tests of all groups
    noise       noise_from_rows: how runs scatter, alone and with their partner
    planning    power: what a design can tell and what it costs; search: cheapest, the designs that tell enough
"""

from smelt.fit.currency import (
    Arm,
    CostFit,
    ServingFrontier,
    currency_savings,
    fit_cost,
    serving_frontier,
    serving_optimum,
)
from smelt.fit.designs import Design, Points, design_points, standing_points
from smelt.fit.diagnostics import Diagnostics, diagnose
from smelt.fit.envelope import Envelope, envelope
from smelt.fit.frontier import (
    Frontier,
    Optimum,
    fit_frontier,
    given_frontier,
    surface_frontier,
    surface_optimum,
)
from smelt.fit.groups import Groups, fit_groups
from smelt.fit.intervals import joint_counts
from smelt.fit.isoflop import (
    Allocation,
    Correction,
    Minimum,
    allocation,
    correct_minima,
    correct_minima_of_groups,
    isoflop_minima,
    minima_of_groups,
)
from smelt.fit.jackknife import Jackknife, jackknife, residual_bootstrap
from smelt.fit.laws import (
    CHINCHILLA,
    FLOPS_TOKENS,
    PURE,
    SATURATING,
    SMELT,
    Effective,
    Law,
    Power,
    Shape,
    Term,
    decay,
    predicted_loss,
)
from smelt.fit.link import AccuracyPrediction, Link, fit_link, predict_accuracy
from smelt.fit.nested import NestedTest, floor_test, shared_test
from smelt.fit.noise import Noise, PilotNoise, given_noise, noise_from_rows
from smelt.fit.planning import Planned, Width, power
from smelt.fit.profiles import Profile, profile
from smelt.fit.result import Estimate, Flag, estimate, jsonable
from smelt.fit.savings import Crossing, Gain, Saving, crossing, gain_at_loss, savings
from smelt.fit.search import Candidate, cheapest
from smelt.fit.shared import SharedFit, bootstrap_shared, efficiencies, fit_shared
from smelt.fit.summary import group_analysis
from smelt.fit.surface import Prediction, SurfaceFit, bootstrap, fit_surface, predict
from smelt.fit.traded import TradedFrontier

__all__ = [
    "CHINCHILLA",
    "FLOPS_TOKENS",
    "PURE",
    "SATURATING",
    "SMELT",
    "AccuracyPrediction",
    "Allocation",
    "Arm",
    "Candidate",
    "Correction",
    "CostFit",
    "Crossing",
    "Design",
    "Diagnostics",
    "Effective",
    "Envelope",
    "Estimate",
    "Flag",
    "Frontier",
    "Gain",
    "Groups",
    "Jackknife",
    "Law",
    "Link",
    "Minimum",
    "NestedTest",
    "Noise",
    "Optimum",
    "PilotNoise",
    "Planned",
    "Points",
    "Power",
    "Prediction",
    "Profile",
    "Saving",
    "ServingFrontier",
    "Shape",
    "SharedFit",
    "SurfaceFit",
    "Term",
    "TradedFrontier",
    "Width",
    "allocation",
    "bootstrap",
    "bootstrap_shared",
    "cheapest",
    "correct_minima",
    "correct_minima_of_groups",
    "crossing",
    "currency_savings",
    "decay",
    "design_points",
    "diagnose",
    "efficiencies",
    "envelope",
    "estimate",
    "fit_cost",
    "fit_frontier",
    "fit_groups",
    "fit_link",
    "fit_shared",
    "fit_surface",
    "floor_test",
    "gain_at_loss",
    "given_frontier",
    "given_noise",
    "group_analysis",
    "isoflop_minima",
    "jackknife",
    "joint_counts",
    "jsonable",
    "minima_of_groups",
    "noise_from_rows",
    "power",
    "predict",
    "predict_accuracy",
    "predicted_loss",
    "profile",
    "residual_bootstrap",
    "savings",
    "serving_frontier",
    "serving_optimum",
    "shared_test",
    "standing_points",
    "surface_frontier",
    "surface_optimum",
]
