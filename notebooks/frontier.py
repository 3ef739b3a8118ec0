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
# # The frontier of the quickstart
#
# Does looping the middle half of the layers twice buy loss for equal compute, at sizes that two CPU cores can train?
# Everything below is drawn from three committed files, `fits/quickstart.csv`, `.json` and `.prediction.json`; nothing
# is trained, and nothing is defined here: what a number means stands in `smelt/analysis.py` and `docs/fitting.md`.

# %%
from IPython.display import SVG, Markdown

from smelt import committed, prediction
from smelt.report import evidence, figures, style, words

NAME = "quickstart"
rows, analysis, predicted = committed.read(NAME)
Markdown("\n\n".join(f"**{head['sentence']}**" for head in analysis["headline"].values()))

# %% [markdown]
# ## The answer
#
# On the left, loss against compute: if one architecture is better, its frontier lies below. Differences between good
# architectures are far smaller than what a decade of compute buys, so the eye cannot decide it there. On the right the
# same two frontiers are compared at equal loss: the share of compute that the variant saves. Only an interval that lies
# on one side of 0 is an answer.

# %%
SVG(style.as_file(figures.answer(analysis), "svg"))

# %% [markdown]
# ## Could it be the law?
#
# The verdict inverts fitted surfaces. The other two frontiers pass through the minima of the IsoFLOP parabolas, with
# and without a floor, and know nothing of the surface. Where all three agree the runs speak; where they part, the form
# does.

# %%
SVG(style.as_file(figures.savings_by_law(analysis), "svg"))

# %% [markdown]
# ## Could it be the text?
#
# Each domain is fitted apart, with a floor and exponents of its own, so its interval is wider than that of the mean.

# %%
Markdown(words.by_domain(analysis))

# %%
SVG(style.as_file(figures.savings_by_domain(analysis), "svg"))

# %% [markdown]
# ## And without any law?
#
# A variant and its partner have equal budgets and read the same tokens in the same order, so their losses can be
# subtracted run by run. The grey band is how far two runs lie apart that differ in their seed alone: a mean inside it
# could still be real, but a single pair inside it says nothing.

# %%
Markdown("\n\n".join(words.paired(name, analysis) for name in analysis["pairs"]))

# %%
SVG(style.as_file(figures.pair_differences(analysis), "svg"))

# %% [markdown]
# ## Are the curves what they are taken for?
#
# A parabola is only worth its vertex if that lies among the sizes that were trained. Where it does not, the budget is
# left out of the frontiers through minima and named here.

# %%
Markdown(
    "\n\n".join(words.degenerate(analysis)) or "Every parabola has its minimum inside the sizes that were trained."
)

# %%
SVG(style.as_file(evidence.isoflop(analysis), "svg"))

# %%
SVG(style.as_file(evidence.head_to_head(analysis), "svg"))

# %%
SVG(style.as_file(evidence.allocation(analysis), "svg"))

# %% [markdown]
# ## What do the surfaces leave over?
#
# If the form were wrong, residuals would run along with size, tokens or compute.

# %%
SVG(style.as_file(evidence.residuals(analysis), "svg"))

# %% [markdown]
# ## Did it hold where nobody had looked?
#
# Before the largest runs were trained their losses were predicted from the smaller ones, with intervals.

# %%
scored = None if predicted is None else prediction.score_prediction(predicted, rows)
Markdown("Nothing was predicted." if scored is None else scored["sentence"])

# %%
SVG(style.as_file(figures.prediction(scored, analysis["variants"]), "svg")) if scored else None

# %% [markdown]
# ## Are these the numbers of these rows?
#
# The fit is made again from the committed rows; every value that comes out another would be listed.

# %%
committed.rederive(NAME)

# %% [markdown]
# What the data do not say is listed with the fit.

# %%
Markdown("\n".join(f"- {warning['message']}" for warning in analysis["warnings"]) or "No warnings.")
