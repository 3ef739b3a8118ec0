"""The committed quickstart grid in; what its IsoFLOP parabolas get wrong, by how much, and what mends it, out.

    python -m benchmarks.approach2 [--simulations 400]

Three questions, each with a number: how far a parabola's vertex lies from the optimum when there is no noise and the
law is the surface fitted to the grid; whether taking that bias off moves anything that the grid can see; and which of
the parabola, the corrected parabola and the surface errs least, over grids simulated from the fitted surfaces with the
scatter that the grid's own residuals have. A last table widens the grid and moves it off centre. Markdown on standard
output.
"""

import argparse
from collections.abc import Mapping, Sequence

import numpy as np

from smelt import analysis, committed, fit

NAME, REFERENCE, VARIANT = "quickstart", "baseline", "loop_middle"
FAR = 1000.0  # times the largest budget, where an exponent's error has become a size's


def columns_of(table: Mapping[str, Sequence], group: str) -> dict[str, np.ndarray]:
    rows = [row for row, name in enumerate(table["group"]) if name == group]
    columns = {name: np.array([values[row] for row in rows]) for name, values in table.items()}
    # Size is training FLOPs per token over 6, what the surface's law is in: parameters leave the head out, and at these
    # widths a share of FLOPs that falls with size.
    return {**columns, "num_params": columns["flops_per_token"] / 6}


def corrected(group: Mapping[str, np.ndarray], surface: fit.SurfaceFit, draws: int = 1000) -> list[fit.Correction]:
    return fit.correct_minima(
        surface, group, group["loss_nats"], group["budget_flops"], cell=list(group["pair"]), draws=draws
    )


def exponent(minima: Sequence[fit.Minimum]) -> fit.Estimate:
    return fit.allocation(minima).exponent


def true_exponent(surface: fit.SurfaceFit) -> float:
    return surface.parameters["c"] / (surface.parameters["a"] + surface.parameters["c"])


def shown(value: fit.Estimate, digits: int = 3) -> str:
    interval = "no interval" if value.low is None else f"{value.low:.{digits}f}, {value.high:.{digits}f}"
    return f"{value.value:.{digits}f} [{interval}]"


def predicted(surface: fit.SurfaceFit, group: Mapping[str, np.ndarray]) -> np.ndarray:
    return surface.predict({name: group[name] for name in surface.law.columns})


def noise_free(group: Mapping[str, np.ndarray], surface: fit.SurfaceFit) -> dict[str, np.ndarray]:
    return {**group, "loss_nats": predicted(surface, group)}


def bias(groups: Mapping[str, Mapping], surfaces: Mapping[str, fit.SurfaceFit]) -> list[str]:
    lines = [
        "| arm | budget | vertex, size | least loss, nats | runs scatter, nats |",
        "|---|---|---|---|---|",
    ]
    for name, group in groups.items():
        exact = noise_free(group, surfaces[name])
        for found in corrected(exact, surfaces[name], draws=0):
            size, loss = found.size_bias_percent, found.loss_bias_nats
            told = found.reason or f"{size.value:+.1f} % | {loss.value:+.4f}"
            lines.append(f"| {name} | {found.raw.budget_flops:.2g} | {told} | {surfaces[name].noise_loss:.3f} |")
    return lines


def on_the_data(groups: Mapping[str, Mapping], surfaces: Mapping[str, fit.SurfaceFit]) -> list[str]:
    lines = [
        "| arm | F* ~ C^x, parabolas | corrected | surface |",
        "|---|---|---|---|",
    ]
    for name, group in groups.items():
        found = corrected(group, surfaces[name])
        draws = surfaces[name].draws
        by_surface = fit.estimate(true_exponent(surfaces[name]), draws["c"] / (draws["a"] + draws["c"]), method="")
        raw, mended = (exponent([getattr(c, part) for c in found]) for part in ("raw", "minimum"))
        lines.append(f"| {name} | {shown(raw)} | {shown(mended)} | {shown(by_surface)} |")
    return lines


METHODS = ("parabolas", "corrected", "surface")


def point(group: Mapping[str, np.ndarray], largest: float) -> tuple[dict[str, tuple], fit.SurfaceFit]:
    """By method (N* exponent, ln size and loss at the largest budget); NaN where a parabola has no minimum."""
    surface = fit.fit_surface(group, group["loss_nats"], "flops_tokens")
    optimum = fit.surface_optimum(surface, largest)
    found = {"surface": (true_exponent(surface), np.log(optimum.size.value), optimum.loss.value)}
    corrections = corrected(group, surface, draws=0)
    for method, part in (("parabolas", "raw"), ("corrected", "minimum")):
        minima = [getattr(c, part) for c in corrections]
        last = minima[-1]
        usable = [m for m in minima if m.usable]
        slope = exponent(minima).value if len(usable) > 1 else np.nan
        here = (np.log(6 * last.num_params_opt), last.loss_min) if last.usable else (np.nan, np.nan)
        found[method] = (slope, *here)
    return found, surface


def simulated(groups: Mapping[str, Mapping], surfaces: Mapping[str, fit.SurfaceFit], simulations: int) -> list[str]:
    name = REFERENCE
    group, surface = groups[name], surfaces[name]
    largest = float(group["budget_flops"].max())
    optimum = fit.surface_optimum(surface, largest)
    truth = np.array([true_exponent(surface), np.log(optimum.size.value), optimum.loss.value])
    exact = predicted(surface, group)
    errors: dict[str, list] = {method: [] for method in METHODS}
    still, _ = point({**group, "loss_nats": exact}, largest)
    for seed in range(simulations):
        noise = surface.noise_log * np.random.default_rng(seed).standard_normal(len(exact))
        found, _ = point({**group, "loss_nats": exact * np.exp(noise)}, largest)
        for method in METHODS:
            errors[method].append(np.array(found[method]) - truth)
    lines = [
        "| method | F* exponent off without noise | with noise: bias, sd, rms | size at the largest budget "
        "| least loss there, nats | no answer |",
        "|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        table = np.array(errors[method])
        cells = []
        for column, scale in zip(table.T, (1, 100, 1), strict=True):
            known = column[np.isfinite(column)] * scale
            unit = " %" if scale == 100 else ""
            cells.append(
                f"{known.mean():+.3f}{unit}, {known.std(ddof=1):.3f}{unit}, {np.sqrt(np.mean(known**2)):.3f}{unit}"
            )
        lines.append(
            f"| {method} | {still[method][0] - truth[0]:+.4f} | "
            + " | ".join(cells)
            + f" | {np.mean(~np.isfinite(table).all(axis=1)):.0%} |"
        )
    return lines


def other_grids(surface: fit.SurfaceFit, budgets: Sequence[float]) -> list[str]:
    """Noise-free: the same law on other grids of 9 sizes a budget; what an extrapolation by `FAR` would say."""
    lines = [
        f"| sizes, times the optimum | F* exponent | F* at {FAR:g} times the largest budget | corrected |",
        "|---|---|---|---|",
    ]
    truth = true_exponent(surface)
    for label, low, high, drift in (
        ("1/2 to 2", 0.5, 2, 1),
        ("1/4 to 4", 0.25, 4, 1),
        ("1/8 to 8", 0.125, 8, 1),
        ("1/16 to 16", 1 / 16, 16, 1),
        ("1/2 to 8", 0.5, 8, 1),
        ("1/8 to 2", 0.125, 2, 1),
        ("1/4 to 4, centre drifting to 3", 0.25, 4, 3),
    ):
        table: dict[str, list] = {name: [] for name in ("flops_per_token", "num_tokens", "budget_flops", "pair")}
        for index, budget in enumerate(budgets):
            best = fit.surface_optimum(surface, budget).size.value * drift ** (index / (len(budgets) - 1))
            for cell, times in enumerate(np.geomspace(low, high, 9)):
                row = (best * times, budget / (best * times), budget, str(cell))
                for column, value in zip(table, row, strict=True):
                    table[column].append(value)
        group = {column: np.array(values) for column, values in table.items()}
        group["num_params"] = group["flops_per_token"] / 6
        group["loss_nats"] = predicted(surface, group)
        found = corrected(group, surface, draws=0)
        far = FAR * budgets[-1]
        size = fit.surface_optimum(surface, far).size.value / 6
        raw, mended = (fit.allocation([getattr(c, part) for c in found]) for part in ("raw", "minimum"))
        off = [100 * (float(a.at(far)) / size - 1) for a in (raw, mended)]
        lines.append(f"| {label} | {raw.exponent.value:.4f} ({truth:.4f}) | {off[0]:+.1f} % | {off[1]:+.4f} % |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=400)
    given = parser.parse_args()
    rows, _, _ = committed.read(NAME)
    table = analysis.table(rows)
    table["loss_nats"] = table.pop(analysis.LOSS)
    groups = {name: columns_of(table, name) for name in (REFERENCE, VARIANT)}
    surfaces = fit.fit_groups(table, REFERENCE, loss_column="loss_nats").surfaces
    reference = groups[REFERENCE]
    budgets = [float(value) for value in np.unique(reference["budget_flops"])]
    for title, lines in (
        ("The bias, if the fitted surfaces were the truth and there were no noise", bias(groups, surfaces)),
        ("On the rows themselves", on_the_data(groups, surfaces)),
        (
            f"{given.simulations} grids simulated from the baseline's surface with its rows' scatter",
            simulated(groups, surfaces, given.simulations),
        ),
        ("Other grids of the same law, without noise", other_grids(surfaces[REFERENCE], budgets)),
    ):
        print(f"### {title}\n\n" + "\n".join(lines) + "\n", flush=True)


if __name__ == "__main__":
    main()
