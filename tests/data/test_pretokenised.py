"""Token files of nanoGPT, llm.c and Megatron, written here by hand, become corpora that hold the same documents."""

import numpy as np
import pytest

from smelt.data import corpus
from smelt.data.formats import read_llmc, read_megatron, token_recipe
from smelt.errors import BadInput

VOCAB, END = 1000, 999


def _documents(num_documents, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.integers(0, END, generator.integers(50, 150)) for _ in range(num_documents)]


def _nanogpt(path, documents, dtype="<u2"):
    np.concatenate([np.append(document, END) for document in documents]).astype(dtype).tofile(path)
    return path


def _llmc(path, documents, magic=(20240520, 1), dtype="<u2"):
    tokens = np.concatenate([np.append(END, document) for document in documents]).astype(dtype)
    header = np.zeros(256, "<i4")
    header[:3] = (*magic, len(tokens))
    path.write_bytes(header.tobytes() + tokens.tobytes())
    return path


def _megatron(prefix, documents, code=8, dtype="<u2"):
    """Each document as two sequences, as preprocessing by sentence writes it."""
    sequences = [half for document in documents for half in np.array_split(document.astype(dtype), 2)]
    lengths = np.array([len(sequence) for sequence in sequences], "<i4")
    offsets = (np.cumsum(lengths) - lengths).astype("<i8") * np.dtype(dtype).itemsize
    table = np.arange(0, len(sequences) + 1, 2, dtype="<i8")
    counts = np.array([len(sequences), len(table)], "<u8")
    header = b"MMIDIDX\x00\x00" + np.array([1], "<u8").tobytes() + bytes([code]) + counts.tobytes()
    prefix.with_suffix(".idx").write_bytes(header + lengths.tobytes() + offsets.tobytes() + table.tobytes())
    prefix.with_suffix(".bin").write_bytes(np.concatenate(sequences).tobytes())
    return prefix


_WRITERS = {"nanogpt": _nanogpt, "llmc": _llmc, "megatron": _megatron}


def _built(format, paths, root, *, name="t", separator_id=END, vocab_size=VOCAB, **given):
    recipe = token_recipe(
        "t", format, paths, vocab_size=vocab_size, separator_id=separator_id, validation_tokens=500, **given
    )
    return corpus.import_tokens(recipe, vocab_size=vocab_size, separator_id=separator_id, name=name, root=root)


def _contents(tokens, table):
    ends = [*table[1:, 0], len(tokens)]
    return [tuple(map(int, tokens[start + 1 : end])) for start, end in zip(table[:, 0], ends, strict=True)]


@pytest.mark.parametrize("format", sorted(_WRITERS))
def test_an_imported_corpus_holds_exactly_the_documents_of_its_files(tmp_path, root, format):
    documents = _documents(40)
    built = _built(format, [_WRITERS[format](tmp_path / "data", documents)], root)
    found = _contents(built.train_tokens(), built.train_documents())
    held_out = _contents(built.validation_tokens("text"), built.validation_documents("text"))
    assert sorted(found + held_out) == sorted(tuple(map(int, document)) for document in documents)
    assert len(held_out) >= 1
    assert built.manifest["token_dtype"] == "uint16"
    assert corpus.verify(built) == []


def test_given_validation_files_are_held_out_as_they_are(tmp_path, root):
    train, held_out = _documents(30, 1), _documents(5, 2)
    paths = [_nanogpt(tmp_path / "train.bin", train)]
    built = _built("nanogpt", paths, root, validation_paths=[_nanogpt(tmp_path / "val.bin", held_out)])
    contents = _contents(built.validation_tokens("text"), built.validation_documents("text"))
    assert sorted(contents) == sorted(tuple(map(int, document)) for document in held_out)


def test_a_given_validation_document_that_was_trained_on_moves_to_training(tmp_path, root):
    train, held_out = _documents(30, 1), _documents(5, 2)
    leaked = np.append(train[3][:-10], 7)
    paths = [_nanogpt(tmp_path / "train.bin", train)]
    validation = [_nanogpt(tmp_path / "val.bin", [*held_out, leaked])]
    built = _built("nanogpt", paths, root, validation_paths=validation)
    assert built.manifest["near_duplicates"]["documents_moved_to_train"] == {"text": 1}
    assert tuple(map(int, leaked)) in _contents(built.train_tokens(), built.train_documents())


def test_bytes_per_token_of_tokens_without_text_is_none(tmp_path, root):
    built = _built("nanogpt", [_nanogpt(tmp_path / "train.bin", _documents(40))], root)
    assert built.bytes_per_token("text") is None
    with pytest.raises(BadInput, match="imported as token ids"):
        built.load_tokenizer()


def test_with_its_tokenizer_an_import_knows_its_bytes(tiny, recipe, tmp_path, root):
    text = corpus.build(recipe, tokenizer="bpe:400", name="text", root=root)
    np.asarray(text.train_tokens()).tofile(tmp_path / "train.bin")
    np.asarray(text.validation_tokens("prose")).tofile(tmp_path / "val.bin")
    tokens = token_recipe(
        "t",
        "nanogpt",
        [tmp_path / "train.bin"],
        vocab_size=400,
        separator_id=0,
        validation_paths=[tmp_path / "val.bin"],
    )
    built = corpus.import_tokens(
        tokens,
        vocab_size=400,
        separator_id=0,
        name="t",
        root=root,
        tokenizer_json=text.path / "tokenizer.json",
    )
    assert built.bytes_per_token("text") == text.bytes_per_token("prose")


def test_a_vocabulary_too_large_for_the_files_integers_is_refused(tmp_path, root):
    path = _nanogpt(tmp_path / "train.bin", _documents(10))
    with pytest.raises(BadInput, match=r"stores uint16, which holds ids up to 65535: too small for .* 128256"):
        _built("nanogpt", [path], root, vocab_size=128_256)
    with pytest.raises(BadInput, match="stores uint8"):
        _built("megatron", [_megatron(tmp_path / "m", _documents(10), code=1, dtype="<u1")], root)
    assert not root.exists()


def test_an_id_outside_the_vocabulary_is_refused_by_value(tmp_path, root):
    path = _nanogpt(tmp_path / "train.bin", _documents(10))
    with pytest.raises(BadInput, match="holds the id 999, outside the vocabulary of 500"):
        _built("nanogpt", [path], root, vocab_size=500, separator_id=0)
    with pytest.raises(BadInput, match="separator id 999 is outside the vocabulary of 500"):
        _built("nanogpt", [path], root, vocab_size=500)
    assert not root.exists() or list(root.iterdir()) == []


def test_a_separator_that_never_occurs_is_refused(tmp_path, root):
    path = tmp_path / "train.bin"
    np.arange(100, dtype="<u2").tofile(path)
    with pytest.raises(BadInput, match="never holds the separator id 999"):
        _built("nanogpt", [path], root)


def test_files_without_separators_are_one_document_each(tmp_path, root):
    paths = {}
    for name, seed in (("train", 1), ("val", 2)):
        paths[name] = tmp_path / f"{name}.bin"
        np.random.default_rng(seed).integers(0, 65, 5_000).astype("<u2").tofile(paths[name])
    built = _built("nanogpt", [paths["train"]], root, separator_id=None, vocab_size=65, validation_paths=[paths["val"]])
    assert built.separator_id is None
    np.testing.assert_array_equal(built.train_tokens(), np.fromfile(paths["train"], "<u2"))


def test_32_bit_files_are_read(tmp_path, root):
    documents = [document * 100 for document in _documents(20)]
    big = 100_000
    nanogpt = np.concatenate([np.append(document, big - 1) for document in documents]).astype("<u4")
    nanogpt.tofile(tmp_path / "n.bin")
    given = {"separator_id": big - 1, "vocab_size": big}
    from_nanogpt = _built("nanogpt", [tmp_path / "n.bin"], root, name="n", dtype="uint32", **given)
    header = np.zeros(256, "<i4")
    header[:3] = (20240801, 7, len(nanogpt))
    (tmp_path / "l.bin").write_bytes(header.tobytes() + nanogpt.tobytes())
    from_llmc = _built("llmc", [tmp_path / "l.bin"], root, name="l", **given)
    prefix = _megatron(tmp_path / "m", documents, code=4, dtype="<i4")
    from_megatron = _built("megatron", [prefix], root, name="m", **given)
    for built in (from_nanogpt, from_llmc, from_megatron):
        assert built.manifest["token_dtype"] == "uint32"
        assert built.manifest["train"]["num_documents"] + built.manifest["validation"]["text"]["num_documents"] == 20


def test_torn_and_foreign_files_are_refused(tmp_path):
    llmc = _llmc(tmp_path / "l.bin", _documents(5))
    llmc.write_bytes(llmc.read_bytes()[:-4])
    with pytest.raises(BadInput, match="copy it again"):
        read_llmc(llmc)
    with pytest.raises(BadInput, match=r"is no llm\.c token file"):
        read_llmc(_nanogpt(tmp_path / "n.bin", _documents(10)))
    prefix = _megatron(tmp_path / "m", _documents(5))
    prefix.with_suffix(".bin").write_bytes(prefix.with_suffix(".bin").read_bytes()[:-2])
    with pytest.raises(BadInput, match="copy both again"):
        read_megatron(prefix)
    with pytest.raises(BadInput, match="no integer type"):
        read_megatron(_megatron(tmp_path / "f", _documents(5), code=7))
    with pytest.raises(BadInput, match="does not exist"):
        read_megatron(tmp_path / "nothing")
