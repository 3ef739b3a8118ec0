"""What every test runs under: one thread, and compiled programs kept between runs."""

import os

os.environ.setdefault("NPROC", "1")  # read by XLA: the test processes run side by side
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two processes with two threads each wait for one another
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.abspath(".cache/jax-tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("MPLBACKEND", "Agg")

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from smelt.data import corpus, sources
from smelt.data.documents import Recipe
from smelt.data.store import Corpus
from smelt.spec import FFN, ArchSpec, Attention, Loop, OptimSpec, Router

# fmt: off
WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with", "his",
    "they", "at", "be", "this", "from", "have", "or", "by", "one", "had", "not", "but",
)
# fmt: on

OPTIM = OptimSpec(
    peak_lr=0.01,
    schedule="wsd",
    warmup_frac=0.1,
    decay_frac=0.3,
    final_frac=0.05,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    weight_decay=0.1,
    clip_norm=1.0,
)


def architecture(width: int = 16, num_layers: int = 2, num_experts: int = 4, head_dim: int = 12) -> ArchSpec:
    """An unlooped byte-level model that trains in a second."""
    return ArchSpec(
        vocab_size=256,
        d_model=width,
        num_prelude=0,
        loop=Loop(num_layers=num_layers, num_passes=1, residual_scale=1.0, attention_sets="shared"),
        num_coda=0,
        attention=Attention(num_heads=2, num_kv_heads=1, head_dim=head_dim, scale="1/sqrt(d_k)"),
        ffn=FFN(width=2 * width, num_experts=num_experts, top_k=min(2, num_experts)),
        outer_ffn=None,
        router=Router(load_balance_coef=0.01, z_loss_coef=0.001),
        norm_gain=True,
        tied_embeddings=False,
    )


@pytest.fixture(scope="session")
def corpora_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpora")


@pytest.fixture(scope="session")
def words_corpus(corpora_root: Path) -> Corpus:
    """Byte-level documents of common words in two domains: far from uniform, so that a model soon beats unigrams."""
    generator = random.Random(0)

    def documents(count: int, shout: bool) -> dict[str, str]:
        made = {}
        for index in range(count):
            text = " ".join(generator.choices(WORDS, weights=range(len(WORDS), 0, -1), k=generator.randint(60, 240)))
            made[f"{shout}-{index}"] = text.upper() if shout else text
        return made

    recipe = Recipe(
        name="words",
        sources=(sources.from_texts("quiet", documents(160, False)), sources.from_texts("loud", documents(80, True))),
        validation_bytes=8_000,
    )
    return corpus.build(recipe, name="words", root=corpora_root)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words_corpus: Corpus) -> Callable[[str], Path]:
    """A temporary working folder that sees the corpus `words`; the function writes an experiment file into it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMELT_CORPORA", str(words_corpus.path.parent))
    monkeypatch.setenv("SMELT_RUNS", str(tmp_path / "runs"))

    def write(source: str) -> Path:
        path = tmp_path / "pulse.py"
        path.write_text(source)
        return path

    return write


PULSE = '''"""Pulse: does the smallest grid run end to end?"""

from tests.conftest import architecture
from smelt import grid, match, variants
from smelt.spec import DataSpec, OptimSpec


def recipe(arch, budget_flops):
    optim = OptimSpec(peak_lr=0.02, schedule="wsd", warmup_frac=0.1, decay_frac=0.3, final_frac=0.05, beta1=0.9,
                      beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0)
    data = DataSpec(corpus="words", seq_len=32, batch_seqs=4, confine_attention=True, validation_tokens=2048)
    return optim, data


RUNS = grid.isoflop(
    ladder=[architecture()],
    sizes={6e8: [0]},
    variants=(variants.baseline, variants.loop_middle),
    recipe=recipe,
    seeds=(0,),
    matcher=lambda baseline, arch: match.match(baseline, arch, context=32, multiples={"d_model": 1, "width": 1}),
    held="three_budgets",
    bound=0.04,
)
'''
