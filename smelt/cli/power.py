"""The verb power: what a grid could tell, and what it costs, before any of it is trained."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from smelt.cli import pilots
from smelt.cli import planned as telling
from smelt.cli.fits import TABLE_ENDS
from smelt.cli.words import Json, Tables, assignments, at_least, print_json, say
from smelt.errors import EXIT_DONE, EXIT_FAILED, BadInput

Kind = Literal["isoflop", "branches"]
Objective = Literal["huber_log", "squares_log", "absolute_log", "huber_raw", "squares_raw"]
SHARE_OF_BUDGET = 20.0  # 4 budgets x 5 sizes x 2 groups, a factor 2 apart, cost 18.75 times their largest
REACH_DOWN = 100.0  # of the compute asked at, where no pilot says from which runs on the law holds: chosen
KEPT = 300  # candidates in the JSON and the figure
CURVE_POINTS = 41
HIGH_CORRELATION = 0.9


def power(
    source: Annotated[
        Positional[str | None], arg(metavar="NAME|FIT.json", help="an experiment, a fit, or nothing with --law")
    ] = None,
    *,
    budget_flops: Annotated[float | None, arg(help="training FLOPs of the whole grid, all groups and seeds")] = None,
    want: Annotated[
        tuple[str, ...],
        arg(help="widths of 95 % intervals, end to end: saving=0.05 alpha=0.02; or smallest_saving=0.05, to be seen"),
    ] = (),
    at: Annotated[float | None, arg(help="compute in FLOPs that it is asked at, and the largest budget")] = None,
    extrapolate: Annotated[float, arg(help="how far below --at the largest budget may lie, 1 to 10 times")] = 1.0,
    smallest_budget: Annotated[float | None, arg(help="no run spends fewer FLOPs than this")] = None,
    seeds: Annotated[tuple[int, ...], arg(help="numbers of seeds to try")] = (1, 2, 3, 5),
    kinds: Annotated[tuple[Kind, ...], arg(help="kinds of grid to try")] = ("isoflop", "branches"),
    decay_frac: Annotated[float, arg(help="of branches: share of a run that decays from its trunk (assumed)")] = 0.1,
    budgets: Annotated[tuple[float, ...], arg(help="do not search: the budgets in FLOPs of one grid to judge")] = (),
    sizes: Annotated[int, arg(help="with --budgets: sizes a budget")] = 5,
    span: Annotated[float, arg(help="with --budgets: largest over smallest size of a budget")] = 8.0,
    groups: Annotated[int, arg(help="2 to compare two architectures, 1 for a law alone")] = 2,
    saving: Annotated[float, arg(help="the true saving that is assumed")] = 0.0,
    law: Annotated[str | None, arg(help="chinchilla, flops_tokens, smelt; of an experiment flops_tokens")] = None,
    parameters: Annotated[tuple[str, ...], arg(help="of --law: E=1.82 A=482 B=2085 alpha=0.348 beta=0.366")] = (),
    fixed: Annotated[tuple[str, ...], arg(help="columns that the grid holds: density=0.05 of the law smelt")] = (),
    flops_per_unit: Annotated[float | None, arg(help="k of C = k N D for a law in num_params, such as 6")] = None,
    noise: Annotated[float | None, arg(help="standard deviation of a run about the law, in --noise-unit")] = None,
    noise_unit: Annotated[Literal["log", "nats"], arg(help="log: of ln loss, 0.004 is 0.4 per cent of it")] = "log",
    pair_correlation: Annotated[float | None, arg(help="share of that variance that matched runs share")] = None,
    trunk_correlation: Annotated[float | None, arg(help="share of it that rows of one trunk share")] = None,
    seed_frac: Annotated[float | None, arg(help="share of it that another seed draws anew")] = None,
    objective: Annotated[Objective, arg(help="of the fits to come")] = "huber_log",
    delta: Annotated[str, arg(help="Huber's threshold of the fits to come: a number, or auto")] = "auto",
    figure: Annotated[Path | None, arg(help="also draw it: a .svg, .pdf or .png file")] = None,
    tables: Tables = None,
    json: Json = False,
) -> int:
    """Say how wide the intervals of a grid will be and the smallest saving it can see; find the cheapest that suffices.

    Law and noise come from an experiment's rows, a fit, or numbers. Exit 1 where no grid within the budget reaches what
    is wanted. How it is reckoned, and how it was checked against simulation: docs/planning.md.

    e.g. smelt power quickstart (what its own grid can tell);
    smelt power quickstart --budget-flops 1e14 --want smallest_saving=0.1;
    smelt power fits/quickstart.json --noise 0.01 --pair-correlation 0.5 --budget-flops 1e14 --want saving=0.2 a=0.1;
    smelt power --law chinchilla --parameters E=1.82 A=482 B=2085 alpha=0.348 beta=0.366 --flops-per-unit 6 --noise
    0.004 --budget-flops 1e22 --want saving=0.3 --at 1e20 --figure power.svg;
    the same with --budgets 1e18 2e18 4e18 8e18 --sizes 5 --span 8 --seeds 1 in place of --budget-flops and --want
    """
    from smelt import fit as fitting

    _check(source, law, parameters, budget_flops, want, budgets, figure)
    for option, value in {"--budget-flops": budget_flops, "--at": at, "--smallest-budget": smallest_budget}.items():
        at_least(option, value, 0, low_open=True)
    if not seeds or not kinds:
        raise BadInput(f"{'--kinds' if seeds else '--seeds'} is empty: give one or more")
    pilot = _pilot(source, law, dict(assignments(parameters, float)), flops_per_unit)
    held = {**pilot.fixed, **dict(assignments(fixed, float))}
    fitting.designs.ground(pilot.law, pilot.parameters, pilot.flops_per_unit, held)  # a law that cannot be planned with
    pilot = pilots.with_noise(
        pilot,
        total=noise,
        unit=noise_unit,
        pair_correlation=pair_correlation,
        trunk_correlation=trunk_correlation,
        seed_frac=seed_frac,
    )
    wanted, assumed = dict(assignments(want, float)), list[str]()
    setting = {"saving": saving, "groups": groups, "objective": objective, "delta": _threshold(delta)}
    options = {**setting, "flops_per_unit": pilot.flops_per_unit, "fixed": held}
    design = {"num_sizes": sizes, "span": span, "seeds": seeds[0], "decay_frac": decay_frac}
    candidates: list[Any] = []
    if budgets:
        chosen: Any = fitting.Design(kind=kinds[0], budgets_flops=tuple(sorted(budgets)), **design)
        at = at or max(budgets)
    elif wanted:
        assert budget_flops is not None
        at, smallest_budget = _where(pilot, budget_flops, at, smallest_budget, assumed)
        candidates = fitting.cheapest(
            pilot.law,
            pilot.parameters,
            pilot.noise,
            budget_flops,
            wanted,
            at_flops=at,
            smallest_budget_flops=smallest_budget,
            max_extrapolation=extrapolate,
            kinds=kinds,
            seeds=seeds,
            decay_frac=decay_frac,
            **options,
        )
        chosen = candidates[0].design
    else:
        if pilot.standing is None or pilot.covered_flops is None:
            raise BadInput("there is no grid to judge: give --budgets, or --budget-flops and --want to search for one")
        chosen, at = pilot.standing, at or pilot.covered_flops[1]

    def planned(grid: Any, compute: float | None = at, noise: Any = pilot.noise, **others: Any) -> Any:
        return fitting.power(pilot.law, pilot.parameters, noise, grid, at_flops=compute, **(options | others))

    found = planned(chosen)
    result = {
        "law": {
            "name": pilot.law.name,
            "equation": pilot.law.equation,
            "parameters": pilot.parameters,
            "flops_per_unit": pilot.flops_per_unit,
            "fixed": held,
            "source": pilot.source,
        },
        "noise": {
            "total": pilot.noise.total,
            "own": pilot.noise.own,
            "shared": pilot.noise.shared,
            "unit": pilot.noise.unit,
            "pair_correlation": pilot.noise.pair_correlation,
            "seed_frac": pilot.noise.seed_frac,
            "trunk_correlation": pilot.noise.trunk_correlation,
            "interval_factors": pilot.noise_factors,
            "source": pilot.noise_source,
        },
        "asked": {
            **setting,
            "wanted": wanted,
            "budget_flops": budget_flops,
            "at_flops": at,
            "smallest_budget_flops": smallest_budget,
            "max_extrapolation": extrapolate,
            "assumed": assumed,
        },
        "standing": None if pilot.standing is None else planned(pilot.standing),
        "candidates": [_candidate(candidate) for candidate in candidates[:KEPT]],
        "num_candidates": len(candidates),
        "reaches": candidates[0].reaches if candidates else None,
        "planned": found,
        "grid": _grid(pilot, chosen, held),
        "curve": _curve(planned, chosen, found),
        "what_if": {
            "least_squares": planned(chosen, objective="squares_log").smallest_saving,
            "trunk_correlation_high": _if_trunks_share(planned, pilot, chosen),
            "noise_low_high": [
                planned(chosen, noise=pilot.noise.times(factor)).smallest_saving for factor in pilot.noise_factors or ()
            ],
        },
        "warnings": [*pilot.warnings, *found.warnings],
    }
    result = fitting.jsonable(result)
    result["sentences"] = telling.sentences(result)
    if figure is not None:
        _draw(result, figure)
    if tables is not None:
        from smelt.report import planned as made
        from smelt.report.tables import write

        say(f"{len(write(made.of_power(result), tables))} files in {tables}")
    print_json(result) if json else print("\n".join(telling.lines(result)))
    return EXIT_FAILED if result["reaches"] is False else EXIT_DONE


def _check(source, law, parameters, budget_flops, want, budgets, figure) -> None:
    if (source is None) == (law is None or not parameters) and not (source and law and not parameters):
        raise BadInput("give an experiment's NAME, a FIT.json, or --law with --parameters")
    if budgets and (want or budget_flops is not None):
        raise BadInput("--budgets names one grid to judge: leave --budget-flops and --want out, or leave it out")
    if bool(want) != (budget_flops is not None):
        raise BadInput("a search needs both --budget-flops and --want, such as --want saving=0.1")
    if figure is not None and figure.suffix not in (".svg", ".pdf", ".png"):
        raise BadInput(f"cannot draw to {figure.name!r}: give a name that ends in .svg, .pdf or .png")


def _threshold(text: str) -> float | str:
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise BadInput(f"--delta is {text!r}: give a number above 0, or auto") from None


def _pilot(
    source: str | None, law: str | None, parameters: Mapping[str, float], flops_per_unit: float | None
) -> pilots.Pilot:
    if source is None:
        assert law is not None
        return pilots.of_numbers(law, parameters, flops_per_unit)
    if source.endswith(TABLE_ENDS):
        raise BadInput(
            f"{source} is a table: fit it first (smelt fit --csv {source} ... --out FIT.json), then ask FIT.json"
        )
    if source.endswith(".json"):
        if law is not None:
            raise BadInput(f"{source} names its own law: leave --law out")
        return pilots.of_json(Path(source), flops_per_unit)
    return pilots.of_experiment(source, law, flops_per_unit)


def _where(
    pilot: pilots.Pilot, budget_flops: float, at: float | None, smallest: float | None, assumed: list[str]
) -> tuple[float, float]:
    """The compute that is asked at and the smallest budget; what was not given is chosen, and said in `assumed`."""
    if at is None and pilot.covered_flops is not None:
        at = pilot.covered_flops[1]
        assumed.append(f"asked at the largest compute of the runs there are, {telling.compact(at)} FLOPs (--at)")
    elif at is None:
        at = budget_flops / SHARE_OF_BUDGET
        assumed.append(f"asked at a twentieth of the budget, {telling.compact(at)} FLOPs (--at)")
    if smallest is None and pilot.covered_flops is not None:
        smallest = pilot.covered_flops[0]
        assumed.append(f"no run below the smallest there is, {telling.compact(smallest)} FLOPs (--smallest-budget)")
    elif smallest is None:
        smallest = at / REACH_DOWN
        assumed.append(f"no run below a hundredth of that, {telling.compact(smallest)} FLOPs (--smallest-budget)")
    return at, smallest


def _candidate(candidate: Any) -> dict[str, Any]:
    from smelt.fit import jsonable

    return {**jsonable(candidate), "reaches": candidate.reaches}


def _grid(pilot: pilots.Pilot, chosen: Any, held: Mapping[str, float]) -> dict[str, Any]:
    """The runs of one group, in the terms of `grid.isoflop`: a ladder of sizes, and budget -> indices into it."""
    import numpy as np

    from smelt.fit import designs

    base = designs.ground(pilot.law, pilot.parameters, pilot.flops_per_unit, held)
    points = chosen if isinstance(chosen, designs.Points) else designs.design_points(base, None, chosen)
    rows = []
    for budget in np.unique(points.budgets_flops):
        here = points.budgets_flops == budget
        rows.append(
            {
                "budget_flops": budget,
                "indices": points.ladder_index[here],
                "num_tokens": points.columns["num_tokens"][here],
                "optimal_size": float(np.exp(base.log_size(budget))),
            }
        )
    return {"ladder_column": base.size, "ladder": points.ladder, "sizes": rows}


def _curve(planned: Any, chosen: Any, found: Any) -> dict[str, Any] | None:
    """The smallest visible saving against compute, from the smallest budget to ten times the largest."""
    import numpy as np

    if found.smallest_saving is None:
        return None
    budgets = np.asarray(chosen.budgets_flops)
    compute = np.geomspace(budgets.min(), budgets.max() * 10, CURVE_POINTS)
    return {"compute_flops": compute, "smallest_saving": [planned(chosen, float(c)).smallest_saving for c in compute]}


def _if_trunks_share(planned: Any, pilot: pilots.Pilot, chosen: Any) -> float | None:
    """The smallest visible saving were rows of a trunk nearly one, where the correlation is an assumption."""
    if getattr(chosen, "kind", None) != "branches" or pilot.noise.trunk_correlation is not None:
        return None
    return planned(chosen, noise=dataclasses.replace(pilot.noise, trunk_correlation=HIGH_CORRELATION)).smallest_saving


def _draw(result: Mapping[str, Any], path: Path) -> None:
    from smelt.files import write_bytes
    from smelt.report import planning, style

    write_bytes(path, style.as_file(planning.power(result), path.suffix[1:]))
