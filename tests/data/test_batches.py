"""A batch is a function of the seed and the step, and an epoch holds every window once."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.data.pipeline import Batches, batch_digest, permuted, validation_windows
from smelt.errors import BadInput

T, B = 32, 4


@pytest.fixture(scope="module")
def batches(tiny) -> Batches:
    return Batches(tiny, seq_len=T, batch_seqs=B, seed=7)


@given(size=st.integers(1, 3_000), key=st.integers(0, 2**64 - 1))
@settings(max_examples=50, deadline=None)
def test_a_permutation_hits_every_place_once(size, key):
    places = permuted(np.arange(size), size, np.full(size, key, np.uint64))
    np.testing.assert_array_equal(np.sort(places), np.arange(size))


def test_a_permutation_looks_shuffled():
    places = permuted(np.arange(10_000), 10_000, np.full(10_000, 3, np.uint64))
    correlation = np.corrcoef(np.arange(10_000), places)[0, 1]
    assert abs(correlation) < 0.04  # 4 standard errors of a random permutation
    assert np.count_nonzero(np.diff(places) == 1) < 10


def test_the_order_is_the_same_on_every_machine():
    assert permuted(np.arange(6), 1_000_000, np.full(6, 1, np.uint64)).tolist() == [
        687515,
        271407,
        293344,
        271436,
        554678,
        426485,
    ]


@pytest.mark.smoke
def test_an_epoch_covers_each_window_exactly_once_and_the_next_in_another_order(batches):
    size = batches.num_windows
    ids = batches.window_ids(0, -(-3 * size // B)).reshape(-1)
    epochs = [ids[epoch * size : (epoch + 1) * size] for epoch in range(3)]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(size))
    assert (epochs[0] != epochs[1]).mean() > 0.9
    assert (epochs[1] != epochs[2]).mean() > 0.9


def test_windows_make_each_token_a_target_once(tiny, batches):
    tokens = tiny.train_tokens()
    assert batches.num_windows == (len(tokens) - 1) // T
    order = np.argsort(batches.window_ids(0, batches.num_windows // B).reshape(-1))
    read = batches.chunk(0, batches.num_windows // B).tokens.reshape(-1, T + 1)[order]
    if batches.num_windows % B == 0:
        np.testing.assert_array_equal(read[:, 1:].reshape(-1), tokens[1 : len(read) * T + 1])
    ids = np.sort(batches.window_ids(0, batches.num_windows // B).reshape(-1))
    for row, window in zip(read, ids, strict=True):
        np.testing.assert_array_equal(row, tokens[window * T : window * T + T + 1])


def test_a_batch_does_not_depend_on_how_the_steps_are_cut_into_chunks(batches):
    single = [batches.batch(step) for step in range(24)]
    for chunk_steps in (1, 5, 24):
        for start, chunk in batches.prefetched_chunks(0, 24, chunk_steps):
            for offset, (tokens, segments) in enumerate(zip(*chunk, strict=True)):
                np.testing.assert_array_equal(tokens, single[start + offset].tokens)
                np.testing.assert_array_equal(segments, single[start + offset].segments)


def test_a_run_resumed_twice_sees_the_hashes_of_one_that_was_not(batches):
    last = 2 * batches.num_windows // B + 3  # across two epochs
    straight = [batch_digest(batch) for batch in batches.prefetch(0, last)]
    cuts = [0, 5, last // 2, last // 2 + 1, last]
    resumed = [batch_digest(batch) for start, stop in pairwise(cuts) for batch in batches.prefetch(start, stop)]
    assert resumed == straight
    assert len(set(straight)) == len(straight)


def test_the_seed_and_nothing_else_moves_the_order(tiny, batches):
    same, other = Batches(tiny, T, B, 7), Batches(tiny, T, B, 8)
    assert batch_digest(same.batch(3)) == batch_digest(batches.batch(3))
    assert batch_digest(other.batch(3)) != batch_digest(batches.batch(3))


@pytest.mark.parametrize("num_threads", [0, 1, 2])
def test_grain_reads_the_same_batches_whatever_the_number_of_threads(batches, num_threads):
    import grain

    num_steps = -(-batches.num_windows // B)
    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=4 * num_threads)
    read = list(batches.dataset(num_steps).to_iter_dataset(options))
    assert len(read) == num_steps
    assert [batch_digest(batch) for batch in read] == [batch_digest(batches.batch(step)) for step in range(num_steps)]


def _digests(batches, steps):
    return [batch_digest(batches.batch(step)) for step in steps]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_worker_processes_read_the_same_batches_between_them(batches, num_workers):
    steps = [list(range(worker, 20, num_workers)) for worker in range(num_workers)]
    with multiprocessing.get_context("spawn").Pool(num_workers) as pool:
        found = pool.starmap(_digests, [(batches, part) for part in steps])
    together = dict(zip(chain(*steps), chain(*found), strict=True))
    assert [together[step] for step in range(20)] == _digests(batches, range(20))


_READ_BY_GRAIN_WORKERS = """
import sys
from pathlib import Path

import grain
from absl import flags

from smelt.data.corpus import open_corpus
from smelt.data.pipeline import Batches, batch_digest

if __name__ == "__main__":
    flags.FLAGS.mark_as_parsed()  # grain 0.2.18 reads a flag before absl has parsed any
    batches = Batches(open_corpus(Path(sys.argv[1])), 32, 4, 7)
    num_steps = -(-batches.num_windows // 4)
    alone = batches.dataset(num_steps).to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    workers = alone.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    assert [batch_digest(b) for b in workers] == [batch_digest(batches.batch(s)) for s in range(num_steps)]
"""


def test_an_epoch_read_by_two_grain_workers_is_whole_and_in_order(tiny, tmp_path):
    script = tmp_path / "read.py"  # grain starts its workers by importing the script again
    script.write_text(_READ_BY_GRAIN_WORKERS)
    path = os.pathsep.join(part for part in sys.path if part)
    command = [sys.executable, script, tiny.path.resolve()]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": path}, timeout=120)


def test_a_worker_is_sent_the_path_and_not_the_tokens(batches):
    assert len(pickle.dumps(batches)) < 10_000 < batches.corpus.num_train_tokens


def test_grain_indexes_and_slices_by_step(batches):
    dataset = batches.dataset(10)
    np.testing.assert_array_equal(dataset[4].tokens, batches.batch(4).tokens)
    np.testing.assert_array_equal(dataset[1::3][2].tokens, batches.batch(7).tokens)


@pytest.mark.smoke
@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="the kernel does not list its mappings")
def test_the_kernel_reads_no_more_of_the_training_text_than_is_asked_for(batches, tiny):
    batches.batch(0)
    with open("/proc/self/smaps") as file:
        mappings = file.read().split("VmFlags:")
    flags = [after.split("\n")[0].split() for before, after in pairwise(mappings) if f"{tiny.path}/train.bin" in before]
    assert flags
    assert all("rr" in of_mapping for of_mapping in flags)


def test_segments_change_exactly_at_the_separators(tiny, batches):
    tokens, segments = batches.chunk(0, 40)
    assert (segments[..., 0] == 1).all()
    np.testing.assert_array_equal(np.diff(segments, axis=-1) == 1, tokens[..., 1:] == tiny.separator_id)
    assert set(np.unique(np.diff(segments, axis=-1))) == {0, 1}


def test_segments_count_documents_that_are_shorter_than_a_window(texts, root):
    from smelt.data import corpus, sources
    from smelt.data.documents import Recipe

    short = {str(i): f"{i * 7919:x}." for i in range(300)}
    recipe = Recipe(name="short", sources=(sources.from_texts("prose", short),), validation_bytes=100)
    built = corpus.build(recipe, name="short", root=root)
    tokens, segments = Batches(built, seq_len=40, batch_seqs=8, seed=0).chunk(0, 3)
    expected = 1 + np.cumsum(tokens == 0, axis=-1) - (tokens[..., :1] == 0)
    np.testing.assert_array_equal(segments, expected)
    assert segments.max() > 5


def test_epochs_say_when_data_repeats(batches):
    assert batches.epochs(batches.num_windows) == B
    assert batches.epochs(batches.num_windows // B) <= 1


def test_a_batch_larger_than_the_corpus_and_a_negative_seed_are_refused(tiny):
    with pytest.raises(BadInput, match="fewer than a batch of 100000"):
        Batches(tiny, T, 100_000, 0)
    with pytest.raises(BadInput, match="fewer than a batch"):
        Batches(tiny, 10_000_000, 1, 0)
    with pytest.raises(BadInput, match="seed -1"):
        Batches(tiny, T, B, -1)


def _waiting_frac(batches: Batches, num_steps: int, step_secs: float) -> float:
    stream, waited = iter(batches.prefetch(0, num_steps)), 0.0
    next(stream)  # the first batch is waited for once a run
    started = time.perf_counter()
    for _ in range(num_steps - 1):
        before = time.perf_counter()
        next(stream)
        waited += time.perf_counter() - before
        time.sleep(step_secs)
    return waited / (time.perf_counter() - started)


def test_waiting_for_data_takes_under_two_percent_of_steps_of_ten_ms(batches):
    # One of three will do: another process on this machine may take the core, the pipeline may not.
    assert any(_waiting_frac(batches, num_steps=100, step_secs=0.010) < 0.02 for _ in range(3))


def test_leaving_the_stream_early_neither_hangs_nor_warns(batches):
    for _, batch in zip(range(3), batches.prefetch(0, 10_000), strict=False):
        assert batch.tokens.shape == (B, T + 1)


def test_the_validation_slice_is_spread_over_documents_and_the_same_each_time(tiny):
    slices, again = validation_windows(tiny, T, 1_000), validation_windows(tiny, T, 1_000)
    for domain, part in slices.items():
        assert part.tokens.shape == (31, T + 1)
        assert part.num_targets == part.doc_ids.size == 31 * T
        np.testing.assert_array_equal(part.tokens, again[domain].tokens)
        assert len(np.unique(part.doc_ids)) == len(tiny.validation_names(domain))


def test_document_ids_of_targets_agree_with_the_document_table(tiny):
    part = validation_windows(tiny, T, 1_000)["prose"]
    stream = tiny.validation_tokens("prose")
    document_of = np.cumsum(stream == 0) - 1
    for row, ids in zip(part.tokens, part.doc_ids, strict=True):
        start = next(s for s in range(0, len(stream), T) if np.array_equal(stream[s : s + T + 1], row))
        np.testing.assert_array_equal(ids, document_of[start + 1 : start + T + 1])


def test_bits_per_byte_of_a_uniform_model_is_eight_over_the_bytes_of_the_slice(tiny):
    part = validation_windows(tiny, T, 1_000)["code"]
    num_bytes = int((part.tokens[:, 1:] != 0).sum())
    assert part.num_bytes == num_bytes
    nats = part.num_targets * np.log(256)
    assert nats / np.log(2) / part.num_bytes == pytest.approx(8 * part.num_targets / num_bytes, rel=1e-12)


def test_the_bytes_of_all_windows_sum_to_the_bytes_of_the_domain(recipe, root):
    from smelt.data import corpus

    built = corpus.build(recipe, tokenizer="bpe:400", name="bpe", root=root)
    domain = min(built.num_validation_tokens, key=built.num_validation_tokens.get)
    # Windows of one target miss only the first separator, which stands for no byte.
    whole = validation_windows(built, 1, built.num_validation_tokens[domain] - 1)[domain]
    counts = built.manifest["validation"][domain]
    assert whole.num_bytes == pytest.approx(counts["num_bytes"], rel=1e-12)
    assert counts["num_bytes"] / counts["num_tokens"] == built.bytes_per_token(domain)


def test_more_validation_tokens_than_there_are_is_refused_with_the_number(tiny):
    with pytest.raises(BadInput, match=r"it holds \d+"):
        validation_windows(tiny, T, 10_000_000)
    with pytest.raises(BadInput, match="one window is the least"):
        validation_windows(tiny, T, T - 1)
