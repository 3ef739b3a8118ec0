"""A trained one-headed model, trained on as it is and upcycled -> what upcycling costs at first and what it is worth.

`python -m benchmarks.upcycle` prints markdown, about two minutes on one core. The model is the backbone of
experiments/multi_view.py, 400 steps of it, then 300 steps more with a schedule of their own: with its one head, with
two summed heads that begin a spread apart, and with two views whose heads begin as copies. A start is measured at
gamma 0.

Prediction  Written before the first run of this command. Starts are those of the one head to 32 units in the last
            place of the largest logit where nothing is spread, and within 0.001 nats at spread 0.1. After 300 steps
            no upcycled arm is better than the one head by more than two standard errors over seeds: the experiment
            from the beginning found nothing above one seed spread (0.023 nats). Spread heads come closer together,
            heads of mixed views go apart.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from smelt import experiment, model, variants
from smelt.data import pipeline
from smelt.data.store import open_corpus
from smelt.launch.environment import use_compilation_cache
from smelt.spec import ArchSpec, RunSpec
from smelt.train import evaluate
from smelt.train.schedule import learning_rate, view_ramp
from smelt.train.step import State, compile_step, init_state
from smelt.upcycle import upcycle

MULTI_VIEW = experiment.module("multi_view")
SEEDS = (0, 1, 2)
MORE_STEPS = 300
TWO_HEADS = variants.multi_router(MULTI_VIEW.backbone(), num_heads=2)
# label -> architecture and spread; None is the model as it is
ARMS: dict[str, tuple[ArchSpec | None, float]] = {
    "one head": (None, 0.0),
    "two heads, spread 0.1": (TWO_HEADS, 0.1),
    "two heads, spread 1": (TWO_HEADS, 1.0),
    "two views": (variants.multi_view(TWO_HEADS), 0.0),
}


def main() -> None:
    use_compilation_cache()
    corpus = open_corpus("builtin")
    optim, data = MULTI_VIEW.recipe(MULTI_VIEW.backbone(), 0.0)
    slices = pipeline.validation_windows(corpus, data.seq_len, data.validation_tokens)
    programs: dict[Any, Any] = {}

    def program(kind: Any, arch: ArchSpec) -> Any:
        if (kind, arch) not in programs:
            made = kind(arch, data) if kind is evaluate.compile_token_losses else kind(arch, optim, data)
            programs[kind, arch] = made
        return programs[kind, arch]

    def loss_nats(arch: ArchSpec, params: Any) -> float:
        losses = evaluate.validation_losses(
            program(evaluate.compile_token_losses, arch), params, slices, data.batch_seqs
        )
        return float(np.mean([documents.loss_nats for documents in losses.values()]))

    def trained(arch: ArchSpec, state: State, seed: int, first: int, num_steps: int) -> State:
        batches = pipeline.Batches(corpus, seq_len=data.seq_len, batch_seqs=data.batch_seqs, seed=seed)
        for number, batch in enumerate(batches.prefetch(first, first + num_steps)):
            rate, gamma = learning_rate(optim, num_steps, number), view_ramp(optim, num_steps, number)
            state, _ = program(compile_step, arch)(
                state, batch.tokens, batch.segments, np.float32(rate), np.float32(gamma)
            )
        return state

    measured: dict[str, list[dict[str, float]]] = {label: [] for label in ARMS}
    for seed in SEEDS:
        run = RunSpec(arch=MULTI_VIEW.backbone(), optim=optim, data=data, num_steps=MULTI_VIEW.NUM_STEPS, seed=seed)
        base = trained(run.arch, init_state(run.arch, optim, seed), seed, 0, run.num_steps).params
        base = jax.tree.map(np.asarray, base)
        windows = slices[next(iter(slices))].tokens[:8, :-1]
        for label, (to_arch, spread) in ARMS.items():
            arch = to_arch or run.arch
            params = base if to_arch is None else upcycle(run.arch, base, arch, jax.random.key(seed), spread=spread)
            difference = _logits(arch, params, windows) - _logits(run.arch, base, windows)
            apart_before = _apart(params)
            state = init_state(arch, optim, seed)._replace(params=jax.tree.map(jnp.array, params))
            after = trained(arch, state, seed, run.num_steps, MORE_STEPS).params
            measured[label].append(
                {
                    "ulps": float(
                        np.abs(difference).max() / np.spacing(np.abs(_logits(run.arch, base, windows)).max())
                    ),
                    "start_nats": float(_mean_loss(arch, params, windows) - _mean_loss(run.arch, base, windows)),
                    "apart_before": apart_before,
                    "apart_after": _apart(after),
                    "loss_nats": loss_nats(arch, after),
                }
            )
    _print(measured)


def _logits(arch: ArchSpec, params: Any, tokens_BT: np.ndarray) -> np.ndarray:
    apply = jax.jit(lambda p: model.apply(arch, p, tokens_BT, tokens_BT * 0, confine_attention=True, gamma=0.0)[0])
    return np.asarray(apply(params))


def _mean_loss(arch: ArchSpec, params: Any, tokens_BT: np.ndarray) -> float:
    """Nats a token at gamma 0, in float64 from the logits."""
    logits_BTV = _logits(arch, params, tokens_BT)[:, :-1].astype(np.float64)
    norms_BT = np.log(np.exp(logits_BTV - logits_BTV.max(-1, keepdims=True)).sum(-1)) + logits_BTV.max(-1)
    return float((norms_BT - np.take_along_axis(logits_BTV, tokens_BT[:, 1:, None], -1)[..., 0]).mean())


def _apart(params: Any) -> float:
    """The distance of two heads over the norm of their mean, over all layers; 0 of one head."""
    w_KRDE = np.asarray(params["loop"]["router"]["w_RDE"])
    if w_KRDE.shape[1] == 1:
        return 0.0
    return float(np.linalg.norm(w_KRDE[:, 0] - w_KRDE[:, 1]) / np.linalg.norm(w_KRDE.mean(1)))


def _print(measured: dict[str, list[dict[str, float]]]) -> None:
    print("# Upcycling one head to several heads and views\n")
    print(
        f"`python -m benchmarks.upcycle`: {MULTI_VIEW.NUM_STEPS} steps of one head, {MORE_STEPS} more, seeds {SEEDS}.\n"
    )
    print(
        "| arm | largest logit difference, ulps | start, nats | heads apart, before | after "
        "| against one head, nats | s.e. |"
    )
    print("|---|---|---|---|---|---|---|")
    ones = np.array([one["loss_nats"] for one in measured["one head"]])
    for label, found in measured.items():
        mean = {name: np.mean([one[name] for one in found]) for name in found[0]}
        ulps = max(one["ulps"] for one in found)
        against = np.array([one["loss_nats"] for one in found]) - ones
        error = against.std(ddof=1) / np.sqrt(len(against))
        shown = "reference" if label == "one head" else f"{against.mean():+.4f}"
        apart = f"{mean['apart_before']:.2f} | {mean['apart_after']:.2f}"
        gained = f"{shown} | {'' if label == 'one head' else f'{error:.4f}'}"
        print(f"| {label} | {ulps:.3g} | {mean['start_nats']:+.2g} | {apart} | {gained} |")
    print(f"\nOne head after {MORE_STEPS} more steps: {ones.mean():.4f} nats.")


if __name__ == "__main__":
    main()
