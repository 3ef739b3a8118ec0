"""Text, JSON lines and parquet become documents, and what cannot be read is refused by name."""

import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from smelt.data import corpus
from smelt.data.sources import text_recipe
from smelt.errors import BadInput


def _written(folder, texts, kind):
    folder.mkdir(parents=True, exist_ok=True)
    values = list(texts.values())
    if kind == "txt":
        for name, text in texts.items():
            (folder / f"{name}.txt").write_text(text)
    elif kind == "separated":
        (folder / "all.txt").write_text("=====".join(values))
    elif kind in ("jsonl", "jsonl.gz"):
        lines = "".join(json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(values)).encode()
        (folder / f"all.{kind}").write_bytes(gzip.compress(lines) if kind.endswith("gz") else lines)
    else:
        parquet.write_table(
            pyarrow.table({"body": values, "id": range(len(values))}), folder / "all.parquet", row_group_size=7
        )
    return folder


@pytest.mark.parametrize("kind", ["txt", "separated", "jsonl", "jsonl.gz", "parquet"])
def test_the_same_documents_give_the_same_tokens_from_every_kind_of_file(texts, tmp_path, root, kind):
    documents = texts(30, 20)
    reference = corpus.build(
        text_recipe("plain", {"prose": [_written(tmp_path / "txt", documents, "txt")]}), name="plain", root=root
    )
    folder = _written(tmp_path / kind, documents, kind)
    separator = "=====" if kind == "separated" else None
    recipe = text_recipe(kind, {"prose": [folder]}, column="body", separator=separator)
    built = corpus.build(recipe, name="other", root=root)
    assert (built.path / "train.bin").read_bytes() == (reference.path / "train.bin").read_bytes()
    assert built.validation_tokens("prose").tobytes() == reference.validation_tokens("prose").tobytes()


def test_a_moved_folder_is_the_same_corpus_and_a_glob_finds_its_files(texts, tmp_path, root):
    documents = texts(20, 21)
    first = corpus.build(text_recipe("t", {"a": [_written(tmp_path / "x", documents, "txt")]}), name="x", root=root)
    moved = _written(tmp_path / "y" / "z", documents, "txt")
    second = corpus.build(text_recipe("t", {"a": [moved / "*.txt"]}), name="y", root=root)
    assert first.fingerprint == second.fingerprint


def test_each_domain_keeps_its_own_files(texts, tmp_path, root):
    paths = {
        "one": [_written(tmp_path / "1", texts(20, 22), "txt")],
        "two": [_written(tmp_path / "2", texts(20, 23), "jsonl")],
    }
    built = corpus.build(text_recipe("t", paths, column="body", licences={"two": "CC0-1.0"}), name="t", root=root)
    assert built.domains == ("one", "two")
    assert built.manifest["domains"]["one"]["licences"] == {"one": None}
    assert built.manifest["domains"]["two"]["licences"] == {"two": "CC0-1.0"}


def _bad(folder, name, content):
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("latin.txt", "caf\xe9 au lait".encode("latin-1"), r"latin\.txt is not UTF-8 at byte 3 \(0xe9\)"),
        ("torn.jsonl", b'{"text": "a"}\n{"text": "b', r"torn\.jsonl line 2 is not JSON"),
        ("other.jsonl", b'{"body": "a", "id": 1}\n', r"line 1 has no field 'text'; it has body, id"),
        ("null.jsonl", b'{"text": null}\n', "is NoneType, not text"),
        ("list.jsonl", b"[1, 2]\n", "no field 'text'; it has none"),
        ("surrogate.jsonl", b'{"text": "\\ud800"}\n', "lone surrogate"),
        ("no.parquet", b"PAR0", "is no parquet file"),
        ("deep.jsonl", b"[" * 100_000, "line 1 is not JSON"),
        ("plain.jsonl.gz", b'{"text": "a"}\n', "is no whole gzip file"),
        ("torn.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 99)[:-10], "is no whole gzip file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line_and_nothing_is_left(tmp_path, root, name, content, message):
    path = _bad(tmp_path / "text", name, content)
    with pytest.raises(BadInput, match=message) as refusal:
        corpus.build(text_recipe("t", {"prose": [path]}), name="t", root=root)
    assert "\n" not in str(refusal.value)
    assert list(root.iterdir()) == []


def test_a_parquet_file_with_damaged_pages_is_refused(texts, tmp_path, root):
    folder = _written(tmp_path / "p", texts(20, 25), "parquet")
    content = bytearray((folder / "all.parquet").read_bytes())
    content[40:300] = b"\xff" * 260
    (folder / "all.parquet").write_bytes(content)
    with pytest.raises(BadInput, match=r"all\.parquet is damaged after row 0"):
        corpus.build(text_recipe("t", {"prose": [folder]}, column="body"), name="t", root=root)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a"])
def test_a_name_that_is_no_folder_under_the_root_is_refused(texts, tmp_path, root, name):
    folder = _written(tmp_path / "p", texts(20, 26), "txt")
    with pytest.raises(BadInput, match="is no name of a corpus"):
        corpus.build(text_recipe("t", {"prose": [folder]}), name=name, root=root)
    assert not root.exists()


def test_a_missing_parquet_column_is_refused_with_the_columns_there_are(texts, tmp_path, root):
    folder = _written(tmp_path / "p", texts(20, 24), "parquet")
    with pytest.raises(BadInput, match="has no column 'text'; it has body, id"):
        corpus.build(text_recipe("t", {"prose": [folder]}), name="t", root=root)


def test_paths_that_name_nothing_or_an_unknown_kind_are_refused(tmp_path):
    with pytest.raises(BadInput, match="names no file"):
        text_recipe("t", {"prose": [tmp_path / "*.txt"]})
    with pytest.raises(BadInput, match="no known kind"):
        text_recipe("t", {"prose": [_bad(tmp_path, "a.docx", b"x")]})
    with pytest.raises(BadInput, match="domain name 'Prose text'"):
        text_recipe("t", {"Prose text": [_bad(tmp_path, "a.txt", b"x")]})
