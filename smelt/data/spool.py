"""Documents -> one flat scratch file and a table: what a build holds while it decides where each document goes.

The text itself stays on disk, so a build's memory grows with the number of documents (about 100 bytes each) and
not with their size.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from smelt.data.documents import SPLITS, Document
from smelt.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spooled:
    """N documents in the order of their sources; document i is `flat[starts[i] : starts[i + 1]]`."""

    flat: np.ndarray  # uint8 text, or uint32 token ids
    starts: np.ndarray  # int64, N + 1
    domain: np.ndarray  # int64 index into the recipe's domains
    source: np.ndarray  # int64 index into the recipe's sources
    content_digest: np.ndarray  # uint64
    group_digest: np.ndarray  # uint64
    split: np.ndarray  # int64: -1 open, else index into SPLITS
    identities: Sequence[str]

    @property
    def lengths(self) -> np.ndarray:
        """Bytes of text, or tokens, a document."""
        return np.diff(self.starts)

    def content(self, index: int) -> np.ndarray:
        return self.flat[self.starts[index] : self.starts[index + 1]]


def digest64(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def spool(
    documents: Iterable[tuple[int, Document]],
    *,
    path: Path,
    domains: Sequence[str],
    dtype: np.dtype,
    min_length: int,
    left_out: Counter,
) -> Spooled:
    """Write (source index, document) pairs to `path`; refuse NUL bytes in text, for they separate documents.

    Documents with a NUL, and those shorter than `min_length`, are counted in `left_out`. Raises BadInput where
    nothing is left.
    """
    rows: list[tuple[int, int, int, int, int, int]] = []
    identities: list[str] = []
    domain_index = {domain: index for index, domain in enumerate(domains)}
    dtype = np.dtype(dtype)
    is_text = dtype == np.uint8
    with open(path, "wb") as file:
        for source, document in documents:
            if is_text and b"\x00" in document.content:
                left_out["contains NUL"] += 1
                continue
            length = len(document.content)
            if length < min_length:
                left_out["too short"] += 1
                continue
            raw = document.content if is_text else np.ascontiguousarray(document.content, dtype).tobytes()
            file.write(raw)
            split = -1 if document.split is None else SPLITS.index(document.split)
            group = digest64(document.group.encode())
            rows.append((length, domain_index[document.domain], source, digest64(raw), group, split))
            identities.append(document.identity)
    if not rows:
        raise BadInput(f"the corpus is empty: no document is left ({_reasons(left_out)}); give other text")
    length, domain, source, content, group, split = zip(*rows, strict=True)
    return Spooled(
        flat=np.memmap(path, dtype=dtype, mode="r"),
        starts=np.concatenate([[0], np.cumsum(np.array(length, np.int64))]),
        domain=np.array(domain, np.int64),
        source=np.array(source, np.int64),
        content_digest=np.array(content, np.uint64),
        group_digest=np.array(group, np.uint64),
        split=np.array(split, np.int64),
        identities=identities,
    )


def _reasons(left_out: Counter) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items())) or "the sources gave none"
