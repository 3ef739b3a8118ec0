"""Small texts of two domains, and a corpus made of them."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from smelt.data import corpus, sources
from smelt.data.documents import Recipe
from smelt.data.store import Corpus


def _sentences(generator: random.Random, num_words: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(generator.choices(letters, k=generator.randint(2, 9))) for _ in range(num_words)]
    return " ".join(words) + ".\n"


@pytest.fixture(scope="session")
def texts() -> Callable[[int, int], dict[str, str]]:
    """(number of documents, seed) -> unrelated documents of 40 to 200 words."""

    def make(num_documents: int, seed: int) -> dict[str, str]:
        generator = random.Random(seed)
        return {f"{seed}-{i}": _sentences(generator, generator.randint(40, 200)) for i in range(num_documents)}

    return make


@pytest.fixture(scope="session")
def recipe(texts) -> Recipe:
    domains = {"prose": texts(60, 1), "code": texts(40, 2)}
    return Recipe(
        name="tiny",
        sources=tuple(sources.from_texts(domain, documents) for domain, documents in domains.items()),
        validation_bytes=4_000,
    )


@pytest.fixture(scope="session")
def tiny(recipe, tmp_path_factory) -> Corpus:
    """A byte-level corpus; not to be changed by a test."""
    return corpus.build(recipe, name="tiny", root=tmp_path_factory.mktemp("corpora"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "corpora"
