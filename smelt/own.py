"""A grid with parts of the user's own -> nothing, or a refusal of the part whose counts are not those of its program.

    parameters   num_params is one layer's share of the leaves of the real tree, exactly
    FLOPs        forward_flops + uncounted_flops are the matmuls of the traced part within MARGIN; XLA's own count of
                 the compiled part is no less (it is more: norms, softmax and choices, which no convention counts)
    sight        what a part gives for a token stays when a later token changes, or one of another document

Our own counts are held by tests; a user's are held here, before anything trains: counts and shapes in every
architecture of the grid, XLA's count and the sight in the smallest one. What decoding keeps (`kv_values`) is taken at
its word, since no program shows it.

XLA's total alone could not hold a small part: of a softmax router with 8 experts on a width of 16 it counts 554 FLOPs a
token (measured, compiled for a CPU), of which 256 are the matmul.

Letters: B batch, T position, N = B T tokens, D width, E experts, C choices of a token, X anything.
"""

import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from smelt import budget
from smelt.errors import BadInput
from smelt.grid import Grid
from smelt.spec import FFN, ArchSpec, Own, Segment

# A few vectors that a user leaves out (gates, temperatures) move no fit; a matmul that is forgotten does.
MARGIN = 0.05
TRACED_TOKENS = 2**20  # many, so that rows of padding for each expert are no share of what a token costs
RUN_SHAPE = (2, 16)  # sequences and positions of what is compiled and run
SEEN = 1e-4  # relative to the largest output; rounding in another order moves a row by some 1e-6
MAX_RUN_PARAMS = 50_000_000  # a part that is larger than this in its smallest architecture is counted and not run

Program = Callable[[Any, Any, Any], Any]


def check(grid: Grid) -> None:
    """Hold every own part of a grid against its program. Raises BadInput that names the part, what it says and what was
    found; returns at once where the grid has none."""
    runs = [cell.run for cell in grid.cells if cell.run.arch.own]
    for arch, context in dict.fromkeys((run.arch, run.data.seq_len) for run in runs):
        for part, segment, params in _parts(arch):
            _check_counts(part, arch, segment, params, context)
    smallest: dict[tuple[Any, ...], ArchSpec] = {}
    for run in runs:
        alike = run.arch.own, run.data.confine_attention
        smallest[alike] = min(smallest.get(alike, run.arch), run.arch, key=lambda arch: budget.params(arch).total)
    for (_, confined), arch in smallest.items():
        for part, segment, params in _parts(arch):
            if part.num_params(arch, segment.ffn) <= MAX_RUN_PARAMS:
                _check_compiled(part, arch, segment, params)
                _check_sight(part, arch, segment, params, confined)


def _parts(arch: ArchSpec) -> Iterator[tuple[Own, Segment, Any]]:
    """Every own part with each segment that it serves, and the shapes of one layer's parameters of it."""
    import jax

    from smelt import model

    with _blamed(arch.own):
        tree = jax.eval_shape(lambda: model.init(arch, jax.random.key(0)))
    for segment in arch.segments:
        for part in arch.own:
            if part.replaces == "router" and not segment.ffn.has_router:
                continue
            stacked = tree[segment.name]
            if part.replaces != "layer":
                stacked = stacked.get(part.replaces, {})
            axes = 2 if part.replaces == "attention" and segment.num_attention_sets > 1 else 1
            one = jax.tree.map(lambda leaf, axes=axes: jax.ShapeDtypeStruct(leaf.shape[axes:], leaf.dtype), stacked)
            yield part, segment, one


@contextmanager
def _blamed(own: Sequence[Own]) -> Iterator[None]:
    """What a part of the user's own raises, as one line with the place in its file."""
    import sys

    files = {getattr(sys.modules.get(type(part).__module__), "__file__", None) for part in own}
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else " or ".join(type(p).__name__ for p in own)
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"{where} raised {what}; mend the part, its module is built and traced here") from error


def _check_counts(part: Own, arch: ArchSpec, segment: Segment, params: Any, context: int) -> None:
    import jax

    ffn, name = segment.ffn, type(part).__name__
    where = f"of a layer of width {arch.d_model} with {_experts(ffn)}"
    counts = {
        "num_params": part.num_params(arch, ffn),
        "active_params": part.active_params(arch, ffn),
        "forward_flops": part.forward_flops(arch, ffn, context),
        "uncounted_flops": part.uncounted_flops(arch, ffn, context),
    }
    if part.replaces in ("attention", "layer"):
        counts["kv_values"] = part.kv_values(arch, ffn)
    for count, says in counts.items():
        if type(says) is not int:
            raise BadInput(f"{name}.{count} says {says!r} {where}: give a whole number (int, and // for /)")
    stored = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    if counts["num_params"] != stored:
        raise BadInput(
            f"{name}.num_params says {counts['num_params']:,} {where}, its parameters are {stored:,}: mend the count"
        )
    if not 0 <= counts["active_params"] <= stored:
        raise BadInput(
            f"{name}.active_params says {counts['active_params']:,} {where}, which has {stored:,}: give some of them"
        )
    shape = (max(1, TRACED_TOKENS // context), context)
    with _blamed([part]):
        traced, gives = jax.make_jaxpr(_program(part, arch, segment), return_shape=True)(params, *_given(arch, shape))
    _check_given_back(part, arch, ffn, shape, gives)
    says, found = counts["forward_flops"] + counts["uncounted_flops"], matmul_flops(traced.jaxpr) / math.prod(shape)
    if abs(says - found) > MARGIN * found:
        beyond = f" and uncounted_flops {counts['uncounted_flops']:,}" if counts["uncounted_flops"] else ""
        raise BadInput(
            f"{name}.forward_flops says {counts['forward_flops']:,}{beyond} {where}, a token in a context of "
            f"{context:,}; the matmuls of its program are {found:,.0f}: mend the count, or say in uncounted_flops what "
            "the program spends beyond it"
        )


def _experts(ffn: FFN) -> str:
    return f"{ffn.num_experts} experts of width {ffn.width}" if ffn.has_router else f"an FFN of width {ffn.width}"


def _given(arch: ArchSpec, shape: tuple[int, int]) -> tuple[Any, Any]:
    """Shapes of x_BTD and documents_BT."""
    import jax
    import jax.numpy as jnp

    return jax.ShapeDtypeStruct((*shape, arch.d_model), jnp.float32), jax.ShapeDtypeStruct(shape, jnp.int32)


def _program(part: Own, arch: ArchSpec, segment: Segment, confined: bool = True) -> Program:
    """(parameters of one layer, x_BTD, documents_BT) -> what the part gives, called as the layer calls it."""
    from smelt.model.attention import context

    module = part.module(arch, segment.ffn)

    def program(params: Any, x_BTD: Any, documents_BT: Any) -> Any:
        look = context(documents_BT, confine_attention=confined)
        x_ND = x_BTD.reshape(-1, arch.d_model)
        given = {
            "router": lambda: (x_ND,),
            "experts": lambda: (x_ND, _in_turn(x_ND.shape[0], segment.ffn), look),
            "attention": lambda: (x_BTD, look),
            "layer": lambda: (x_BTD, look, segment.residual_scale),
        }
        return module.apply({"params": params}, *given[part.replaces]())

    return program


def _in_turn(num_tokens: int, ffn: FFN) -> Any:
    """A routing that gives each expert its turn, without a matmul; None of a dense FFN."""
    import jax.numpy as jnp

    from smelt.model import Routing, load_balance_loss

    if not ffn.has_router:
        return None
    E, C = ffn.num_experts, ffn.top_k
    ids_NC = (jnp.arange(num_tokens)[:, None] + jnp.arange(C)) % E
    weights_NE = (ids_NC[:, :, None] == jnp.arange(E)).any(1) / C
    load_E = weights_NE.mean(0)
    ratios = jnp.full((num_tokens, C, ffn.views.num_views), 1 / ffn.views.num_views) if ffn.views else None
    return Routing(weights_NE, ids_NC, load_E, load_balance_loss(load_E, weights_NE), jnp.zeros(()), ratios)


def _check_given_back(part: Own, arch: ArchSpec, ffn: FFN, shape: tuple[int, int], gives: Any) -> None:
    """The shapes that the layer goes on with; a wrong one could broadcast."""
    from smelt.model import RouterStats, Routing

    name, (N, D) = type(part).__name__, (math.prod(shape), arch.d_model)
    if part.replaces == "router":
        if not isinstance(gives, Routing):
            raise BadInput(f"{name} gives {type(gives).__name__}: a router gives a smelt.model.Routing")
        wanted = {"weights_NE": (N, ffn.num_experts), "ids_NC": (N, ffn.top_k), "load_E": (ffn.num_experts,)}
        wanted |= {"load_balance": (), "z_loss": ()}
        wanted |= {"ratios_NCM": (N, ffn.top_k, ffn.views.num_views)} if ffn.views else {}
        found = {key: getattr(getattr(gives, key), "shape", None) for key in wanted}
    elif part.replaces == "layer":
        if not (isinstance(gives, tuple) and len(gives) == 2 and isinstance(gives[1], RouterStats | None)):
            raise BadInput(
                f"{name} gives {type(gives).__name__}: a layer gives (x_BTD, smelt.model.RouterStats or None)"
            )
        wanted, found = {"x_BTD": (*shape, D)}, {"x_BTD": gives[0].shape}
    elif part.replaces == "attention":
        wanted, found = {"write_BTD": (*shape, D)}, {"write_BTD": getattr(gives, "shape", None)}
    else:
        wanted, found = {"y_ND": (N, D)}, {"y_ND": getattr(gives, "shape", None)}
    for key in wanted:
        if wanted[key] != found[key]:
            raise BadInput(
                f"{name} gives {key} of shape {found[key]} for {shape[0]:,} sequences of {shape[1]:,} at width {D}: "
                f"give {wanted[key]}"
            )


def matmul_flops(jaxpr: Any, *, scans_once: bool = False) -> float:
    """FLOPs of all matmuls and convolutions of a traced program, each counted as XLA does: 2 x outputs x what is summed
    for one. The body of a scan counts for every turn, or once as XLA counts it (`scans_once`); of a condition's
    branches the dearest."""
    total = 0.0
    for equation in jaxpr.eqns:
        kind, params = equation.primitive.name, equation.params
        inner = [matmul_flops(body, scans_once=scans_once) for body in _bodies(params)]
        if kind == "cond":
            total += max(inner)
        elif kind == "scan":
            total += sum(inner) * (1 if scans_once else params["length"])
        else:
            total += sum(inner) + 2 * math.prod(equation.outvars[0].aval.shape) * _summed(equation)
    return total


def _bodies(params: dict[str, Any]) -> Iterator[Any]:
    """The programs inside an operation: of a jit, a scan, a derivative of one's own."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            body = getattr(item, "jaxpr", item)
            if hasattr(body, "eqns"):
                yield body


def _summed(equation: Any) -> int:
    """Over how many products one output of a matmul or convolution sums; 0 of anything else."""
    kind, params = equation.primitive.name, equation.params
    shapes = [value.aval.shape for value in equation.invars]
    if kind == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return math.prod(shapes[0][axis] for axis in contracted)
    if kind in ("ragged_dot", "ragged_dot_general"):
        return shapes[0][-1]
    if kind == "conv_general_dilated":
        return math.prod(shapes[1]) // shapes[1][params["dimension_numbers"].rhs_spec[0]]
    return 0


def _check_compiled(part: Own, arch: ArchSpec, segment: Segment, params: Any) -> None:
    """XLA drops what nothing reads, so that it counts less than was traced where a matmul is thrown away."""
    import jax

    given = (params, *_given(arch, RUN_SHAPE))
    program = _program(part, arch, segment)
    with _blamed([part]):
        traced = matmul_flops(jax.make_jaxpr(program)(*given).jaxpr, scans_once=True)
        analysis = jax.jit(program).lower(*given).compile().cost_analysis()
    counted = (analysis[0] if isinstance(analysis, list) else analysis)["flops"]
    if counted < (1 - MARGIN) * traced:
        tokens = math.prod(RUN_SHAPE)
        raise BadInput(
            f"{type(part).__name__} has {traced / tokens:,.0f} matmul FLOPs a token at width {arch.d_model} and XLA "
            f"counts {counted / tokens:,.0f} in all once it is compiled: leave out what is multiplied and not used"
        )


def _check_sight(part: Own, arch: ArchSpec, segment: Segment, params: Any, confined: bool) -> None:
    """No token sees a later one, one of another sequence, or, where attention is confined, of another document."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)

    def drawn(shape: tuple[int, ...]) -> Any:
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    B, T = RUN_SHAPE
    # Weights of any kind, so that a part which begins by writing nothing shows what it looks at too.
    params = jax.tree.map(lambda leaf: 0.3 * drawn(leaf.shape), params)
    x_BTD = drawn((B, T, arch.d_model))
    documents_BT = jnp.asarray(np.arange(T) >= T // 2, jnp.int32)[None].repeat(B, 0)
    program = jax.jit(_program(part, arch, segment, confined))
    # What is changed, always in the first sequence, and the positions of it that must not notice.
    changes = {"a later token": (T - 1, slice(0, T - 1))}
    if confined:
        changes["a token of another document"] = (0, slice(T // 2, T))
    with _blamed([part]):
        whole_BTX = _outputs(part, program(params, x_BTD, documents_BT))
        for what, (changed, unmoved) in changes.items():
            other_BTD = x_BTD.at[0, changed].set(drawn((arch.d_model,)))
            moved_BT = np.abs(_outputs(part, program(params, other_BTD, documents_BT)) - whole_BTX).max(-1)
            if max(moved_BT[0, unmoved].max(), moved_BT[1:].max()) > SEEN * np.abs(whole_BTX).max():
                raise BadInput(
                    f"{type(part).__name__} gives a token something else when {what} changes, so that its loss would "
                    "be of what it has seen: in attention use context.mask, in a router no statistics of the batch"
                )


def _outputs(part: Own, gives: Any) -> Any:
    """What each token is given."""
    import numpy as np

    of_tokens = {"router": lambda: gives.weights_NE, "layer": lambda: gives[0]}.get(part.replaces, lambda: gives)()
    return np.nan_to_num(np.asarray(of_tokens, np.float64).reshape(*RUN_SHAPE, -1))
