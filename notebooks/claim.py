# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From somebody's CSV to a claim that survives review
#
# How much training compute does routing save over dense models? We take a table that others published, and go from
# its columns to one sentence with an interval, asking on the way what a reviewer would ask. The last two sections say
# what the table supports, what it does not, and which grid would settle the rest.
#
# The rows: Aidan Clark, Diego de las Casas, Aurelia Guy, Arthur Mensch and others, "Unified Scaling Laws for Routed
# Language Models", arXiv 2202.01169, used under CC BY 4.0; what was changed stands in `fits/tables/README.md`. All
# their models read the same 130 billion tokens. Nothing is trained and nothing defined here; the same from a
# terminal:
#
#     smelt fit --csv fits/tables/clark.csv --law saturating --group router_type --reference Dense \
#         --columns compute_flops=flops_per_step*747000 num_params=dense_parameter_count \
#         num_params_total=total_parameter_count loss_nats=loss_c4 pair=model_size_label seed=seed \
#         --where "k=1" "routing_frequency=0.5" "num_experts=1|64" "router_type=Dense|S-Base"

# %%
from collections import Counter

import numpy as np
from IPython.display import SVG, Markdown

from smelt import committed, fit, fitted, foreign
from smelt.errors import BadInput
from smelt.fit import answers, examine
from smelt.report import figures, fit_figures, fits, style, tables
from smelt.terminal import table as drawn

PATH = committed.folder_of("quickstart") / "tables" / "clark.csv"
STEPS, TOKENS = 249_000, 130e9  # of every run that is kept below: the column `step`, and the paper
print("\n".join(PATH.read_text().splitlines()[:3]))

# %% [markdown]
# ## 1. Which column is what
#
# | ours | theirs | unit, and how we know |
# |---|---|---|
# | `loss_nats` | `loss_c4` | nats per token (`fits/tables/README.md`), one tokenizer in all rows |
# | `num_params` | `dense_parameter_count` | what one token passes through, embedding left out; not what is stored |
# | `num_params_total` | `total_parameter_count` | what is stored |
# | `compute_flops` | `flops_per_step` x 747,000 | FLOPs of a run: see below |
# | `group` | `router_type` | what is compared |
# | `pair` | `model_size_label` | a routed model has the widths and layers of its dense partner: drawn together |
# | `seed` | `seed` | three runs of dense 130M differ in nothing else: no sweep |
#
# `flops_per_step` says neither whether it counts the backward pass nor how many steps there were. Training costs at
# least 6 FLOPs a parameter and token, the forward pass 2 of them. Over 249,000 steps and 130B tokens the column
# gives:

# %%
FORWARD = {"num_params": "dense_parameter_count", "flops_per_token": f"flops_per_step*{STEPS / TOKENS!r}"}
for copies in (1, 2, 4):
    N, flops_per_token = foreign.read(PATH, FORWARD, where=["router_type=Dense", f"k={copies}"]).columns.values()
    ratio = flops_per_token[np.argsort(N)] / np.sort(N)
    print(f"dense, k = {copies}, smallest to largest: {np.round(ratio, 2)} FLOPs a parameter and token")

# %% [markdown]
# It falls towards 2 from above, as a forward pass does that counts attention and head as well, and ends far below 6:
# a run costs three times the column, times 249,000 steps. Had we missed the factor 3, every axis of FLOPs below would
# be wrong, and no saving: it is the same in all rows. What is *not* the same is the ratio itself, so 6ND would be
# another claim; section 6 has it. And `k` is a trap: dense models with `k` of 2 and 4 have wider layers, which
# `flops_per_step` counts and `dense_parameter_count` does not.
#
# Which rows: one comparison at a time. Dense against the router S-Base over 64 experts (one of nine numbers that were
# trained: a choice, and section 6 shows others), with a routed layer in every second block and one expert a token, as
# in most of the table. Every filter is on the design; no run is left out for its loss.

# %%
COLUMNS = {
    "compute_flops": f"flops_per_step*{3 * STEPS}",
    "num_params": "dense_parameter_count",
    "num_params_total": "total_parameter_count",
    "loss_nats": "loss_c4",
    "group": "router_type",
    "pair": "model_size_label",
    "seed": "seed",
}
WHERE = ["k=1", "routing_frequency=0.5", "num_experts=1|64", "router_type=Dense|S-Base"]
runs = foreign.read(PATH, COLUMNS, where=WHERE)
reasons = Counter(row["reason"].partition(": ")[0] for row in runs.left_out)
print(f"{len(runs.rows)} rows of {len(runs.rows) + len(runs.left_out)}; loss in {runs.loss_unit};", *runs.notes)
print(*(f"{number:4d} left out: {reason}" for reason, number in reasons.items()), sep="\n")

# %% [markdown]
# ## 2. Look before fitting
#
# Dense 130M was trained with three seeds: how far they lie apart is the only pure noise that this table shows. Set
# the differences between the two columns of losses against it.

# %%
N, total, loss, C = (runs.columns[name] for name in ("num_params", "num_params_total", "loss_nats", "compute_flops"))
routed = np.array(runs.texts["group"]) == "S-Base"
ladder = np.unique(N)
dense_loss, dense_flops = (np.array([v[~routed & (n == N)].mean() for n in ladder]) for v in (loss, C))
routed_loss, routed_flops, stored = (np.array([v[routed & (n == N)].mean() for n in ladder]) for v in (loss, C, total))
seed_sd = loss[~routed & (ladder[3] == N)].std(ddof=1)
lines = [
    [tables.si(n), f"{c:.3g}", f"{d:.4f}", f"{r:.4f}", f"{d - r:.3f}", f"{c_r / c - 1:.1%}"]
    for n, c, d, r, c_r in zip(ladder, dense_flops, dense_loss, routed_loss, routed_flops, strict=True)
]
headings = ["parameters a token", "FLOPs of dense", "loss of dense", "S-Base", "lower by", "FLOPs of S-Base more by"]
print(f"standard deviation of three seeds: {seed_sd:.4f} nats")
Markdown(drawn(headings, lines, markdown=True))

# %% [markdown]
# The gap is hundreds of times the noise: whether routing lowers the loss at equal FLOPs is not the question. By how
# much *compute* is, and that needs a curve through the dense points. It also falls with size, which no single number
# will say.
#
# ## 3. A law a group
#
# The usual law, in size and tokens, cannot be fitted here, and says so:

# %%
with_tokens = foreign.read(PATH, {**COLUMNS, "num_tokens": f"step*{TOKENS / STEPS!r}"}, where=WHERE)
try:
    fitted.fit_table(with_tokens, law="chinchilla", reference="Dense")
except BadInput as refusal:
    print(refusal)

# %% [markdown]
# So the law is E + A C^-alpha along one line: all models at one number of tokens. Its "frontier" is that line and not
# the compute-optimal one, of which `rows_taken_for_frontier` warns below. All that follows is *at 130B tokens*.

# %%
OPTIONS = {"law": "saturating", "reference": "Dense"}
found = fitted.fit_table(runs, **OPTIONS)
groups, content = found.groups, found.content
estimates = fits.estimates(content)
Markdown(drawn(estimates.headings, estimates.rows, markdown=True) + "\n\n" + estimates.note)

# %%
for name, surface in groups.surfaces.items():
    proof = surface.certificate
    print(
        f"{name}: certified {proof.certified}; gradient {proof.scaled_gradient:.0e}, smallest eigenvalue of the "
        f"Hessian {proof.min_eigenvalue:.0e}, {proof.num_starts_agreeing} of {proof.num_starts} starts end in "
        f"the same point; runs scatter by {surface.noise_log:.2%} of the loss"
    )
Markdown("\n".join(f"- `{w['code']}` {w['group'] or ''}: {w['message']}" for w in content["warnings"]))

# %% [markdown]
# A minimum that is certified is not yet an answer: with six sizes a group the exponent and the floor are one
# combination, and each alone is hardly known. The *curves* are known where there are runs, and a saving inside the
# runs needs no more. That is what the intervals on the right say: narrow inside, wider at the ends.

# %%
view = fits.view(content)
SVG(style.as_file(figures.answer(view), "svg"))

# %% [markdown]
# ## 4. Does it hold?
#
# **Is the floor there?** A test, a profile and the bootstrap, which need not agree with so few rows:

# %%
for name, test in content["examined"]["floors"].items():
    print(f"{name}: {test['sentence']}")
profiles = examine.profiles(groups)
SVG(style.as_file(fit_figures.profiles(list(profiles["Dense"].values())), "svg"))

# %%
SVG(style.as_file(fit_figures.profiles(list(profiles["S-Base"].values())), "svg"))

# %% [markdown]
# The bootstrap's intervals of E reach 0, the tests say that a law without a floor fits worse: a floor helps *here*,
# and its value is not known. Nothing should rest on it; the table at the end of this section shows what the saving
# does without one.
#
# **Are the exponents shared?** Were they, and the floor, one number would be the saving at every compute.

# %%
for share in (("exponents",), ("exponents", "floor")):
    test = fit.shared_test(
        {name: {"compute_flops": rows["compute_flops"]} for name, rows in groups.rows.items()},
        {name: rows["loss_nats"] for name, rows in groups.rows.items()},
        groups.law,
        share=share,
        units={name: list(rows["unit"]) for name, rows in groups.rows.items()},
    )
    print(test.sentence)
print("difference of alpha:", tables.interval(fit.jsonable(test.differences["S-Base"]["alpha"])))

# %% [markdown]
# One p-value just below 0.05, the others above it, and an interval of the difference that holds 0: no finding either
# way. The claim must give the saving at a compute, and no exponent.
#
# **What is left over?** Were seeds all that moves a run, residuals would be as small as the seeds' scatter, and those
# of a dense model and its routed partner would have nothing to do with each other.

# %%
left = {
    name: np.array([surface.residuals_log[groups.rows[name]["num_params"] == n].mean() for n in ladder])
    for name, surface in groups.surfaces.items()
}
together = float(np.corrcoef(left["Dense"], left["S-Base"])[0, 1])
print(f"residuals of partners correlate by {together:+.2f}; seeds scatter by {seed_sd / dense_loss[3]:.3%} of the loss")
SVG(style.as_file(fit_figures.residual_panels(content["examined"]["diagnostics"]["Dense"]), "svg"))

# %% [markdown]
# They are ten times as large, and alike for partners: the six shapes do not lie on one smooth line (25M has wider
# heads than 15M, 1.3B twice the layers of 370M), and both groups have the same six. That is why partners are drawn
# together: what they share cancels in the saving.
#
# **Would the largest have been predicted?** Fits without them:

# %%
SVG(style.as_file(fit_figures.largest_left_out(content["examined"]["diagnostics"]["Dense"]), "svg"))

# %%
smaller = fitted.fit_table(foreign.read(PATH, COLUMNS, where=[*WHERE, "model_size_label!=1.3B"]), **OPTIONS).groups
for name, largest in (("Dense", ~routed & (ladder[-1] == N)), ("S-Base", routed & (ladder[-1] == N))):
    (guess,) = answers.run_losses(smaller, {"compute_flops": float(C[largest][0])}, group=name)
    print(
        f"{name} 1.3B: measured {loss[largest][0]:.4f}, predicted {tables.interval(fit.jsonable(guess.loss))}, "
        f"{guess.extent}"
    )

# %% [markdown]
# All lie inside, and that says little of intervals so wide. What it teaches is the range: at three times the compute
# the laws miss by one per cent of the loss, where the whole gap between the groups is under seven. They are for
# reading *between* the runs.
#
# **Would another have found another?** One table for all the choices that could have been made otherwise, the saving
# at the loss of the dense 370M run each time. The last two rows know no law: straight lines between dense runs.

# %%
UNIVERSES = {
    "as above": ({}, WHERE, {}),
    "loss on the validation text": ({"loss_nats": "loss_validation"}, WHERE, {}),
    "6 N D in place of counted FLOPs": ({"compute_flops": f"dense_parameter_count*{6 * TOKENS!r}"}, WHERE, {}),
    "no floor": ({}, WHERE, {"law": "pure"}),
    "least squares": ({}, WHERE, {"objective": "squares_log"}),
    "absolute residuals": ({}, WHERE, {"objective": "absolute_log"}),
    "Huber's delta 0.001": ({}, WHERE, {"delta": 1e-3}),
    "without 15M": ({}, [*WHERE, "model_size_label!=15M"], {}),
    "without 25M (worst residual of S-Base)": ({}, [*WHERE, "model_size_label!=25M"], {}),
    "without 130M (three seeds)": ({}, [*WHERE, "model_size_label!=130M"], {}),
    "without 1.3B": ({}, [*WHERE, "model_size_label!=1.3B"], {}),
}
savings, lines = {}, []
for words, (columns, where, options) in UNIVERSES.items():
    these = foreign.read(PATH, {**COLUMNS, **columns}, where=where)
    place = list(zip(these.texts["group"], these.texts["pair"], strict=True)).index(("Dense", "370M"))
    refitted = fit.fit_groups({**these.columns, **these.texts}, **{**OPTIONS, **options}, draws=500)
    (gain,) = answers.gained(refitted, "S-Base", [these.columns["loss_nats"][place]])["surface"]["at_losses"]
    savings[words] = gain.saving.value
    remark = gain.saving.reason or answers.extent(gain.extrapolation)
    lines.append([words, tables.interval(fit.jsonable(gain.saving), 1, 100, " %"), remark])
for place in (3, 2):
    needed = np.exp(np.interp(-routed_loss[place], -dense_loss, np.log(dense_flops)))
    words = f"no law: the routed {tables.si(ladder[place])} run against lines between dense runs"
    savings[words] = 1 - routed_flops[place] / needed
    lines.append([words, tables.percent(savings[words]), "inside"])
Markdown(drawn(["choice", "saving", ""], lines, markdown=True))

# %% [markdown]
# ## 5. The saving
#
# At budgets of the routed model, and at losses. *inside* means that the routed budget and the dense compute for the
# same loss both lie among the runs; a saving reaches outside long before its budget does, since the dense model needs
# four times as much.

# %%
budgets = [5e19, 1e20, 2e20, 3e20, 5e20, 1e21]
at_budgets = fits.savings(fit.jsonable({"S-Base": answers.saved(groups, "S-Base", budgets)}), "Dense")
Markdown(drawn(at_budgets.headings, at_budgets.rows, markdown=True))

# %%
at_losses = fits.gains(fit.jsonable({"S-Base": answers.gained(groups, "S-Base", [3.0, 2.8, 2.6, 2.5])}), "Dense")
Markdown(drawn(at_losses.headings, at_losses.rows, markdown=True) + "\n\n" + at_losses.note)

# %% [markdown]
# ## 6. What a reviewer asks
#
# **Same tokens?** Yes, the same 130B in the same number of steps (`step`). The other side of it: neither group chose
# its tokens. The smallest model read 7,900 tokens a parameter, the largest 99, and what routing is worth where size
# and tokens are both free is another quantity.
#
# **Same tuning?** The table has no learning rate, so it cannot say. It can say how bad it would have to be:

# %%
dense, sparse = (groups.frontiers[name]["surface"] for name in ("Dense", "S-Base"))
slack = float(dense.loss(4e20) - sparse.loss(2e20))
print(
    f"for a saving of 50 % at 2e20 FLOPs every dense loss near 4e20 would have to be {slack:.3f} nats lower: "
    f"{slack / seed_sd:.0f} times the scatter of seeds, {slack / dense.loss(4e20):.1%} of the loss"
)

# %% [markdown]
# **FLOPs counted, or 6ND?** Counted, with attention, head and router. 6ND would have claimed more, and by more than
# the interval is wide, though it forgets the same parts in both groups: the dense model of equal loss is larger, and
# of a larger model head and attention are a smaller part. Neither is seconds: FLOPs know nothing of the time that
# tokens travel between experts.
#
# **Selection?** None by loss. But three routers and several numbers of experts could have been shown in place of
# ours:

# %%
lines = []
for router, experts in (("S-Base", 8), ("S-Base", 64), ("S-Base", 512), ("RL-R", 64), ("Hash", 64)):
    where = ["k=1", "routing_frequency=0.5", f"num_experts=1|{experts}", f"router_type=Dense|{router}"]
    these = foreign.read(PATH, COLUMNS, where=where)
    refitted = fit.fit_groups({**these.columns, **these.texts}, **OPTIONS, draws=500)
    (gain,) = answers.gained(refitted, router, [dense_loss[4]])["surface"]["at_losses"]
    times = np.max(these.columns["num_params_total"] / these.columns["num_params"])
    saving = tables.interval(fit.jsonable(gain.saving), 1, 100, " %")
    lines.append([router, str(experts), saving, f"up to {times:.3g} times", answers.extent(gain.extrapolation)])
Markdown(drawn(["router", "experts", "saving", "parameters stored", ""], lines, markdown=True))

# %% [markdown]
# More experts, more saving: the number of experts is a dial with a price, and the price is memory. So the last
# question is whether memory was held equal, and it was not. Against dense models that *store* as much, the routed
# ones are worse:

# %%
inside = stored <= ladder[-1]
as_large = np.interp(np.log(stored[inside]), np.log(ladder), dense_loss)
lines = [
    [tables.si(n), tables.si(s), f"{r:.3f}", f"{d:.3f}"]
    for n, s, r, d in zip(ladder, stored, routed_loss, as_large, strict=False)
]
headings = ["S-Base, parameters a token", "stored", "its loss", "dense of that size (interpolated)"]
Markdown(drawn(headings, lines, markdown=True))

# %% [markdown]
# **Independent runs?** Seeds of one size are one unit, partners are drawn together, and six sizes are few: intervals
# are widened for the rows that the law uses up (docs/fitting.md). An error that all runs share, such as an untuned
# rate in one group, is in no interval.
#
# ## 7. The claim

# %%
grid = np.geomspace(C[routed].min(), C[routed].max(), 200)
reach = [saving.budget_flops for saving in fit.savings(sparse, dense, grid) if saving.extrapolation <= 1 + 1e-6]
(middle,) = fit.savings(sparse, dense, [2e20])
value, low, high = (100 * part for part in (middle.estimate.value, middle.estimate.low, middle.estimate.high))
counted = [100 * saving for words, saving in savings.items() if not words.startswith("6 N D")]
Markdown(
    f"> At 130B training tokens, routing every second layer over 64 experts (S-Base) reaches the C4 loss of the dense "
    f"ladder of Clark et al. with **{value:.0f} % [{low:.0f}, {high:.0f}] fewer training FLOPs, at 2e20 FLOPs** (95 % "
    f"interval; other choices of analysis give {min(counted):.0f} to {max(counted):.0f} %). It holds for routed runs "
    f"of {min(reach):.1e} to {max(reach):.1e} FLOPs (losses of {float(sparse.loss(max(reach))):.2f} to "
    f"{float(sparse.loss(min(reach))):.2f} nats), for FLOPs as counted and not seconds, and for models that store 19 "
    f"to 25 times the parameters of their dense partners."
)

# %% [markdown]
# What these rows do **not** support, though it would be easy to write:
#
# - *Routing saves three quarters of compute.* At its own best number of tokens a dense model of this compute may do
#   better than this ladder, and a routed one too: tokens were never varied.
# - *It saves less at scale.* The gap in loss shrinks with size, but so does what a nat costs; the exponents are not
#   told apart with confidence, and beyond the range above the saving is an opinion of the law.
# - *It is the better use of memory, or of an hour.* The first is wrong here; the second was not measured.
#
# ## 8. The grid that would settle it
#
# What is missing is a second axis: tokens. What a grid of dense and routed pairs at four budgets could tell takes
# three lines, with the scatter found above and a law that is borrowed (Besiroglu et al. 2024, arXiv 2404.10102).

# %%
noise = fit.given_noise(groups.surfaces["Dense"].noise_log, pair_correlation=max(0.0, together))
design = fit.Design(kind="isoflop", budgets_flops=(2.5e19, 5e19, 1e20, 2e20), num_sizes=5, span=8.0)
law = {"E": 1.82, "A": 482.0, "B": 2085.0, "alpha": 0.348, "beta": 0.366}
planned = fit.power("chinchilla", law, noise, design, flops_per_unit=6.0)
print(
    f"{planned.num_runs} runs, {planned.cost_flops:.1e} FLOPs: sees a saving of {planned.smallest_saving:.1%} or more "
    f"at {planned.at_flops:.0e} FLOPs; interval of one about 0: {planned.widths['saving'].low:+.1%} to "
    f"{planned.widths['saving'].high:+.1%}"
)

# %% [markdown]
# A saving as large as this one needs far fewer runs to be *seen*; the grid is for its size, and for whether it
# shrinks. `smelt power` searches for the cheapest grid that tells enough, and docs/planning.md says how far to
# believe it.
