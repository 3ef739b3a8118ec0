"""An analysis, rows and a plan -> figures, tables and one self-contained HTML page.

    style      colours, ticks, labels; the one place that sets matplotlib up
    figures    the answer: frontiers, savings by law, text and pair, the prediction
    evidence   what stands behind it: IsoFLOP curves, minima, residuals, training curves
    fit_figures   what a fit hangs on: profiles, residuals, leverage, the largest budget left out
    tables     the same to the digit
    words      and in sentences
    flags      warnings, each said once, those that touch the verdict first
    page       all of it as one file that opens offline and prints: page.write, page.write_experiment

matplotlib is imported in this package alone, and not by its tables, words and flags.
"""
