"""Synthetic text and tokens -> how fast a corpus builds beside tokenizer and disk, and what a start reads of it.

`python -m benchmarks.corpus [--build-mb N] [--open-mb N]` works in a scratch folder and prints markdown. A build is
timed by its own lines of progress in CPU seconds, which on one core it takes where nothing else runs; the tokenizer
alone so too, on the same documents; the disk alone by the clock, writing as many bytes and waiting for them. A start
is what a worker does before its first step: it opens the corpus and takes its first batch, in a process of its own;
cold is with the files put out of the page cache before.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from smelt import terminal
from smelt.data import corpus
from smelt.data.documents import Document, Recipe, Source
from smelt.launch.environment import available_cores
from smelt.train.fingerprint import processor_name

DOCUMENT_BYTES = 4_000
TOKENIZERS = ("bytes", "bpe:4096")

# What a worker does before its first step, counted by the kernel.
START = """
import sys, time
from smelt.data.pipeline import Batches
from smelt.data.store import open_corpus
def read():
    facts = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return int(facts["read_bytes"]), int(facts["rchar"])
before, started = read(), time.perf_counter()
corpus = open_corpus(sys.argv[1])
opened = time.perf_counter()
Batches(corpus=corpus, seq_len=1024, batch_seqs=16, seed=0).batch(0)
after, ended = read(), time.perf_counter()
print(opened - started, ended - opened, after[0] - before[0], after[1] - before[1])
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build-mb", type=int, default=100)
    parser.add_argument("--open-mb", type=int, default=1000)
    args = parser.parse_args()
    print(f"{terminal.plural(len(available_cores()), 'core')} of {processor_name()}.\n")
    with tempfile.TemporaryDirectory() as scratch:
        build_table(Path(scratch), args.build_mb)
        start_table(Path(scratch), args.open_mb)


def texts(num_bytes: int) -> list[bytes]:
    """Documents of words drawn by Zipf's law, which a byte-pair tokenizer has work with."""
    generator = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(generator.choice(letters, size)) for size in generator.integers(2, 10, 8_000)])
    share = 1 / np.arange(1, len(words) + 1)
    found, size = [], 0
    while size < num_bytes:
        found.append(" ".join(generator.choice(words, DOCUMENT_BYTES // 5, p=share / share.sum())).encode())
        size += len(found[-1])
    return found


def build_table(scratch: Path, num_mb: int) -> None:
    documents = texts(num_mb * 1_000_000)
    size = sum(map(len, documents))

    def read(left_out: Counter):
        for number, text in enumerate(documents):
            yield Document(identity=str(number), group=str(number), domain="text", content=text)

    source = Source(name="text", domains=("text",), licence=None, request={}, documents=read)
    recipe = Recipe(name="synthetic", sources=(source,), validation_bytes=1_000_000)
    started = time.perf_counter()
    with open(scratch / "copy", "wb") as file:
        file.writelines(documents)
        file.flush()
        os.fsync(file.fileno())
    disk_secs = time.perf_counter() - started
    rows = []
    for tokenizer in TOKENIZERS:
        told: list[tuple[float, str]] = []

        def say(line: str, told: list[tuple[float, str]] = told) -> None:
            told.append((time.process_time(), line))

        started = time.process_time()
        built = corpus.build(recipe, tokenizer=tokenizer, root=scratch / "corpora", progress=say)
        secs = time.process_time() - started
        at = {
            word: next((when for when, line in told if word in line), None)
            for word in ("split", "training bpe", "writing")
        }
        trained = at["training bpe"] or at["writing"]
        loaded = built.load_tokenizer()
        started = time.process_time()
        for first in range(0, len(documents), 1000):
            loaded.encode(documents[first : first + 1000])
        alone = time.process_time() - started
        parts = (at["split"] - told[0][0], trained - at["split"], at["writing"] - trained, told[-1][0] - at["writing"])
        cells = [f"{part:.1f}" for part in parts]
        rates = [f"{size / 1e6 / part:.3g}" for part in (secs, parts[3], alone, disk_secs)]
        rows.append([tokenizer, f"{secs:.1f}", *cells, *rates, str(len(told))])
    print(f"Building a corpus of {size / 1e6:.0f} MB of text in {len(documents):,} documents.\n")
    header = ["tokenizer", "CPU s", "read", "near duplicates", "train tokenizer", "encode and write"]
    header += ["MB/s", "MB/s encoding and writing", "MB/s tokenizer alone", "MB/s disk alone", "lines told"]
    print(terminal.table(header, rows, markdown=True))


def start_table(scratch: Path, num_mb: int) -> None:
    """One corpus of `num_mb` and one of a tenth."""
    rows = []
    for size_mb in (num_mb // 10, num_mb):
        generator = np.random.default_rng(0)

        def read(left_out: Counter, size_mb: int = size_mb, generator: np.random.Generator = generator):
            for number in range(size_mb):
                content = generator.integers(1, 50_000, 500_000, np.uint32)
                yield Document(identity=str(number), group=str(number), domain="text", content=content)

        source = Source(name="tokens", domains=("text",), licence=None, request={}, documents=read)
        recipe = Recipe(name=f"tokens-{size_mb}", sources=(source,), validation_bytes=1_000_000)
        built = corpus.import_tokens(
            recipe, vocab_size=50_000, separator_id=0, name=recipe.name, root=scratch / "corpora"
        )
        for cold in (True, False):
            if cold:
                for path in built.path.iterdir():
                    with open(path, "rb") as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            command = [sys.executable, "-c", START, str(built.path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            opened, batch, from_disk, asked = map(float, done.stdout.split())
            whole = (built.path / "train.bin").stat().st_size
            rows.append(
                [
                    f"{whole / 1e6:,.0f}",
                    "cold" if cold else "cached",
                    f"{opened * 1e3:.1f}",
                    f"{batch * 1e3:.1f}",
                    f"{from_disk / 1e6:.2f}",
                    f"{asked / 1e6:.2f}",
                ]
            )
    print("\nStarting a run: opening the corpus, and its first batch of 16 x 1,024 tokens.\n")
    header = ["train.bin, MB", "page cache", "open, ms", "first batch, ms", "MB read from disk", "MB by read calls"]
    print(terminal.table(header, rows, markdown=True))


if __name__ == "__main__":
    main()
