"""A part of the user's own: counted as its program, known by its source, matched, trained and reported like ours."""

import json
import math
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from smelt import budget, experiment, grid, ledger, match, model, own, spec, variants
from smelt.cli import main
from smelt.errors import EXIT_BAD_INPUT, EXIT_DONE, BadInput
from smelt.match.lattice import BUDGETS, lattice_spec, sizes_of, with_sizes
from smelt.spec import FFN, ArchSpec, DataSpec, Own
from smelt.train import step
from smelt.train.fingerprint import code_fingerprint
from smelt.train.source import bare_code, own_source
from tests.conftest import OPTIM, architecture

DOCS = Path(__file__).parent.parent / "docs" / "own_parts.md"


class HiddenRouter(nn.Module):
    num_hidden: int
    num_experts: int
    top_k: int

    @nn.compact
    def __call__(self, x_ND):
        D, H = x_ND.shape[-1], self.num_hidden
        w_DH = self.param("w_DH", model.matrix(fan_in=D), (D, H))
        w_HE = self.param("w_HE", nn.initializers.normal(0.1), (H, self.num_experts))  # an initialiser of Flax's own
        return model.route(jax.nn.silu(x_ND @ w_DH) @ w_HE, self.top_k)


@dataclass(frozen=True)
class Hidden(Own):
    replaces = "router"
    num_hidden: int = 6

    def module(self, arch, ffn):
        return HiddenRouter(num_hidden=self.num_hidden, num_experts=ffn.num_experts, top_k=ffn.top_k)

    def num_params(self, arch, ffn):
        return self.num_hidden * (arch.d_model + ffn.num_experts)


class ReluExperts(nn.Module):
    num_experts: int
    width: int

    @nn.compact
    def __call__(self, x_ND, routing, context):
        D, E, F = x_ND.shape[-1], self.num_experts, self.width
        w_up_EDF = self.param("w_up_EDF", model.matrix(fan_in=D), (E, D, F))
        w_down_EFD = self.param("w_down_EFD", model.matrix(fan_in=F), (E, F, D))
        hidden_NEF = jax.nn.relu(jnp.einsum("ND,EDF->NEF", x_ND, w_up_EDF))
        if routing is not None:
            hidden_NEF *= routing.weights_NE[:, :, None]
        return jnp.einsum("NEF,EFD->ND", hidden_NEF, w_down_EFD)


@dataclass(frozen=True)
class Relu(Own):
    """Experts of two matrices, all of which are computed for every token."""

    replaces = "experts"

    def module(self, arch, ffn):
        return ReluExperts(num_experts=ffn.num_experts, width=ffn.width)

    def num_params(self, arch, ffn):
        return 2 * arch.d_model * ffn.num_experts * ffn.width

    def active_params(self, arch, ffn):
        return 2 * arch.d_model * ffn.top_k * ffn.width

    def uncounted_flops(self, arch, ffn, context):
        return 4 * arch.d_model * (ffn.num_experts - ffn.top_k) * ffn.width


class SingleHead(nn.Module):
    head_dim: int
    causal: bool = True

    @nn.compact
    def __call__(self, x_BTD, context):
        D, K = x_BTD.shape[-1], self.head_dim
        w_q_DK, w_k_DK, w_v_DK = (self.param(f"w_{c}_DK", model.matrix(fan_in=D), (D, K)) for c in "qkv")
        w_o_KD = self.param("w_o_KD", nn.initializers.zeros, (K, D))
        scores_BTS = jnp.einsum("BTK,BSK->BTS", x_BTD @ w_q_DK, x_BTD @ w_k_DK) * K**-0.5
        seen_BTS = jnp.where(context.mask, scores_BTS, -jnp.inf) if self.causal else scores_BTS
        return jnp.einsum("BTS,BSK->BTK", jax.nn.softmax(seen_BTS, axis=-1), x_BTD @ w_v_DK) @ w_o_KD


@dataclass(frozen=True)
class Single(Own):
    """One head without positions."""

    replaces = "attention"

    def module(self, arch, ffn):
        return SingleHead(head_dim=arch.attention.head_dim)

    def num_params(self, arch, ffn):
        return 4 * arch.d_model * arch.attention.head_dim

    def forward_flops(self, arch, ffn, context):
        return 2 * self.num_params(arch, ffn) + 2 * arch.attention.head_dim * (context + 1)

    def uncounted_flops(self, arch, ffn, context):
        return 2 * arch.attention.head_dim * (context - 1)

    def kv_values(self, arch, ffn):
        return 2 * arch.attention.head_dim


class MixLayer(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x_BTD, context, residual_scale):
        D, F = x_BTD.shape[-1], self.width
        normed_BTD = model.RMSNorm(gain=True)(x_BTD)
        mask_BTS = context.mask / context.mask.sum(-1, keepdims=True)
        past_BTD = jnp.einsum("BTS,BSD->BTD", mask_BTS, normed_BTD)
        w_DF = self.param("w_DF", model.matrix(fan_in=D), (D, F))
        w_FD = self.param("w_FD", model.matrix(fan_in=F), (F, D))
        return x_BTD + residual_scale * (jax.nn.silu((normed_BTD + past_BTD) @ w_DF) @ w_FD), None


@dataclass(frozen=True)
class Mix(Own):
    """A layer without attention or experts: the mean of the past goes through an FFN."""

    replaces = "layer"

    def module(self, arch, ffn):
        return MixLayer(width=ffn.width)

    def num_params(self, arch, ffn):
        return arch.d_model * (2 * ffn.width + 1)

    def forward_flops(self, arch, ffn, context):
        return 4 * arch.d_model * ffn.width + arch.d_model * (context + 1)

    def uncounted_flops(self, arch, ffn, context):
        return arch.d_model * (context - 1)

    def kv_values(self, arch, ffn):
        return arch.d_model


def recipe(arch: ArchSpec, budget_flops: float):
    data = DataSpec(corpus="words", seq_len=32, batch_seqs=4, confine_attention=True, validation_tokens=2048)
    return OPTIM, data


def gridded(arch: ArchSpec, **how) -> grid.Grid:
    """The smallest grid of one architecture against the built-in one."""

    def mine(_: ArchSpec) -> ArchSpec:
        return arch

    return grid.isoflop(
        ladder=[architecture()],
        sizes={6e8: [0]},
        variants=(variants.baseline, mine),
        recipe=how.get("recipe", recipe),
        seeds=(0,),
        matcher=None,
        held="none",
        bound=0.0,
    )


MOE = architecture()
LOOPED = variants.loop_middle(architecture(num_layers=4))
FOIL = replace(variants.untie_attention(LOOPED), outer_ffn=FFN(width=8, num_experts=1, top_k=1), tied_embeddings=True)
PARTS = {"router": (Hidden(),), "experts": (Relu(),), "attention": (Single(),), "layer": (Mix(),)}
PARTS |= {"three": (Hidden(num_hidden=3), Relu(), Single())}


@pytest.mark.parametrize("base", [MOE, FOIL], ids=["plain", "untied, with a dense outer FFN"])
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_a_part_is_counted_as_its_program_and_its_leaves_in_every_place(base, parts):
    shared = replace(base, loop=replace(base.loop, attention_sets="shared"))
    arch = replace(shared if parts == (Mix(),) else base, own=parts)
    own.check(gridded(arch))
    tree = jax.eval_shape(lambda: model.init(arch, jax.random.key(0)))
    assert budget.params(arch).total == sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("parts", [PARTS["three"], PARTS["layer"]], ids=["three", "layer"])
def test_a_model_with_a_part_of_ones_own_has_finite_gradients_that_reach_the_part(parts):
    arch = replace(MOE, own=parts)
    params = model.init(arch, jax.random.key(0))
    tokens_BU = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 9)), jnp.int32)

    @jax.jit
    def gradient(params):
        def objective(params):
            return model.losses(arch, params, tokens_BU, jnp.zeros_like(tokens_BU), confine_attention=True)[0]

        return jax.grad(objective)(params)

    of_loop = gradient(params)["loop"]
    places = [of_loop if part.replaces == "layer" else of_loop[part.replaces] for part in parts]
    for leaves in map(jax.tree.leaves, places):
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in leaves)
        assert any(bool(jnp.any(leaf != 0)) for leaf in leaves)


@dataclass(frozen=True)
class Miscounted(Hidden):
    def num_params(self, arch, ffn):
        return super().num_params(arch, ffn) - 1


@dataclass(frozen=True)
class Undercharged(Hidden):
    def forward_flops(self, arch, ffn, context):
        return 200


@dataclass(frozen=True)
class Fractional(Hidden):
    def num_params(self, arch, ffn):
        return super().num_params(arch, ffn) / 1


@dataclass(frozen=True)
class Overactive(Relu):
    def active_params(self, arch, ffn):
        return 2 * self.num_params(arch, ffn)


@dataclass(frozen=True)
class AllComputed(Relu):
    def uncounted_flops(self, arch, ffn, context):
        return 0


@dataclass(frozen=True)
class Uncached(Single):
    kv_values = Own.kv_values


@dataclass(frozen=True)
class Seeing(Single):
    def module(self, arch, ffn):
        return SingleHead(head_dim=arch.attention.head_dim, causal=False)


class _Wasteful(SingleHead):
    @nn.compact
    def __call__(self, x_BTD, context):
        unused_BTX = x_BTD @ self.param("w_unused_DX", model.matrix(fan_in=1), (x_BTD.shape[-1], 400))
        return super().__call__(x_BTD, context) + len(unused_BTX)


@dataclass(frozen=True)
class Wasteful(Single):
    """Pays for a matmul whose result nothing reads."""

    def module(self, arch, ffn):
        return _Wasteful(head_dim=arch.attention.head_dim)

    def num_params(self, arch, ffn):
        return super().num_params(arch, ffn) + 400 * arch.d_model


class _Batchwise(nn.Module):
    num_experts: int
    top_k: int

    @nn.compact
    def __call__(self, x_ND):
        w_DE = self.param("w_DE", model.matrix(fan_in=x_ND.shape[-1]), (x_ND.shape[-1], self.num_experts))
        logits_NE = x_ND @ w_DE
        return model.route(logits_NE - logits_NE.mean(0), self.top_k)


@dataclass(frozen=True)
class Batchwise(Own):
    replaces = "router"

    def module(self, arch, ffn):
        return _Batchwise(num_experts=ffn.num_experts, top_k=ffn.top_k)

    def num_params(self, arch, ffn):
        return arch.d_model * ffn.num_experts


class _Flat(SingleHead):
    @nn.compact
    def __call__(self, x_BTD, context):
        return super().__call__(x_BTD, context).sum(-1, keepdims=True)


@dataclass(frozen=True)
class Flat(Single):
    """Writes a number a token, which would broadcast over the width."""

    def module(self, arch, ffn):
        return _Flat(head_dim=arch.attention.head_dim)


@dataclass(frozen=True)
class Unrouted(Hidden):
    def module(self, arch, ffn):
        return _Unrouted(num_hidden=self.num_hidden, num_experts=ffn.num_experts, top_k=ffn.top_k)


class _Unrouted(HiddenRouter):
    @nn.compact
    def __call__(self, x_ND):
        return super().__call__(x_ND)._replace(ids_NC=jnp.zeros((len(x_ND), 1), jnp.int32))


REFUSED = [
    (Miscounted(), r"Miscounted.num_params says 119 of a layer of width 16 with 4 experts .*, its parameters are 120"),
    (Undercharged(), r"Undercharged.forward_flops says 200 .* in a context of 32; the matmuls of its program are 240"),
    (Fractional(), r"Fractional.num_params says 120.0 .*give a whole number"),
    (Overactive(), r"Overactive.active_params says 8,192 .*which has 4,096"),
    (AllComputed(), r"AllComputed.forward_flops says 4,096 .* the matmuls of its program are 8,192"),
    (Wasteful(), r"Wasteful has 15,104 matmul FLOPs a token at width 16 and XLA counts 2,\d+ in all"),
    (Seeing(), "Seeing gives a token something else when a later token changes"),
    (Batchwise(), "Batchwise gives a token something else when a later token changes"),
    (Flat(), r"Flat gives write_BTD of shape \(\d+, 32, 1\) .*at width 16: give \(\d+, 32, 16\)"),
    (Unrouted(), r"Unrouted gives ids_NC of shape \(\d+, 1\)"),
]


@pytest.mark.parametrize(("part", "message"), REFUSED, ids=[type(part).__name__ for part, _ in REFUSED])
def test_a_part_that_is_not_what_it_says_is_refused_with_the_numbers(part, message):
    with pytest.raises(BadInput, match=message) as refused:
        own.check(gridded(replace(MOE, own=(part,))))
    assert "\n" not in str(refused.value)


def test_a_part_without_a_count_that_is_asked_of_it_says_which():
    with pytest.raises(BadInput, match="Uncached has no kv_values"):
        budget.kv_cache_bytes_per_token(replace(MOE, own=(Uncached(),)))


def test_a_layer_of_ones_own_beside_a_biased_router_has_no_biases_and_trains():
    arch = replace(variants.sigmoid_router(architecture(8)), own=(Mix(),))
    state = step.init_state(arch, OPTIM, 0)
    assert "balance" not in state.params
    data = DataSpec(corpus="none", seq_len=8, batch_seqs=2, confine_attention=True, validation_tokens=8)
    tokens_BU = np.zeros((2, 9), np.int32)
    _, metrics = step.compile_step(arch, OPTIM, data)(state, tokens_BU, tokens_BU, np.float32(0.1), np.float32(1.0))
    assert np.isfinite(metrics["loss_nats"])


@dataclass(frozen=True)
class Selecting(Hidden):
    def module(self, arch, ffn):
        return SelectingRouter(num_hidden=self.num_hidden, num_experts=ffn.num_experts, top_k=ffn.top_k)


class SelectingRouter(nn.Module):
    num_hidden: int
    num_experts: int
    top_k: int

    @nn.compact
    def __call__(self, x_ND, selection=model.Selection()):  # noqa: B008
        D, H = x_ND.shape[-1], self.num_hidden
        w_DH = self.param("w_DH", model.matrix(fan_in=D), (D, H))
        w_HE = self.param("w_HE", model.matrix(fan_in=H), (H, self.num_experts))
        return model.route(jax.nn.silu(x_ND @ w_DH) @ w_HE, self.top_k, selection.allowed_E)


def test_experts_of_a_router_of_ones_own_are_masked_where_it_takes_a_selection_and_refused_where_not():
    tokens_BT = jnp.zeros((1, 4), jnp.int32)
    masked = {"loop": np.asarray([[True, False, False, False]] * 2)}

    def applied(part):
        arch = replace(architecture(8), own=(part,))
        params = model.init(arch, jax.random.key(0))
        return model.apply(arch, params, tokens_BT, tokens_BT, confine_attention=False, masked=masked)[1]

    assert not applied(Selecting()).loads["loop"][:, 0].any()
    for part, message in ((Hidden(), "HiddenRouter takes no selection"), (Mix(), "leave masked out")):
        with pytest.raises(BadInput, match=message):
            applied(part)


@dataclass(frozen=True)
class Sparse(Single):
    """As if half of it were met by a token."""

    def active_params(self, arch, ffn):
        return 2 * arch.d_model * arch.attention.head_dim

    def forward_flops(self, arch, ffn, context):
        return 2 * self.active_params(arch, ffn) + 2 * arch.attention.head_dim * (context + 1)


def test_of_a_part_that_a_token_meets_in_part_only_that_is_active():
    arch = architecture(8)
    whole, half = (replace(arch, own=(part,)) for part in (Single(), Sparse()))
    missing = arch.num_layers * 2 * arch.d_model * arch.attention.head_dim
    assert budget.params(whole).total == budget.params(half).total
    for count in (budget.active_params, budget.executed_params, budget.looped_moe_active):
        assert count(whole) - count(half) == missing
    for convention in ("model", "smelt", "foil", "looped_moe", "chinchilla"):
        flops = [budget.train_flops_per_token(a, 32, convention) for a in (whole, half)]
        assert flops[0] - flops[1] == 6 * missing, convention


def test_attention_that_keeps_to_no_document_is_refused_where_documents_are_confined_and_only_there():
    @dataclass(frozen=True)
    class Past(Single):
        def module(self, arch, ffn):
            return _Past(head_dim=arch.attention.head_dim)

    def whole_windows(arch, budget_flops):
        optim, data = recipe(arch, budget_flops)
        return optim, replace(data, confine_attention=False)

    arch = replace(MOE, own=(Past(),))
    own.check(gridded(arch, recipe=whole_windows))
    with pytest.raises(BadInput, match="Past gives a token something else when a token of another document changes"):
        own.check(gridded(arch))


class _Past(SingleHead):
    def __call__(self, x_BTD, context):
        return super().__call__(x_BTD, context._replace(mask=jnp.tri(x_BTD.shape[1], dtype=bool)[None]))


def test_what_a_module_raises_is_told_with_its_line():
    @dataclass(frozen=True)
    class Broken(Hidden):
        def module(self, arch, ffn):
            return HiddenRouter(num_hidden=0, num_experts=ffn.num_experts, top_k=ffn.num_experts + 1)

    with pytest.raises(BadInput, match=rf"{re.escape(__file__)}:\d+ raised \w+: .*; mend the part"):
        own.check(gridded(replace(MOE, own=(Broken(),))))


def test_matmuls_are_counted_as_xla_counts_them_and_a_scan_for_every_turn():
    a, b = jnp.zeros((8, 5)), jnp.zeros((3, 5, 5))

    def chained(a, b):
        return jnp.einsum("NI,EIO->NEO", a, b).sum(1) @ b[0]

    def looped(a, b):
        return jax.lax.scan(lambda x, w: (x @ w, None), a, b)[0]

    def either(a, b):
        return jax.lax.cond(a[0, 0] > 0, lambda: a @ b[0], lambda: a)

    def convolved(a, b):
        return jax.lax.conv_general_dilated(a.T[None], b.swapaxes(0, 2), (1,), "SAME")

    matmuls = {"chained": 2 * 8 * 5 * 15 + 2 * 8 * 5 * 5, "looped": 3 * 400, "either": 400, "convolved": 2 * 8 * 5 * 15}
    for program in (chained, looped, either, convolved):
        traced = jax.make_jaxpr(program)(a, b).jaxpr
        assert own.matmul_flops(traced) == matmuls[program.__name__]
    assert own.matmul_flops(jax.make_jaxpr(looped)(a, b).jaxpr, scans_once=True) == 400
    dots = jax.jit(lambda a, b: a @ b[0] @ b[1])
    counted = dots.lower(a, b).compile().cost_analysis()["flops"]
    assert own.matmul_flops(jax.make_jaxpr(dots)(a, b).jaxpr) == counted


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_the_matcher_counts_a_part_on_whole_arrays_as_on_each_size(parts):
    arch = replace(MOE, own=parts)
    rows = [sizes_of(arch) | {"d_model": d, "width": f, "num_experts": e} for d, f, e in ((8, 5, 3), (20, 9, 7))]
    lattice = lattice_spec(arch, {name: np.array([row[name] for row in rows]) for name in rows[0]})
    for name, value in BUDGETS.items():
        each = [value(with_sizes(arch, row), 32, "model") for row in rows]
        np.testing.assert_array_equal(np.broadcast_to(value(lattice, 32, "model"), 2), each, err_msg=name)


def test_the_matcher_makes_the_experts_pay_for_a_router_of_ones_own():
    arch = architecture(width=32)
    free = ("width", "num_experts")
    pair = match.match(arch, replace(arch, own=(Hidden(num_hidden=40),)), context=32, free=free, multiples={"width": 1})
    assert pair.worst < 0.03
    assert pair.arch.ffn.width < arch.ffn.width
    assert pair.arch.own == (Hidden(num_hidden=40),)


def test_a_count_that_cannot_take_arrays_is_refused_by_name_and_only_where_something_moves():
    @dataclass(frozen=True)
    class Rounded(Hidden):
        def num_params(self, arch, ffn):
            return self.num_hidden * int(arch.d_model + ffn.num_experts)

    arch = replace(MOE, own=(Rounded(),))
    assert budget.params(arch).routers == 2 * 6 * 20
    assert match.match(MOE, arch, context=32, held="none").arch == arch
    with pytest.raises(BadInput, match=r"Rounded.\w+ cannot count all sizes at once.*without int\(\)"):
        match.match(MOE, arch, context=32)


SOURCE = '''"""A part."""

import beside_the_part
from dataclasses import dataclass

from beside_the_part import tripled as thrice
from smelt.spec import Own

SIZES = [each for each in (1, 2)]
FLOOR = 1.0


def floor(x):
    return max(x, FLOOR)


@dataclass(frozen=True)
class Part(Own):
    """Documented."""

    replaces = "router"

    def module(self, arch, ffn):
        return floor(thrice(beside_the_part.doubled(1)))  # commented

    def num_params(self, arch, ffn):
        each = 1
        return each
'''
HELPER = """TWO = 2
OTHER = 1


def doubled(x):
    return TWO * x


def tripled(x):
    return 3 * x
"""


def _fingerprint(folder: Path, monkeypatch, source: str = SOURCE, helper: str = HELPER) -> str:
    """Of the part of a file with another beside it, as a process of its own would find it."""
    folder.mkdir()
    (folder / "beside_the_part.py").write_text(helper)
    (folder / "part.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "beside_the_part", raising=False)
    return code_fingerprint((experiment.module(str(folder / "part.py")).Part(),))


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        (("# commented", "# otherwise"), False),
        (('"""Documented."""', '"""Documented twice."""'), False),
        (("(1, 2)", "(1, 2, 3)"), False),
        (("doubled(1)", "doubled(2)"), True),
        (("FLOOR = 1.0", "FLOOR = 2.0"), True),
        (("max(x", "min(x"), True),
        (("frozen=True)", "frozen=True, order=True)"), True),
        (("        return each\n", "        if each:\n            return 2\n        return each\n"), True),
    ],
)
def test_a_part_is_known_by_what_its_code_names_and_not_by_the_rest_of_its_file(tmp_path, monkeypatch, change, moves):
    before = _fingerprint(tmp_path / "before", monkeypatch)
    after = _fingerprint(tmp_path / "after", monkeypatch, source=SOURCE.replace(*change))
    assert re.fullmatch(rf"{code_fingerprint()}\+[0-9a-f]{{12}}", before)
    assert (before != after) == moves


@pytest.mark.parametrize(
    ("change", "moves"),
    [(("TWO = 2", "TWO = 4"), True), (("3 * x", "5 * x"), True), (("OTHER = 1", "OTHER = 2"), False)],
)
def test_what_a_part_names_in_another_file_of_the_users_counts_too(tmp_path, monkeypatch, change, moves):
    before = _fingerprint(tmp_path / "before", monkeypatch)
    assert (_fingerprint(tmp_path / "after", monkeypatch, helper=HELPER.replace(*change)) != before) == moves


def test_a_line_that_leaves_a_block_is_other_code():
    assert bare_code("if x:\n    y()\nz()\n") != bare_code("if x:\n    y()\n    z()\n")
    assert bare_code("if x:\n  y()\n") == bare_code("if x:  # why\n\n    y()\n")


def test_a_part_without_a_source_has_no_fingerprint():
    made = dataclass(frozen=True)(type("Made", (Hidden,), {"__module__": "nowhere"}))
    with pytest.raises(BadInput, match="the source of Made is not at hand"):
        own_source(made)
    record = json.dumps({"replaces": "router", "name": "Theirs", "settings": {}})
    with pytest.raises(BadInput, match="Theirs is known by its record alone"):
        code_fingerprint((spec.RecordedOwn(record),))


def test_a_file_that_is_loaded_twice_has_one_class_and_an_edited_one_another(tmp_path, monkeypatch):
    _fingerprint(tmp_path / "before", monkeypatch)
    path = str(tmp_path / "before" / "part.py")
    first, second = (replace(MOE, own=(experiment.module(path).Part(),)) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    Path(path).write_text(SOURCE.replace("doubled(1)", "doubled(2)"))
    edited = replace(MOE, own=(experiment.module(path).Part(),))
    assert edited != first
    assert spec.to_dict(edited) == spec.to_dict(first)


def test_the_parameters_of_one_class_are_traced_once():
    made = []

    @dataclass(frozen=True)
    class Watched(Hidden):
        def module(self, arch, ffn):
            made.append(ffn)
            return super().module(arch, ffn)

    for _ in range(2):
        model.init(replace(MOE, own=(Watched(),)), jax.random.key(0))
    assert len(made) == 1


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: replace(MOE, own=(type("Plain", (Hidden,), {})(),)), "Plain is no dataclass"),
        (lambda: replace(MOE, own=(Hidden(num_hidden=[1]),)), "cannot be written down .*unhashable"),
        (lambda: replace(MOE, own=(Hidden(num_hidden=float("nan")),)), "cannot be written down"),
        (lambda: replace(MOE, own=(Hidden(num_hidden=jnp.zeros),)), "cannot be written down .*not JSON serializable"),
        (lambda: replace(FOIL, own=(Mix(),)), "an own layer has all its weights in one: give attention_sets='shared'"),
        (lambda: replace(MOE, own=(Mix(), Hidden())), "an own layer brings everything"),
    ],
)
def test_a_part_that_cannot_be_told_from_another_is_refused(made, message):
    with pytest.raises(BadInput, match=message):
        made()


def _documented() -> str:
    """The example of the docs, shrunk to the corpus of the tests."""
    (source,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    for big, small in (
        ('corpus="builtin"', 'corpus="words"'),
        ("validation_tokens=131_072", "validation_tokens=2048"),
        ("CONTEXT = 128", "CONTEXT = 32"),
        ("(12, 16, 20, 24, 28)", "(12,)"),
        ("{6e10: range(0, 4), 1.2e11: range(1, 5)}", "{4e8: [0]}"),
    ):
        assert source.count(big) == 1
        source = source.replace(big, small)
    return source


def _smelt(capsys, *words) -> str:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    assert code == EXIT_DONE, captured.err
    return captured.out


def test_the_example_of_the_docs_goes_from_plan_to_report_and_a_change_of_its_source_makes_it_stale(
    workplace, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    path = workplace(_documented())
    planned = json.loads(_smelt(capsys, "plan", path, "--json"))["rows"]
    assert max(abs(row["match_error_params"]) for row in planned if row["variant"] == "cosine") < 0.01
    assert _smelt(capsys, "run", path, "--workers", 1).startswith("2 computed")
    rows = {row["run_id"]: row for row in ledger.read_folder(tmp_path / "runs" / "pulse")}
    (mine,) = (row for row in rows.values() if row["variant"] == "cosine")
    recorded = {"name": "CosineRouter", "replaces": "router", "settings": {"first_gain": 8.0}}
    assert {row["variant"]: row["arch.own"] for row in rows.values()} == {
        "baseline": None,
        "cosine": json.dumps([recorded], sort_keys=True),
    }
    assert {row["run_id"]: row["num_params_total"] for row in planned} == {
        run: row["num_params_total"] for run, row in rows.items()
    }

    compared = json.loads(_smelt(capsys, "compare", "pulse/cosine", "pulse/baseline", "--json"))
    (pair,) = compared["pairs"]
    told = json.loads(_smelt(capsys, "diff", pair["run_a"], pair["run_b"], "--json"))
    assert json.loads(told["arch.own"][0]) == [recorded]
    assert json.loads(_smelt(capsys, "repro", pair["run_a"], "--json"))["differs"] == {}
    _smelt(capsys, "export", path, "--out", tmp_path / "rows.csv")
    assert {row["run_id"]: row for row in ledger.read_table(tmp_path / "rows.csv")} == rows
    fitted = json.loads(_smelt(capsys, "fit", path, "--json", "--draws", 20))
    assert "mixed_code" not in {warning["code"] for warning in fitted["warnings"]}
    _smelt(capsys, "report", path, "--draws", 20)
    assert "cosine" in (tmp_path / "runs" / "pulse" / "report.html").read_text()

    def states() -> dict[str, str]:
        return {run["run_id"]: run["state"] for run in json.loads(_smelt(capsys, "status", path, "--json"))}

    assert set(states().values()) == {"finished"}
    workplace(_documented().replace("A variant is a function", "It is a function").replace("6e-9", "6e-8"))
    assert set(states().values()) == {"finished"}
    workplace(_documented().replace("+ 1e-6)", "+ 1e-5)"))
    assert states() == {run: "stale" if run == mine["run_id"] else "finished" for run in rows}
    assert _smelt(capsys, "run", path, "--dry-run", "--retrain-stale").startswith("1 runs would be trained, 1 are")


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_wrong_count_is_refused_before_anything_trains(workplace, capsys, tmp_path, verb):
    path = workplace(_documented().replace("ffn.num_experts + 1", "ffn.num_experts + 3"))
    code = main([verb, str(path)])
    captured = capsys.readouterr()
    assert (code, captured.out) == (EXIT_BAD_INPUT, "")
    assert re.match(r"error: CosineRouter.num_params says 99 .*, its parameters are 97: mend", captured.err)
    assert not list((tmp_path / "runs").glob("*/*/metrics.jsonl"))
