"""A corpus folder is whole or absent, equal sources give equal corpora, and a change is found."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from smelt.data import corpus, sources, tokenizers
from smelt.data.documents import Recipe
from smelt.errors import BadInput


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_equal_sources_give_equal_fingerprints_and_equal_files(recipe, tiny, root):
    again = corpus.build(recipe, name="another-name", root=root)
    assert again.fingerprint == tiny.fingerprint
    for name in tiny.manifest["files"]:
        assert (again.path / name).read_bytes() == (tiny.path / name).read_bytes()


def test_one_changed_letter_gives_another_fingerprint(texts, tiny, root):
    prose = texts(60, 1)
    prose["1-0"] = "z" + prose["1-0"][1:]
    changed = Recipe(
        name="tiny",
        sources=(sources.from_texts("prose", prose), sources.from_texts("code", texts(40, 2))),
        validation_bytes=4_000,
    )
    assert corpus.build(changed, name="tiny", root=root).fingerprint != tiny.fingerprint


def test_every_document_is_in_exactly_one_split_and_none_is_altered(texts, tiny):
    expected = sorted(text for seed, number in ((1, 60), (2, 40)) for text in texts(number, seed).values())
    streams = [tiny.train_tokens(), *(tiny.validation_tokens(domain) for domain in tiny.domains)]
    found = [text for stream in streams for text in bytes(stream).decode().split("\x00")[1:]]
    assert sorted(found) == expected


def test_the_document_table_points_at_the_separators_and_counts_the_bytes(tiny):
    tokens, table = tiny.train_tokens(), tiny.train_documents()
    np.testing.assert_array_equal(np.flatnonzero(tokens == 0), table[:, 0])
    np.testing.assert_array_equal(np.diff(table[:, 0], append=len(tokens)) - 1, table[:, 1])
    assert set(table[:, 2]) == {0, 1}


def test_training_and_validation_bytes_of_a_domain_sum_to_its_bytes(tiny):
    table = tiny.train_documents()
    for index, domain in enumerate(tiny.domains):
        held_out = tiny.validation_documents(domain)[:, 1].sum()
        assert table[table[:, 2] == index, 1].sum() + held_out == tiny.manifest["domains"][domain]["num_bytes"]
        assert tiny.manifest["validation"][domain]["num_bytes"] == held_out


def test_the_manifest_names_documents_bytes_licence_and_sha256_of_each_domain(texts, root):
    recipe = Recipe(
        name="licensed",
        sources=(sources.from_texts("prose", texts(20, 3), licence="CC0-1.0"),),
        validation_bytes=1_000,
    )
    domain = corpus.info(corpus.build(recipe, name="licensed", root=root))["domains"]["prose"]
    assert domain["num_documents"] == 20
    assert domain["num_bytes"] == sum(map(len, texts(20, 3).values()))
    assert domain["licences"] == {"prose": "CC0-1.0"}
    assert len(domain["sha256"]) == 64


def test_a_second_build_of_the_same_corpus_does_nothing_and_says_so(recipe, root):
    corpus.build(recipe, name="tiny", root=root)
    before = {name: (root / "tiny" / name).stat().st_mtime_ns for name in _names(root / "tiny")}
    said = []
    corpus.build(recipe, name="tiny", root=root, progress=said.append)
    assert said[-1].endswith("nothing to do")
    assert before == {name: (root / "tiny" / name).stat().st_mtime_ns for name in _names(root / "tiny")}


def test_another_corpus_of_that_name_is_replaced_only_by_force(texts, recipe, root):
    first = corpus.build(recipe, name="tiny", root=root)
    other = Recipe(name="other", sources=(sources.from_texts("prose", texts(20, 9)),), validation_bytes=1_000)
    with pytest.raises(BadInput, match="holds another corpus"):
        corpus.build(other, name="tiny", root=root)
    assert corpus.open_corpus(root / "tiny").fingerprint == first.fingerprint
    assert corpus.build(other, name="tiny", root=root, force=True).fingerprint != first.fingerprint
    assert _names(root) == ["tiny"]


def test_a_missing_corpus_is_refused_with_the_command_that_builds_it(root):
    with pytest.raises(BadInput, match="smelt corpus build"):
        corpus.open_corpus(root / "nowhere")


def test_the_environment_says_where_corpora_live(recipe, root, monkeypatch):
    monkeypatch.setenv("SMELT_CORPORA", str(root))
    built = corpus.build(recipe, name="tiny")
    assert corpus.open_corpus("tiny").fingerprint == built.fingerprint
    assert built.path == root / "tiny"


@pytest.mark.parametrize("name", ["train.bin", "train.docs.npy", "validation-code.bin"])
def test_one_changed_byte_is_found_when_the_corpus_is_opened_again(recipe, root, name):
    path = corpus.build(recipe, name="tiny", root=root).path / name
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match="was changed since it was built"):
        corpus.open_corpus(root / "tiny")
    assert corpus.verify(root / "tiny") == [f"{name} has another content than when it was built"]


def test_an_edited_manifest_does_not_match_its_fingerprint(recipe, root):
    path = corpus.build(recipe, name="tiny", root=root).path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["tokenizer"]["vocab_size"] = 300
    path.write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match="fingerprint"):
        corpus.open_corpus(root / "tiny")


def test_a_truncated_and_a_missing_file_are_told_apart(recipe, root):
    path = corpus.build(recipe, name="tiny", root=root).path
    with open(path / "train.bin", "r+b") as file:
        file.truncate(100)
    (path / "validation-prose.bin").unlink()
    first, second = sorted(corpus.verify(path))
    assert "has 100 bytes" in first
    assert second == "validation-prose.bin is missing"


def test_a_copied_corpus_opens_and_is_the_same(tiny, root):
    subprocess.run(["cp", "-r", tiny.path, root], check=True)
    assert corpus.open_corpus(root).fingerprint == tiny.fingerprint
    assert corpus.verify(root) == []


def test_an_empty_corpus_is_refused_and_leaves_nothing(root):
    for documents in ({}, {"a": ""}, {"a": "text with a \x00 inside"}):
        recipe = Recipe(name="empty", sources=(sources.from_texts("prose", documents),), validation_bytes=10)
        with pytest.raises(BadInput, match="the corpus is empty"):
            corpus.build(recipe, name="empty", root=root)
    assert _names(root) == []


def test_documents_with_a_nul_byte_are_left_out_and_counted(texts, root):
    documents = texts(20, 4) | {"bad": "a\x00b"}
    recipe = Recipe(name="nul", sources=(sources.from_texts("prose", documents),), validation_bytes=500)
    built = corpus.build(recipe, name="nul", root=root)
    assert built.manifest["left_out"] == {"contains NUL": 1}
    assert corpus.verify(built) == []


def test_a_capped_domain_stays_below_its_cap_and_the_count_says_what_was_dropped(texts, root):
    documents = texts(50, 5)
    recipe = Recipe(
        name="capped",
        sources=(sources.from_texts("prose", documents),),
        validation_bytes=500,
        max_bytes={"prose": 10_000},
    )
    manifest = corpus.build(recipe, name="capped", root=root).manifest
    longest = max(map(len, documents.values()))
    assert 10_000 - longest < manifest["domains"]["prose"]["num_bytes"] <= 10_000
    kept = manifest["domains"]["prose"]["num_documents"]
    assert manifest["documents_over_cap_dropped"] == {"prose": 50 - kept}


_BUILD_THEN_HANG = """
    import sys, time
    from pathlib import Path
    from smelt.data import corpus, sources
    from smelt.data.documents import Recipe
    from smelt.errors import BadInput

    def hang(line):
        if line.startswith("writing"):
            print("writing", flush=True)
            time.sleep(60)

    texts = {str(i): f"document {i} " * (20 + i) for i in range(30)}
    recipe = Recipe(name="t", sources=(sources.from_texts("prose", texts),), validation_bytes=500)
    corpus.build(recipe, name="killed", root=Path(sys.argv[1]), progress=hang)
"""


def test_a_killed_build_leaves_no_corpus_and_is_swept_by_a_later_one(texts, root):
    command = [sys.executable, "-c", textwrap.dedent(_BUILD_THEN_HANG), str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=os.getcwd(), env=_with_path()) as process:
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
    with pytest.raises(BadInput, match="there is no corpus"):
        corpus.open_corpus(root / "killed")
    (left,) = root.iterdir()
    os.utime(left, (time.time() - 2 * 24 * 3600,) * 2)
    recipe = Recipe(name="t", sources=(sources.from_texts("prose", texts(20, 6)),), validation_bytes=500)
    corpus.build(recipe, name="killed", root=root)
    assert _names(root) == ["killed"]


def _with_path():
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_a_bpe_is_the_same_each_time_and_encodes_every_byte(recipe, texts, root):
    first = corpus.build(recipe, tokenizer="bpe:400", name="one", root=root)
    second = corpus.build(recipe, tokenizer="bpe:400", name="two", root=root)
    assert first.fingerprint == second.fingerprint
    assert (first.vocab_size, first.manifest["token_dtype"]) == (400, "uint16")
    tokenizer = first.load_tokenizer()
    odd = "\x01\t\xa0é漢字🜂<|document|>"
    (ids,) = tokenizer.encode([odd.encode()])
    assert tokenizer.decode(ids.tolist()) == odd
    assert tokenizer.separator_id not in ids
    assert corpus.verify(first) == []


def test_a_bpe_corpus_decodes_to_the_text_it_was_made_of(recipe, texts, root):
    built = corpus.build(recipe, tokenizer="bpe:400", name="one", root=root)
    tokenizer, tokens, table = built.load_tokenizer(), built.train_tokens(), built.train_documents()
    known = {*texts(60, 1).values(), *texts(40, 2).values()}
    ends = [*table[1:, 0], len(tokens)]
    decoded = {tokenizer.decode(tokens[start + 1 : end].tolist()) for start, end in zip(table[:, 0], ends, strict=True)}
    assert decoded < known
    assert len(decoded) == built.manifest["train"]["num_documents"]


def test_a_users_tokenizer_gives_the_tokens_of_the_bpe_it_was_saved_from(recipe, root):
    trained = corpus.build(recipe, tokenizer="bpe:400", name="trained", root=root)
    given = corpus.build(recipe, tokenizer=str(trained.path / "tokenizer.json"), name="given", root=root)
    assert (given.path / "train.bin").read_bytes() == (trained.path / "train.bin").read_bytes()
    assert given.separator_id == trained.separator_id


@pytest.mark.parametrize("tokenizer", ["words", "bpe:many", "bpe:100", "no/such/tokenizer.json"])
def test_an_unknown_tokenizer_is_refused_before_anything_is_written(recipe, root, tokenizer):
    with pytest.raises(BadInput, match="bpe"):
        corpus.build(recipe, tokenizer=tokenizer, name="t", root=root)
    assert not root.exists()


def test_a_tokenizer_that_is_none_or_has_no_separator_is_refused(recipe, root, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(BadInput, match=r"is no tokenizer\.json"):
        corpus.build(recipe, tokenizer=str(path), name="t", root=root)
    trained = corpus.build(recipe, tokenizer="bpe:300", name="trained", root=root)
    with pytest.raises(BadInput, match="which token separates documents"):
        corpus.build(recipe, tokenizer=str(trained.path / "tokenizer.json"), separator="<nothing>", name="t", root=root)
    assert _names(root) == ["trained"]


@pytest.mark.parametrize(
    ("vocab_size", "name"), [(256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32")]
)
def test_tokens_take_the_smallest_type_that_holds_the_vocabulary(vocab_size, name):
    assert tokenizers.token_dtype(vocab_size).name == name


def test_bytes_per_token_is_the_bytes_of_the_domain_over_its_tokens_and_separators(tiny):
    for domain in tiny.domains:
        stream = bytes(tiny.validation_tokens(domain))
        assert tiny.bytes_per_token(domain) == len(stream.replace(b"\x00", b"")) / len(stream)
    with pytest.raises(BadInput, match="no domain 'poetry'"):
        tiny.bytes_per_token("poetry")


def test_building_and_batching_never_import_jax():
    code = (
        "import sys, smelt.data.corpus, smelt.data.formats, smelt.data.pipeline, smelt.data.sources;"
        "sys.exit(any(name in sys.modules for name in ('jax', 'grain', 'tokenizers', 'pyarrow', 'pandas')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=_with_path())


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"files": [1]}'])
def test_a_damaged_record_of_what_was_hashed_only_means_hashing_again(recipe, root, content):
    built = corpus.build(recipe, name="t", root=root)
    (built.path / "checked.json").write_bytes(content)
    assert corpus.open_corpus(built.path).fingerprint == built.fingerprint


def test_a_manifest_with_a_number_that_is_none_is_refused_in_one_line(recipe, root):
    built = corpus.build(recipe, name="t", root=root)
    path = built.path / "manifest.json"
    path.write_text(path.read_text().replace('"secs": ', '"secs": NaN, "more": ', 1))
    with pytest.raises(BadInput, match=r"manifest\.json is not JSON \(NaN is no number of JSON\)"):
        corpus.open_corpus(built.path)


def test_a_build_on_a_full_disk_says_so_and_leaves_nothing(recipe, root, monkeypatch):
    import resource
    import shutil
    from types import SimpleNamespace

    # A limit on the size of a file makes the system refuse to write on, as a full disk does.
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=0))
    root.mkdir()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
        with pytest.raises(BadInput, match=r"no space is left for .*: make room"):
            corpus.build(recipe, name="t", root=root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(root.iterdir()) == []
