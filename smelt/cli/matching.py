"""The verb match: the pairs of an experiment -> a table of shapes and errors, and the options that mend a misfit.

What the library says in Python's words (`Mend`) is told here as options that can be added to the command as they stand.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from tyro.conf import arg

from smelt import terminal
from smelt.cli.words import Json, Name, assignments, print_json, say
from smelt.errors import EXIT_DONE, EXIT_FAILED, BadInput

SHOWN_ERRORS = ("flops_per_token", "num_params", "kv_cache")  # and what else is held


def match(
    name: Name,
    *,
    variant: Annotated[
        tuple[str, ...] | None, arg(metavar="NAME ...", help="functions of smelt.variants; a search takes loop_middle")
    ] = None,
    size: Annotated[int | None, arg(help="index into the experiment's ladder; all where left out")] = None,
    free: Annotated[
        tuple[str, ...] | None,
        arg(metavar="DIMENSION ...", help="dimensions that may move besides those that the mode frees by itself"),
    ] = None,
    only_free: Annotated[
        tuple[str, ...] | None,
        arg(metavar="DIMENSION ...", help="dimensions that may move instead of those; --free adds to them too"),
    ] = None,
    multiple: Annotated[
        tuple[str, ...] | None, arg(metavar="DIMENSION=N ...", help="steps of a dimension, e.g. d_model=8 head_dim=4")
    ] = None,
    held: Annotated[
        str | None,
        arg(
            metavar="MODE",
            help="what is held equal: three_budgets (a search's own), flops_and_kv, active_params, expert_budget, none",
        ),
    ] = None,
    bound: Annotated[float | None, arg(help="largest relative error of what is held; a search takes 0.04")] = None,
    convention: Annotated[str | None, arg(help="FLOP convention; a search takes model")] = None,
    co_design: Annotated[bool, arg(help="move the baselines a little too, so that all variants fit")] = False,
    json: Json = False,
) -> int:
    """Show the matched pairs that an experiment trains, or search for others.

    With no option but --size it shows the experiment's own: each size's baseline, variants and errors. Any other option
    starts a search from the same baselines, with the next best and, where none fits (exit 1), options that mend it.
    e.g. smelt match quickstart; smelt match quickstart --variant loop_all --multiple d_model=1 width=1;
    smelt match quickstart --variant loop_middle loop_all --co-design
    """
    from smelt import experiment as experiments

    if variant == ():
        raise BadInput("--variant names no function: give at least one, such as loop_middle")
    for option, words in {"--free": free, "--only-free": only_free, "--multiple": multiple}.items():
        if words == ():
            example = "width=1" if option == "--multiple" else "width"
            raise BadInput(f"{option} names no dimension: give at least one, such as {example}")
    experiment = experiments.load(name)
    sizes = sorted({cell.size for cell in experiment.grid.cells})
    if size is not None and size not in sizes:
        raise BadInput(f"size {size} is not in the ladder of {experiment.name}: it has {', '.join(map(str, sizes))}")
    cells = [cell for cell in experiment.grid.cells if size in (None, cell.size)]
    if not co_design and all(given is None for given in (variant, free, only_free, multiple, held, bound, convention)):
        return _show_own(experiment, cells, json)
    return _search(
        cells,
        variant or ("loop_middle",),
        free=free or (),
        only_free=only_free,
        multiples=dict(assignments(multiple or (), int)),
        held="three_budgets" if held is None else held,
        bound=0.04 if bound is None else bound,
        convention="model" if convention is None else convention,
        co_design=co_design,
        json=json,
    )


def _show_own(experiment: Any, cells: Sequence[Any], json: bool) -> int:
    """The pairs of the experiment's grid, each shape once."""
    from smelt.match import HELD, Match

    grid = experiment.grid
    pairs = {}
    for cell in sorted(cells, key=lambda cell: cell.size):
        pairs.setdefault(
            (cell.size, cell.variant, cell.run.arch),
            Match(
                arch=cell.run.arch,
                baseline=cell.baseline,
                errors=grid.match_errors(cell),
                held=grid.held,
                bound=grid.bound,
                context=cell.run.data.seq_len,
                convention=grid.convention,
                runners_up=(),
                misfit="",
                mends=(),
            ),
        )
    if json:
        print_json([_as_json(size, label, 0, pair, None) for (size, label, _), pair in pairs.items()])
        return EXIT_DONE
    columns = _error_columns(HELD[grid.held])
    rows = [[str(size), label, *_shape(arch), *_errors(pair, columns)] for (size, label, arch), pair in pairs.items()]
    print(terminal.table(["size", "variant", *SHAPE, *columns, "worst held"], rows))
    say(f"the pairs that {experiment.name} trains: {grid.held} held within {grid.bound:.1%}; --variant searches others")
    return EXIT_DONE


def _search(
    cells: Sequence[Any],
    labels: Sequence[str],
    *,
    free: tuple[str, ...],
    only_free: tuple[str, ...] | None,
    multiples: Mapping[str, int],
    held: str,
    bound: float,
    convention: str,
    co_design: bool,
    json: bool,
) -> int:
    from smelt import match as matcher

    functions = [_variant(label) for label in labels]
    own = matcher.DEFAULT_FREE.get(held, ()) if only_free is None else only_free
    options: dict[str, Any] = {"free": (*own, *free), "multiples": multiples, "held": held, "bound": bound}
    options |= {"convention": convention}
    ladder = {cell.size: (cell.baseline, cell.run.data.seq_len) for cell in cells}
    results, rows = [], []
    columns = _error_columns(matcher.HELD.get(held, ()))  # an unknown mode is refused by the first match
    for size, (baseline, context) in sorted(ladder.items()):
        if co_design:
            found = matcher.co_design(baseline, functions, context=context, **options).matches
        else:
            found = [matcher.match(baseline, function(baseline), context=context, **options) for function in functions]
        for label, pair in zip(labels, found, strict=True):
            advice = _advice(pair, free, multiples, co_design)
            rows.append([str(size), label, "baseline", *_shape(pair.baseline), *[""] * (len(columns) + 1)])
            for rank, candidate in enumerate((pair, *pair.runners_up)):
                results.append(_as_json(size, label, rank, candidate, None if rank else advice))
                rows.append(["", "", str(rank), *_shape(candidate.arch), *_errors(candidate, columns)])
            if advice:
                say(f"size {size}, {label}: {advice}")
    header = ["size", "variant", "rank", *SHAPE, *columns, "worst held"]
    print_json(results) if json else print(terminal.table(header, rows))
    return EXIT_DONE if all(result["fits"] for result in results if result["rank"] == 0) else EXIT_FAILED


def _advice(pair: Any, free: Sequence[str], multiples: Mapping[str, int], co_design: bool) -> str | None:
    """Why a match does not fit and the options that mend it; each repeats what the command gives of it already, since
    of two the last counts."""
    if not pair.misfit:
        return None
    mends = []
    for mend in pair.mends:
        if mend.held is not None:
            mends.append(f"--held {mend.held}")
        elif mend.multiples:
            steps = {**multiples, **mend.multiples}
            mends.append("--multiple " + " ".join(f"{name}={step}" for name, step in steps.items()))
        else:
            mends.append("--free " + " ".join([*free, *mend.free]))
    if any(mend.held is None for mend in pair.mends):
        return f"{pair.misfit}; add {' or '.join(mends)}"
    if not co_design:
        mends.insert(0, "--co-design")
    return f"{pair.misfit}; no dimension mends it: try {' or '.join(mends)}"


def _variant(word: str) -> Callable[[Any], Any]:
    """The function of `variants` of that name. Refused where it wants more than an architecture."""
    from smelt import variants

    known, wanted = {}, {}
    for name, function in vars(variants).items():
        if inspect.isfunction(function) and function.__module__ == variants.__name__ and not name.startswith("_"):
            known[name] = function
            parameters = list(inspect.signature(function).parameters.values())[1:]
            wanted[name] = [each.name for each in parameters if each.default is each.empty]
    alone = ", ".join(name for name in known if not wanted[name])
    if word not in known:
        raise BadInput(f"unknown variant {word!r}: known are {alone}")
    if wanted[word]:
        raise BadInput(f"variant {word!r} wants {', '.join(wanted[word])} as well: choose one of {alone}")
    return known[word]


def _as_json(size: int, label: str, rank: int, pair: Any, reason: str | None) -> dict[str, Any]:
    from smelt.spec import to_dict

    return {
        "size": size,
        "variant": label,
        "rank": rank,
        "arch": to_dict(pair.arch),
        "baseline": to_dict(pair.baseline),
        "errors": pair.errors,
        "held": pair.held,
        "worst": pair.worst,
        "fits": pair.fits,
        "reason": reason,
    }


SHAPE = ("width", "layers", "heads", "experts")


def _shape(arch: Any) -> list[str]:
    heads = arch.attention
    return [
        str(arch.d_model),
        f"{arch.num_prelude}+{arch.loop.num_layers}x{arch.loop.num_passes}+{arch.num_coda}",
        f"{heads.num_heads}/{heads.num_kv_heads}x{heads.head_dim}",
        f"{arch.ffn.num_experts} top-{arch.ffn.top_k} x {arch.ffn.width}",
    ]


def _error_columns(held: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*SHOWN_ERRORS, *held]))


def _errors(pair: Any, columns: Sequence[str]) -> list[str]:
    if pair.arch == pair.baseline:
        return ["0"] * (len(columns) + 1)
    return [*(f"{pair.errors[name]:+.2%}" for name in columns), f"{pair.worst:.2%}"]
