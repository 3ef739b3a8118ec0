"""What is held out is held out whole, and nothing like it is trained on."""

import numpy as np
import pytest

from smelt.data import corpus, sources
from smelt.data import split as splitting
from smelt.data.documents import Document, Recipe, Source
from smelt.errors import BadInput


def _build(documents, root, *, name="t", **rules):
    rules = {"validation_bytes": 3_000, **rules}
    return corpus.build(
        Recipe(name="t", sources=(sources.from_texts("prose", documents),), **rules), name=name, root=root
    )


def _held_out(built):
    return built.validation_names("prose")


def test_a_near_duplicate_planted_across_the_split_is_moved_to_training(texts, root):
    documents = texts(60, 7)
    victim = max(_held_out(_build(documents, root)), key=lambda name: len(documents[name]))
    # Another case, punctuation and line ends, and three words of fifty replaced.
    words = [word if i % 50 > 2 else "changed" for i, word in enumerate(documents[victim].upper().split())]
    built = _build(documents | {"copy": "-- " + ";\n ".join(words)}, root, name="planted")
    assert victim not in _held_out(built)
    assert "copy" not in _held_out(built)
    assert built.manifest["near_duplicates"]["documents_moved_to_train"]["prose"] >= 1
    stream = bytes(built.train_tokens())
    assert documents[victim].encode() in stream


def test_a_corpus_of_unrelated_documents_moves_none(texts, root):
    near = _build(texts(60, 7), root).manifest["near_duplicates"]
    assert near["documents_moved_to_train"] == {"prose": 0}
    assert near["overlap_left_frac"] == {"prose": 0.0}


def test_a_document_quoted_in_pieces_by_several_others_is_found_too(texts, root):
    documents = texts(60, 7)
    victim = max(_held_out(_build(documents, root)), key=lambda name: len(documents[name]))
    text, others = documents[victim], [name for name in documents if name != victim]
    pieces = [text[start : start + len(text) // 4] for start in range(0, len(text), len(text) // 4)]
    quoting = documents | {name: documents[name] + piece for name, piece in zip(others, pieces, strict=False)}
    assert victim not in _held_out(_build(quoting, root, name="quoted"))


def test_equal_documents_are_kept_once(texts, root):
    documents = texts(30, 8)
    built = _build(documents | {"again": documents["8-0"]}, root)
    assert built.manifest["equal_documents_dropped"] == 1
    assert built.manifest["domains"]["prose"]["num_documents"] == 30


def test_only_copies_of_one_document_leave_nothing_to_validate_on(texts, root):
    text = texts(1, 9)["9-0"] * 3
    documents = {str(i): f"{text} number {i}" for i in range(12)}
    with pytest.raises(BadInput, match="near duplicates"):
        _build(documents, root)


def test_a_single_document_is_refused_with_the_mend(texts, root):
    with pytest.raises(BadInput, match="what separates the documents"):
        _build(texts(1, 9), root)


def test_more_documents_leave_the_split_of_the_others_nearly_as_it_was(texts, root):
    before = set(_held_out(_build(texts(200, 10), root)))
    after = set(_held_out(_build(texts(200, 10) | texts(10, 11), root, name="more")))
    assert len(before & after) >= 0.7 * len(before)


def test_validation_reaches_its_target_and_a_tenth_at_most(texts, root):
    large = _build(texts(200, 12), root)
    longest = max(map(len, texts(200, 12).values()))
    assert 3_000 <= large.manifest["validation"]["prose"]["num_bytes"] < 3_000 + longest
    small = _build(texts(20, 12), root, name="small")
    total = small.manifest["domains"]["prose"]["num_bytes"]
    assert 0.1 * total <= small.manifest["validation"]["prose"]["num_bytes"] < 0.1 * total + longest


def test_documents_of_one_group_fall_on_the_same_side(texts, root):
    docs, code = texts(80, 13), texts(80, 14)

    def documents(left_out):
        for (_, doc), (_, source) in zip(docs.items(), code.items(), strict=True):
            group = str(hash(doc))
            yield Document(identity=f"{group}", group=group, domain="docs", content=doc.encode())
            yield Document(identity=f"{group}", group=group, domain="code", content=source.encode())

    source = Source(name="s", domains=("docs", "code"), licence=None, request={}, documents=documents)
    built = corpus.build(Recipe(name="g", sources=(source,), validation_bytes=2_000), name="g", root=root)
    assert set(built.validation_names("docs")) == set(built.validation_names("code"))
    assert len(built.validation_names("docs")) >= 2


def test_training_documents_of_all_domains_are_mixed(tiny):
    domain = tiny.train_documents()[:, 2]
    assert 0.2 < domain[: len(domain) // 2].mean() < 0.6  # 40 of 100 documents are code
    assert np.count_nonzero(np.diff(domain)) > 20


@pytest.mark.parametrize("size", [64, 65, splitting._BLOCK_UNITS + 63])
def test_a_window_has_the_hash_of_its_own_content_wherever_it_stands(size):
    values = np.random.default_rng(size).integers(97, 123, size).astype(np.uint8)
    found = splitting._windows_hashed(values, splitting.WINDOW)
    assert len(found) == size - splitting.WINDOW + 1
    for start in {0, len(found) // 2, len(found) - 1}:
        sum_ = 0
        for value in values[start : start + splitting.WINDOW].tolist():
            sum_ = (sum_ * splitting._MULTIPLIER + value + 1) % 2**64
        assert found[start] == splitting.mixed(np.array([sum_], np.uint64))[0]


def test_a_build_tells_how_far_it_is(texts, root, monkeypatch):
    monkeypatch.setattr(corpus, "PROGRESS_SECS", 0.0)
    told: list[str] = []
    recipe = Recipe(name="t", sources=(sources.from_texts("prose", texts(60, 7)),), validation_bytes=2_000)
    corpus.build(recipe, root=root, progress=told.append)
    for words in ("documents of prose", "near duplicates in", "wrote "):
        assert any(words in line for line in told), words
