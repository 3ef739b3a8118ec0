"""What is minimised: cross-entropy over all targets and router terms, differentiated as finite differences say."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shapes import ARCHITECTURES, BASELINE, LENGTH, windows

from smelt import model, variants
from smelt.model import decoder, loss


@cache
def evaluated(name: str):
    arch = ARCHITECTURES[name]
    params = model.init(arch, jax.random.key(0))
    tokens_BU, segments_BU = windows(3, LENGTH + 1)
    both = jax.jit(
        lambda params: (
            model.losses(arch, params, tokens_BU, segments_BU, confine_attention=True),
            model.token_losses(arch, params, tokens_BU, segments_BU, confine_attention=True),
            model.apply(arch, params, tokens_BU[:, :-1], segments_BU[:, :-1], confine_attention=True),
        )
    )
    return both(params)


def test_cross_entropy_is_minus_the_log_probability_of_the_target():
    logits_BTV = jax.random.normal(jax.random.key(0), (2, 3, 5)) * 20
    targets_BT = jnp.asarray([[0, 4, 2], [1, 1, 3]])
    log_probs = np.asarray(logits_BTV, np.float64)
    log_probs = log_probs - np.log(np.exp(log_probs).sum(-1, keepdims=True))
    wanted_BT = -np.take_along_axis(log_probs, np.asarray(targets_BT)[..., None], -1)[..., 0]
    np.testing.assert_allclose(loss.cross_entropy(logits_BTV, targets_BT), wanted_BT, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["baseline", "foil", "dense"])
def test_the_objective_is_the_mean_over_all_targets_plus_the_router_terms(name: str):
    (objective, metrics), nats_BT, (_, aux) = evaluated(name)
    assert nats_BT.shape == (3, LENGTH)
    np.testing.assert_allclose(metrics["loss_nats"], nats_BT.mean(), rtol=1e-6)
    wanted = metrics["loss_nats"] + 0.01 * metrics["load_balance"] + 0.001 * metrics["z_loss"]
    np.testing.assert_allclose(objective, wanted, rtol=1e-6)
    if name == "dense":
        assert metrics["load_balance"] == metrics["z_loss"] == 0
        assert "max_load" not in metrics
        assert aux.loads == {}


def test_loads_are_given_by_visit_and_the_losses_average_over_visits():
    (_, metrics), _, (_, aux) = evaluated("foil")
    assert {name: load.shape for name, load in aux.loads.items()} == {"prelude": (1, 3), "loop": (4, 4), "coda": (1, 3)}
    for load in aux.loads.values():
        np.testing.assert_allclose(load.sum(-1), 1, rtol=1e-6)
    busiest = max(float(load.max() * load.shape[-1]) for load in aux.loads.values())
    np.testing.assert_allclose(metrics["max_load"], busiest, rtol=1e-6)


GRADIENTS = (
    "foil",
    "loop_middle",
    "tied",
    "latent",
    "multi_view",
    "learned_mixing",
    "foil_multi_view",
    "multi_router",
    "geometric_mean",
    "foil, scanned",
    "foil_multi_view, scanned",
)


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_derivative_is_what_finite_differences_say(name: str, monkeypatch: pytest.MonkeyPatch):
    name, _, scanned = name.partition(", ")
    if scanned:  # and recomputed in the backward pass, as deep stacks are
        monkeypatch.setattr(decoder, "UNROLLED_VISITS", 0)
    if name == "geometric_mean":
        arch = variants.multi_router(ARCHITECTURES["latent"], fusion="geometric_mean")
    else:
        arch = ARCHITECTURES[name]
    arch = replace(arch, router=replace(arch.router, load_balance_coef=0.1, z_loss_coef=0.01))
    with jax.enable_x64(True):
        params = model.init(arch, jax.random.key(0))
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
        tokens_BU, segments_BU = windows(2, 7)

        @jax.jit
        @jax.value_and_grad
        def objective(params):
            return model.losses(arch, params, tokens_BU, segments_BU, confine_attention=True, gamma=0.7)[0]

        _, gradient = objective(params)
        leaves, tree = jax.tree.flatten(params)
        for seed in range(3):
            keys = jax.random.split(jax.random.key(seed), len(leaves))
            step = jax.tree.unflatten(
                tree, [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
            )
            slope = sum(jax.tree.leaves(jax.tree.map(lambda a, b: (a * b).sum(), gradient, step)))
            ahead, behind = (
                objective(jax.tree.map(lambda leaf, d, h=h: leaf + h * d, params, step))[0] for h in (1e-6, -1e-6)
            )
            # Top-k moves in jumps; a step this small crosses none here.
            np.testing.assert_allclose((ahead - behind) / 2e-6, slope, rtol=1e-5, atol=1e-7)


def test_one_hundred_steps_of_gradient_descent_learn_a_repeated_window():
    tokens_BU, segments_BU = windows(2, LENGTH + 1)
    params = model.init(BASELINE, jax.random.key(0))

    @jax.jit
    def descended(params):
        def step(params, _):
            gradient, metrics = jax.grad(
                lambda p: model.losses(BASELINE, p, tokens_BU, segments_BU * 0, confine_attention=False), has_aux=True
            )(params)
            return jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient), metrics["loss_nats"]

        return jax.lax.scan(step, params, length=100)[1]

    losses_nats = descended(params)
    assert losses_nats[-1] < 0.4 * losses_nats[0]
