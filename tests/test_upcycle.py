"""A model with more heads and views says what the trained one said, and training then uses them."""

import ast
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from smelt import model, papers, variants
from smelt.errors import BadInput
from smelt.experiment import ROOT
from smelt.files import write_json
from smelt.spec import FFN, ArchSpec, DataSpec, RunSpec, to_dict
from smelt.train import checkpoint, step
from smelt.upcycle import begin, upcycle
from tests.conftest import OPTIM, architecture
from tests.test_spec import Sinks


def _unbiased(arch: ArchSpec) -> ArchSpec:
    return replace(arch, router=replace(arch.router, sigmoid=replace(arch.router.sigmoid, bias_rate=0.0)))


ONE_HEAD = variants.sigmoid_router(
    variants.latent_moe(architecture(8, num_layers=1), width=6, shared_width=8), bias_rate=0.01
)
# Prelude and coda of their own, and a bias that has never moved.
ENDS = replace(
    variants.sigmoid_router(architecture(8, num_layers=1), bias_rate=0.0),
    num_prelude=1,
    num_coda=1,
    outer_ffn=FFN(width=8, num_experts=1, top_k=1),
)
TOKENS = jax.random.randint(jax.random.key(0), (4, 17), 0, 256)
SEGMENTS = jnp.zeros_like(TOKENS)


def trained(arch):
    """Weights and selection biases that are no start's."""
    params = jax.tree.map(lambda leaf: 1.3 * leaf, model.init(arch, jax.random.key(1)))
    for bias in params.get("balance", {}).values():
        bias["bias_KE"] = 0.05 * jax.random.normal(jax.random.key(2), bias["bias_KE"].shape)
    return params


def logits(arch, params, gamma):
    how = {"confine_attention": True, "gamma": gamma}
    return jax.jit(lambda params: model.apply(arch, params, TOKENS, SEGMENTS, **how)[0])(params)


def heads(num_heads, fusion="sum"):
    return variants.multi_router(ONE_HEAD, num_heads=num_heads, fusion=fusion)


UPCYCLED = {
    "two heads, two views": (ONE_HEAD, variants.multi_view(heads(2)), 0.0),
    "three heads by geometric mean, three views": (ONE_HEAD, variants.multi_view(heads(3, "geometric_mean")), 0.0),
    "two heads by product": (ONE_HEAD, heads(2, "product"), 0.0),
    "three heads, learned mixing": (ONE_HEAD, variants.multi_view(heads(3), mixing="learned"), 2.0**-12),
    "two heads by maximum": (ONE_HEAD, heads(2, "max"), 2.0**-22),
    "three heads by product, with ends": (ENDS, variants.multi_router(ENDS, num_heads=3, fusion="product"), 2.0**-12),
}


@pytest.mark.parametrize(("arch", "to_arch", "spread"), UPCYCLED.values(), ids=UPCYCLED)
def test_at_gamma_zero_numbers_are_unchanged_to_32_units_in_the_last_place(arch, to_arch, spread):
    """The programs are two and round differently; measured, 3 to 29 units in the last place of the largest logit."""
    params = trained(arch)
    before = logits(arch, params, 0.0)
    grown = upcycle(arch, params, to_arch, jax.random.key(3), spread=spread)
    shapes = jax.eval_shape(lambda: model.init(to_arch, jax.random.key(0)))
    assert jax.tree.map(jnp.shape, grown) == jax.tree.map(jnp.shape, shapes)
    unit = np.spacing(np.abs(before).max())
    assert np.abs(logits(to_arch, grown, 0.0) - before).max() <= 32 * unit


def test_the_views_that_gamma_brings_in_are_not_those_that_were_there():
    to_arch = variants.multi_view(heads(2))
    params = trained(ONE_HEAD)
    grown = upcycle(ONE_HEAD, params, to_arch, jax.random.key(3))
    assert np.abs(logits(to_arch, grown, 1.0) - logits(ONE_HEAD, params, 0.0)).max() > 0.1


def test_copies_of_the_one_head_have_its_weights_and_its_bias_as_often():
    params = trained(ONE_HEAD)
    grown = upcycle(ONE_HEAD, params, variants.multi_view(heads(3)), jax.random.key(3))
    w_KRDE = grown["loop"]["router"]["w_RDE"]
    assert (w_KRDE == params["loop"]["router"]["w_RDE"]).all()
    assert (grown["balance"]["loop"]["bias_KE"] == 3 * params["balance"]["loop"]["bias_KE"]).all()
    by_product = upcycle(ONE_HEAD, params, heads(3, "product"), jax.random.key(3), spread=0.5)
    w_KRDE = by_product["loop"]["router"]["w_RDE"]
    assert (w_KRDE[:, :1] == params["loop"]["router"]["w_RDE"]).all()
    np.testing.assert_allclose(w_KRDE[:, 1:].sum(1), 0, atol=1e-6)
    assert (by_product["balance"]["loop"]["bias_KE"] == params["balance"]["loop"]["bias_KE"] / 4).all()


def distance(arch, params):
    """How far the heads are apart after 40 steps, as a share of their norm; gamma rises over the first 10."""
    state = step.init_state(arch, OPTIM, 0)._replace(params=params)
    program = jax.jit(partial(step._step, arch=arch, optim=OPTIM, confine_attention=True, mesh=None, accumulate=1))
    for number in range(40):
        gamma = np.float32(min(1.0, number / 10))
        state, _ = program(state, TOKENS, SEGMENTS, np.float32(0.01), gamma)
    w_KRDE = state.params["loop"]["router"]["w_RDE"]
    return float(jnp.linalg.norm(w_KRDE - w_KRDE.mean(1, keepdims=True)) / jnp.linalg.norm(w_KRDE))


def test_views_tear_equal_heads_apart_and_without_them_they_stay_equal():
    to_arch = variants.multi_view(heads(2))
    grown = upcycle(ONE_HEAD, trained(ONE_HEAD), to_arch, jax.random.key(3))
    assert distance(to_arch, grown) > 0.03
    del grown["loop"]["experts"]["w_views_MDL"]
    assert distance(heads(2), grown) == 0.0


def test_a_maximum_tears_heads_apart_that_differ_in_the_last_place():
    to_arch = heads(2, "max")
    grown = upcycle(ONE_HEAD, trained(ONE_HEAD), to_arch, jax.random.key(3), spread=2.0**-22)
    assert distance(to_arch, grown) > 0.03


BAD = [
    ((architecture(8), heads(2), 0.0), "starts from one sigmoid head without views, .* has a softmax router"),
    ((heads(2), heads(3), 0.0), "this architecture has 2 sigmoid heads"),
    ((ONE_HEAD, architecture(8), 0.0), "to_arch has a softmax router: apply variants.multi_router"),
    ((ONE_HEAD, replace(heads(2), d_model=10), 0.1), "to_arch differs in more than heads and views"),
    ((ONE_HEAD, replace(heads(2), ffn=replace(ONE_HEAD.ffn, shared_width=9)), 0.1), "differs in more than heads"),
    ((ONE_HEAD, heads(2), 0.0), "2 equal heads fused by sum would stay one head .*: give a spread, such as 0.1"),
    ((ONE_HEAD, heads(2, "max"), 0.0), "fused by max would stay one head .*: give a spread, such as 2.4e-07"),
    (
        (ONE_HEAD, variants.multi_view(heads(2), mixing="routers_detached"), 0.0),
        "would stay one head for ever where no views are mixed by the routers",
    ),
    ((ONE_HEAD, heads(2), 1.5), "spread is 1.5: give a share of the heads' weights, 0 to 1"),
    (
        (ONE_HEAD, variants.multi_router(_unbiased(ONE_HEAD)), 0.1),
        "to_arch has bias_rate 0, which leaves out the trained selection biases",
    ),
    ((replace(ONE_HEAD, own=(Sinks(num_sinks=1),)), heads(2), 0.0), "parts of one's own cannot be upcycled"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=[message for _, message in BAD])
def test_what_cannot_be_upcycled_is_refused_in_one_line(given, message):
    arch, to_arch, spread = given
    with pytest.raises(BadInput, match=message) as caught:
        upcycle(arch, {}, to_arch, jax.random.key(0), spread=spread)
    assert "\n" not in str(caught.value)


def test_the_papers_backbone_can_be_upcycled_to_both_of_its_models():
    one = papers.multi_view_backbone()
    shapes = jax.eval_shape(lambda: model.init(one, jax.random.key(0)))
    for to_arch in (variants.multi_router(one), variants.multi_view(variants.multi_router(one))):
        grown = jax.eval_shape(
            lambda params, to_arch=to_arch: upcycle(one, params, to_arch, jax.random.key(0), spread=0.1), shapes
        )
        assert jax.tree.map(jnp.shape, grown) == jax.tree.map(
            jnp.shape, jax.eval_shape(lambda to_arch=to_arch: model.init(to_arch, jax.random.key(0)))
        )


def test_the_page_goes_on_from_the_folder_of_a_finished_run(tmp_path, words_corpus, monkeypatch, capsys):
    """The code of docs/upcycling.md, on a run of 20 steps whose weights are drawn."""
    monkeypatch.setenv("SMELT_CORPORA", str(words_corpus.path.parent))
    data = DataSpec(corpus="words", seq_len=16, batch_seqs=2, confine_attention=True, validation_tokens=256)
    run = RunSpec(arch=ONE_HEAD, optim=OPTIM, data=data, num_steps=20, seed=0)
    write_json(tmp_path / "spec.json", to_dict(run))
    checkpoint.save_params(tmp_path, 20, trained(ONE_HEAD))
    page = (ROOT / "docs" / "upcycling.md").read_text()
    code = page.split("```python\n")[1].split("```")[0].replace("runs/NAME/RUN_ID", str(tmp_path))
    names: dict = {}
    exec(code, names)
    assert int(names["state"].step) == 10
    assert names["state"].params["loop"]["experts"]["w_views_MDL"].shape == (1, 1, 8, 6)
    printed = ast.literal_eval(capsys.readouterr().out)
    assert printed.keys() == {"loud", "quiet"}
    assert all(0 < loss < 6 for loss in printed.values())


def test_a_folder_without_weights_is_refused(tmp_path):
    data = DataSpec(corpus="words", seq_len=16, batch_seqs=2, confine_attention=True, validation_tokens=256)
    run = RunSpec(arch=ONE_HEAD, optim=OPTIM, data=data, num_steps=20, seed=0)
    write_json(tmp_path / "spec.json", to_dict(run))
    with pytest.raises(BadInput, match="holds no checkpoint: the run has not finished here"):
        begin(tmp_path, variants.multi_view(heads(2)), OPTIM, jax.random.key(0))
