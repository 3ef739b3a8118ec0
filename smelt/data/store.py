"""A corpus folder -> a Corpus that a run can trust: opened, described, verified.

    corpora/<name>/manifest.json                 what it is, with the fingerprint
                   train.bin                     token ids, little-endian uint8, uint16 or uint32 by vocabulary
                   train.docs.npy                int64 (documents, 3): first token, bytes of text (or -1), domain
                   validation-<domain>.bin, .docs.npy, .names.json
                   tokenizer.json                unless the tokens are bytes
                   checked.json                  sizes and times of the files when they were last hashed

Documents stand one after the other, shuffled, each opened by the separator; so the separator belongs to the
document it opens, and predicting it is predicting that the one before has ended. The fingerprint is a digest of
the sha256 of every file and of the counts: of what is in the corpus, not of where, when or how it was built.

Opening hashes every file whose size or time differs from `checked.json`, so an edit is found at the next opening
and an untouched corpus costs nothing.
"""

import json
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smelt import files
from smelt.data import tokenizers
from smelt.errors import BadInput

FORMAT = 1
# What decides the tokens that a run reads. How they came about is told beside it and covered by `manifest_digest`.
_FINGERPRINTED = ("format", "tokenizer", "token_dtype", "train", "validation", "files")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Corpus:
    """An opened corpus. Token arrays are memory maps: processes on one machine share one copy."""

    path: Path
    name: str
    fingerprint: str
    tokenizer: str
    vocab_size: int
    separator_id: int | None
    domains: tuple[str, ...]
    num_train_tokens: int
    num_validation_tokens: dict[str, int]
    manifest: dict[str, Any]

    def bytes_per_token(self, domain: str) -> float | None:
        """Bytes of text a token over the whole validation split of `domain`, separators counted as tokens.

        bits_per_byte = loss_nats / ln 2 / bytes_per_token. None for tokens whose text is not known.
        """
        return self.manifest["validation"][_known(self, domain)]["bytes_per_token"]

    def train_tokens(self) -> np.ndarray:
        tokens = self._tokens("train")
        # Windows lie all over it: what the kernel reads ahead around each would be most of a corpus in a few batches.
        if hasattr(mmap, "MADV_RANDOM"):
            tokens._mmap.madvise(mmap.MADV_RANDOM)
        return tokens

    def train_documents(self) -> np.ndarray:
        """int64 (documents, 3): first token, bytes of text, index into `domains`."""
        return np.load(self.path / "train.docs.npy")

    def validation_tokens(self, domain: str) -> np.ndarray:
        return self._tokens(f"validation-{_known(self, domain)}")

    def validation_documents(self, domain: str) -> np.ndarray:
        return np.load(self.path / f"validation-{_known(self, domain)}.docs.npy")

    def validation_names(self, domain: str) -> list[str]:
        """What each validation document is, in the order of `validation_documents`."""
        return files.read_json(self.path / f"validation-{_known(self, domain)}.names.json")

    def load_tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer that made the corpus; BadInput where the corpus was imported without one."""
        if self.tokenizer == "bytes":
            return tokenizers.byte_tokenizer()
        path = self.path / "tokenizer.json"
        if not path.is_file():
            raise BadInput(f"corpus {self.name} was imported as token ids; give its tokenizer.json at import")
        return tokenizers.from_json(
            self.tokenizer, path.read_text(encoding="utf-8"), self.manifest["tokenizer"]["separator"]
        )

    def _tokens(self, split: str) -> np.ndarray:
        return np.memmap(self.path / f"{split}.bin", dtype=self.manifest["token_dtype"], mode="r")


def _known(corpus: Corpus, domain: str) -> str:
    if domain not in corpus.domains:
        raise BadInput(f"corpus {corpus.name} has no domain {domain!r}; it has {', '.join(corpus.domains)}")
    return domain


def root() -> Path:
    """Where corpora live: $SMELT_CORPORA, else `corpora` in the working directory."""
    return Path(os.environ.get("SMELT_CORPORA") or "corpora")


def folder_of(name_or_path: str | Path) -> Path:
    """A bare name is a folder of `root()`; anything with a separator in it is a path."""
    text = str(name_or_path)
    return Path(text) if isinstance(name_or_path, Path) or os.sep in text else root() / text


def open_corpus(name_or_path: str | Path) -> Corpus:
    """Open a built corpus.

    Raises BadInput where it is not built, was built by another version of the format, or was changed since.
    """
    path = folder_of(name_or_path)
    if not (path / "manifest.json").is_file():
        raise BadInput(f"there is no corpus at {path}; build one: smelt corpus build")
    manifest = files.read_json(path / "manifest.json")
    problems = _manifest_problems(manifest)
    if not problems:
        checked = _checked(path)
        stale = [name for name in manifest["files"] if checked.get(name) != _stamp(path / name)]
        problems = _file_problems(path, manifest, stale)
        if stale and not problems:
            write_stamps(path, manifest)
    if problems:
        raise BadInput(
            f"corpus {path} was changed since it was built ({problems[0]}); build it again: smelt corpus build --force"
        )
    return Corpus(
        path=path,
        name=manifest["name"],
        fingerprint=manifest["fingerprint"],
        tokenizer=manifest["tokenizer"]["name"],
        vocab_size=manifest["tokenizer"]["vocab_size"],
        separator_id=manifest["tokenizer"]["separator_id"],
        domains=tuple(manifest["validation"]),
        num_train_tokens=manifest["train"]["num_tokens"],
        num_validation_tokens={domain: counts["num_tokens"] for domain, counts in manifest["validation"].items()},
        manifest=manifest,
    )


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with its fingerprint, and the digest by which an edit of anything else in it is seen."""
    whole = manifest | {"fingerprint": files.digest({key: manifest[key] for key in _FINGERPRINTED}, length=16)}
    return whole | {"manifest_digest": files.digest({k: v for k, v in whole.items() if k != "manifest_digest"})}


def info(corpus: Corpus) -> dict[str, Any]:
    """The manifest, with where the corpus lies."""
    return {"path": str(corpus.path), **corpus.manifest}


def verify(corpus: Corpus | str | Path) -> list[str]:
    """Hash every file and look at every token; return what is wrong, a line each (empty: nothing is).

    Raises BadInput only where there is no corpus at all.
    """
    path = corpus.path if isinstance(corpus, Corpus) else folder_of(corpus)
    if not (path / "manifest.json").is_file():
        raise BadInput(f"there is no corpus at {path}; build one: smelt corpus build")
    manifest = files.read_json(path / "manifest.json")
    problems = _manifest_problems(manifest) or _file_problems(path, manifest, list(manifest["files"]))
    if problems:
        return problems
    for split in ("train", *(f"validation-{domain}" for domain in manifest["validation"])):
        counts = manifest["train"] if split == "train" else manifest["validation"][split.split("-", 1)[1]]
        tokens = np.memmap(path / f"{split}.bin", dtype=manifest["token_dtype"], mode="r")
        starts = np.load(path / f"{split}.docs.npy")[:, 0]
        if len(tokens) != counts["num_tokens"] or len(starts) != counts["num_documents"]:
            problems.append(f"{split}: {len(tokens)} tokens in {len(starts)} documents, the manifest says others")
        if int(tokens.max()) >= manifest["tokenizer"]["vocab_size"]:
            problems.append(f"{split}: token {int(tokens.max())} is outside the vocabulary")
        separator = manifest["tokenizer"]["separator_id"]
        if separator is not None and not np.array_equal(np.flatnonzero(tokens == separator), starts):
            problems.append(f"{split}: the separators do not stand where the documents begin")
    return problems


def _manifest_problems(manifest: Any) -> list[str]:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return [f"manifest.json is not of format {FORMAT}"]
    if any(key not in manifest for key in _FINGERPRINTED) or manifest != sealed(manifest):
        return ["manifest.json does not match its own fingerprint"]
    return []


def _file_problems(path: Path, manifest: dict[str, Any], names: list[str]) -> list[str]:
    problems = []
    for name in names:
        stated = manifest["files"][name]
        if not (path / name).is_file():
            problems.append(f"{name} is missing")
        elif (path / name).stat().st_size != stated["bytes"]:
            problems.append(f"{name} has {(path / name).stat().st_size} bytes, not {stated['bytes']}")
        elif files.sha256_of_file(path / name) != stated["sha256"]:
            problems.append(f"{name} has another content than when it was built")
    return problems


def _stamp(path: Path) -> list[int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _checked(path: Path) -> dict[str, Any]:
    """What was hashed before. A torn or missing record only means hashing again."""
    try:
        found = json.loads((path / "checked.json").read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def write_stamps(path: Path, manifest: dict[str, Any]) -> None:
    """Remember the files as they are, for they have just been hashed; a read-only folder is hashed each time."""
    stamps = {name: _stamp(path / name) for name in manifest["files"]}
    try:
        files.write_json(path / "checked.json", {"files": stamps})
    except OSError:
        return
