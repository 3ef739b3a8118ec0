"""Documents and where they come from: the three small types that every other room of `smelt.data` speaks.

A recipe is sources and the rules of the split; a source yields documents; a document is text (UTF-8 bytes) or
token ids, with the names that decide where it may go:

- `identity` is what a person reads ("jax:jax/_src/core.py"), unique within a corpus in practice, never parsed;
- `group`: documents of one group (a module's docstrings and its code) fall on the same side of the split;
- `domain` is what losses are reported by.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from smelt.errors import BadInput

SPLITS = ("train", "validation")
_DOMAIN = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Document:
    identity: str
    group: str
    domain: str
    content: bytes | np.ndarray  # UTF-8 text, or token ids
    split: Literal["train", "validation"] | None = None  # None: the split decides


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """Documents of one origin under one licence.

    `request` is what tells this source from another one without reading all of it (versions, file digests); it
    enters the corpus's fingerprint, so it holds no path of a machine. `documents` is given a Counter in which it
    counts, by reason, what it leaves out.
    """

    name: str
    domains: tuple[str, ...]
    licence: str | None  # None: not stated by who gave the text
    request: dict[str, Any]
    documents: Callable[[Counter], Iterator[Document]]

    def __post_init__(self) -> None:
        for domain in self.domains:
            if not _DOMAIN.fullmatch(domain):
                raise BadInput(f"domain name {domain!r} cannot name a file; use lower-case letters, digits, - and _")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recipe:
    """Sources and the rules by which they become a corpus.

    `validation_bytes` a domain are held out (tokens instead of bytes where the sources are tokens), or
    `max_validation_frac` of the domain where that is less. `max_bytes` caps a domain: documents are kept in the
    order of their digests until the cap is reached.
    """

    name: str
    sources: tuple[Source, ...]
    validation_bytes: int
    max_validation_frac: float = 0.1
    max_bytes: dict[str, int] = field(default_factory=dict)
    min_document_bytes: int = 1

    def __post_init__(self) -> None:
        if not self.sources:
            raise BadInput(f"recipe {self.name!r} has no sources; name at least one file")
        if not 0 < self.max_validation_frac <= 0.5:
            raise BadInput(f"max_validation_frac is {self.max_validation_frac}; give a share in (0, 0.5]")
        if self.validation_bytes < 1:
            raise BadInput(f"validation_bytes is {self.validation_bytes}; give a positive number")

    @property
    def domains(self) -> tuple[str, ...]:
        """In the order in which the sources name them."""
        return tuple(dict.fromkeys(domain for source in self.sources for domain in source.domains))

    def request(self) -> dict[str, Any]:
        """Everything that decides the corpus, as JSON: two equal requests are two equal corpora."""
        return {
            "recipe": self.name,
            "sources": [
                {"name": source.name, "domains": list(source.domains), "licence": source.licence} | source.request
                for source in self.sources
            ],
            "validation_bytes": self.validation_bytes,
            "max_validation_frac": self.max_validation_frac,
            "max_bytes": dict(sorted(self.max_bytes.items())),
            "min_document_bytes": self.min_document_bytes,
        }
