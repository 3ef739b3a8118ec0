"""(corpus, seq_len, batch_seqs, seed), step -> the batch of that step, whatever ran before it and wherever it runs.

The training stream is cut into fixed windows of `seq_len` targets; window w is tokens[w T : w T + T + 1], so each
token is a target once. Sequence i of a run (i = step * batch_seqs + row) is window `permuted(i mod W)` of epoch
`i div W`: an epoch holds every window exactly once, and a batch may straddle two epochs. The order is a function of
(seed, epoch) alone and is computed, not stored: two runs of equal seed, batch and length see equal tokens in equal
order, and one that is resumed, or read in chunks of another size, or by another number of workers, sees the same.

    B sequences, S steps, T targets a sequence; tokens_BT1 holds T + 1 tokens: inputs [:, :-1], targets [:, 1:]

Segment ids count the documents of a window from 1, so that attention can be confined to one. The separator opens a
document and has its segment id.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from smelt.data.split import mixed
from smelt.data.store import Corpus
from smelt.errors import BadInput

_ROUNDS = 6
# Gathering many steps at once costs a twentieth a step of gathering one (measured, 16 windows of 128 tokens); the
# bound in bytes keeps large batches from filling the memory.
_CHUNK_STEPS = 128
_CHUNK_BYTES = 16_000_000
_PREFETCHED_CHUNKS = 2
ALL_ROWS = slice(None)


class Batch(NamedTuple):
    """`tokens` and `segments`, int32, (B, T + 1); or (S, B, T + 1) for a chunk of S steps."""

    tokens: np.ndarray
    segments: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """The batches of one run. Raises BadInput where the corpus holds fewer windows than a batch."""

    corpus: Corpus
    seq_len: int
    batch_seqs: int
    seed: int
    _windows: np.ndarray = field(init=False, repr=False)
    _starts: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.seq_len < 1 or self.batch_seqs < 1 or self.seed < 0:
            raise BadInput(
                f"seq_len {self.seq_len}, batch_seqs {self.batch_seqs} and seed {self.seed}: "
                "the first two must be positive and the seed not negative"
            )
        windows = _cut(self.corpus.train_tokens(), self.seq_len)
        if len(windows) < self.batch_seqs:
            raise BadInput(
                f"corpus {self.corpus.name} holds {len(windows)} windows of {self.seq_len} tokens, fewer than a "
                f"batch of {self.batch_seqs}; use a larger corpus or a smaller batch"
            )
        object.__setattr__(self, "_windows", windows)
        object.__setattr__(self, "_starts", self.corpus.train_documents()[:, 0].copy())

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker process opens the files itself instead of being sent their content."""
        return Batches, (self.corpus, self.seq_len, self.batch_seqs, self.seed)

    @property
    def num_windows(self) -> int:
        """Sequences in an epoch."""
        return len(self._windows)

    def epochs(self, num_steps: int) -> float:
        """How often a run of `num_steps` sees the corpus: above 1, data repeats."""
        return num_steps * self.batch_seqs / self.num_windows

    def window_ids(self, start_step: int, num_steps: int) -> np.ndarray:
        """Which window each sequence is: int64 (S, B)."""
        sequence = np.arange(start_step * self.batch_seqs, (start_step + num_steps) * self.batch_seqs)
        epoch, position = np.divmod(sequence, self.num_windows)
        keys = mixed(mixed(np.full(1, self.seed, np.uint64)) + epoch.astype(np.uint64), salt=2)
        return permuted(position, self.num_windows, keys).reshape(num_steps, self.batch_seqs)

    def chunk(self, start_step: int, num_steps: int, rows: slice = ALL_ROWS) -> Batch:
        """`num_steps` batches, or some rows of each, in one gather: int32 (S, B, T + 1)."""
        windows = self.window_ids(start_step, num_steps)[:, rows]
        tokens = self._windows[windows].astype(np.int32)
        first = _document_at_start(self._starts, windows.reshape(-1), self.seq_len)
        segments = _segments(self._starts, windows.reshape(-1), self.seq_len, first)
        return Batch(tokens, segments.reshape(tokens.shape))

    def batch(self, step: int) -> Batch:
        """The batch of one step: int32 (B, T + 1)."""
        tokens, segments = self.chunk(step, 1)
        return Batch(tokens[0], segments[0])

    def prefetched_chunks(
        self, start_step: int, stop_step: int, chunk_steps: int, rows: slice = ALL_ROWS
    ) -> Iterator[tuple[int, Batch]]:
        """(first step, chunk) for the steps [start, stop), read ahead in a thread by grain; the last chunk may
        be shorter. Resuming is starting at another step."""
        import grain  # here and not at the first item, so that its import is not a wait for data

        source = _Chunks(self, start_step, stop_step, chunk_steps, rows)
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_PREFETCHED_CHUNKS)
        chunks = grain.MapDataset.source(source).to_iter_dataset(options)
        return zip(range(start_step, stop_step, chunk_steps), chunks, strict=True)

    def prefetch(self, start_step: int, stop_step: int, rows: slice = ALL_ROWS) -> Iterator[Batch]:
        """The batches of the steps [start, stop), one by one, read ahead in chunks of a fitting size. rows: of every
        batch, for a process that holds a part of it."""
        batch_bytes = 2 * 4 * self.batch_seqs * (self.seq_len + 1)
        chunk_steps = max(1, min(_CHUNK_STEPS, _CHUNK_BYTES // batch_bytes))
        chunks = self.prefetched_chunks(start_step, stop_step, chunk_steps, rows)
        return (Batch(*step) for _, chunk in chunks for step in zip(*chunk, strict=True))

    def dataset(self, num_steps: int) -> Any:
        """A grain MapDataset of `num_steps` items with `dataset[step] == batch(step)`, for whoever wants grain's
        own sharding, mapping or worker processes. An item is a whole batch, so nothing is left to batch after a
        prefetch."""
        import grain

        return grain.MapDataset.source(_Steps(self, num_steps))


@dataclass(frozen=True, slots=True)
class _Steps:
    """grain's random-access protocol over single batches."""

    batches: Batches
    num_steps: int

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, step: int) -> Batch:
        return self.batches.batch(int(step))


@dataclass(frozen=True, slots=True)
class _Chunks:
    """grain's random-access protocol over chunks of batches."""

    batches: Batches
    start_step: int
    stop_step: int
    chunk_steps: int
    rows: slice

    def __len__(self) -> int:
        return -(-max(0, self.stop_step - self.start_step) // self.chunk_steps)

    def __getitem__(self, index: int) -> Batch:
        start = self.start_step + int(index) * self.chunk_steps
        return self.batches.chunk(start, min(self.chunk_steps, self.stop_step - start), self.rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slice:
    """A fixed part of one domain's validation text: N windows, T targets each.

    `doc_ids` numbers the document of every target (an index into `Corpus.validation_names`), so that losses can be
    summed by document. `num_bytes` is the text that the
    N T targets stand for: bits_per_byte = sum of losses in nats / ln 2 / num_bytes. It is exact for bytes; for
    other tokenizers a document that is cut counts by its share of tokens; None where the text is not known.
    """

    tokens: np.ndarray  # int32 (N, T + 1)
    segments: np.ndarray  # int32 (N, T + 1)
    doc_ids: np.ndarray  # int32 (N, T)
    num_bytes: float | None

    @property
    def num_targets(self) -> int:
        return self.doc_ids.size


def validation_windows(corpus: Corpus, seq_len: int, num_tokens_per_domain: int) -> dict[str, Slice]:
    """The same targets for every run: windows spread evenly over each domain's validation stream.

    As many whole windows as fit into `num_tokens_per_domain`; spread, because neighbouring windows are often one
    document and a standard error is over documents. Raises BadInput where a domain holds fewer tokens.
    """
    slices = {}
    for domain in corpus.domains:
        windows = _cut(corpus.validation_tokens(domain), seq_len)
        wanted = num_tokens_per_domain // seq_len
        if not 1 <= wanted <= len(windows):
            raise BadInput(
                f"{num_tokens_per_domain} validation tokens of domain {domain!r} were asked for in windows of "
                f"{seq_len}; it holds {len(windows) * seq_len}, and one window is the least"
            )
        chosen = np.arange(wanted) * len(windows) // wanted
        table = corpus.validation_documents(domain)
        first = _document_at_start(table[:, 0], chosen, seq_len)
        segments = _segments(table[:, 0], chosen, seq_len, first)
        tokens = windows[chosen].astype(np.int32)
        doc_ids = (segments[:, 1:] - 1 + first[:, None]).astype(np.int32)
        slices[domain] = Slice(
            tokens=tokens,
            segments=segments,
            doc_ids=doc_ids,
            num_bytes=_num_bytes(corpus, table, tokens, doc_ids, corpus.num_validation_tokens[domain]),
        )
    return slices


def batch_digest(batch: Batch) -> str:
    """Hex digest of a batch's tokens: two runs that log equal digests trained on equal data."""
    return sha256(np.ascontiguousarray(batch.tokens, "<i4").tobytes()).hexdigest()[:16]


def permuted(positions: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """positions in [0, size) -> places in [0, size): for each key a bijection, computed without a table.

    A Feistel network of 6 rounds over the next even number of bits, walked until it falls inside (cycle walking:
    Black and Rogaway, 2002). The same on every platform and version of numpy, and any part of it is cheap.
    """
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    low = np.uint64((1 << int(half)) - 1)
    places = positions.astype(np.uint64)
    keys = np.broadcast_to(keys, places.shape)
    outside = np.arange(places.size)
    while outside.size:
        left, right = places[outside] >> half, places[outside] & low
        for salt in range(_ROUNDS):
            left, right = right, left ^ (mixed(right ^ keys[outside], salt) & low)
        places[outside] = (left << half) | right
        outside = outside[places[outside] >= size]
    return places.astype(np.int64)


def _cut(tokens: np.ndarray, seq_len: int) -> np.ndarray:
    """A view (W, T + 1) of the stream's windows."""
    if len(tokens) <= seq_len:
        return np.empty((0, seq_len + 1), tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, seq_len + 1)[::seq_len]


def _document_at_start(starts: np.ndarray, windows: np.ndarray, seq_len: int) -> np.ndarray:
    """Index of the document that holds each window's first token."""
    return np.searchsorted(starts, windows * seq_len, side="right") - 1


def _segments(starts: np.ndarray, windows: np.ndarray, seq_len: int, first: np.ndarray) -> np.ndarray:
    """1, and one more at each document that begins inside the window: int32 (N, T + 1)."""
    last = np.searchsorted(starts, windows * seq_len + seq_len, side="right") - 1
    begins = np.zeros((len(windows), seq_len + 1), np.int32)
    begins[:, 0] = 1
    num_inside = last - first
    rows = np.repeat(np.arange(len(windows)), num_inside)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(num_inside) - num_inside, num_inside)
    begins[rows, starts[first[rows] + 1 + nth] - windows[rows] * seq_len] = 1
    several = np.flatnonzero(num_inside)
    segments = np.ones_like(begins)
    segments[several] = np.cumsum(begins[several], axis=1)
    return segments


def _num_bytes(
    corpus: Corpus, table: np.ndarray, tokens: np.ndarray, doc_ids: np.ndarray, num_tokens: int
) -> float | None:
    if (table[:, 1] < 0).any():
        return None
    opens = corpus.separator_id is not None
    lengths = np.diff(table[:, 0], append=num_tokens) - opens
    bytes_per_token = table[:, 1] / np.maximum(lengths, 1)
    is_text = tokens[:, 1:] != corpus.separator_id if opens else np.ones_like(tokens[:, 1:], bool)
    return float(bytes_per_token[doc_ids][is_text].sum())
