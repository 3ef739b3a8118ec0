"""(recipe, tokenizer) -> a corpus folder, whole or not at all; and the verbs that look at one.

Everything is built in a hidden folder beside and renamed at the end, so a build that is killed leaves no corpus,
and two builds of one corpus leave one. Documents are spooled, split (see `split`), encoded, and packed one after
the other in an order that depends on their content alone: equal sources give equal files on any machine.
"""

import errno
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from smelt import files
from smelt.data import recipes, store, tokenizers
from smelt.data.documents import Document, Recipe
from smelt.data.split import Split, split, training_order
from smelt.data.spool import Spooled, spool
from smelt.data.store import Corpus, info, open_corpus, verify
from smelt.errors import BadInput

__all__ = ["Corpus", "build", "import_tokens", "info", "open_corpus", "verify"]

_ENCODE_BYTES = 4_000_000  # of text handed to a tokenizer at once
_FULL_BYTES = 1_000_000
_ABANDONED_SECS = 24 * 3600
PROGRESS_SECS = 5.0
Progress = Callable[[str], None]


def _paced(say: Progress) -> Progress:
    """`say`, at most once in PROGRESS_SECS and not before them."""
    said = time.monotonic()

    def tell(line: str) -> None:
        nonlocal said
        if time.monotonic() - said > PROGRESS_SECS:
            said = time.monotonic()
            say(line)

    return tell


def build(
    recipe: Recipe | str,
    *,
    tokenizer: str = "bytes",
    name: str | None = None,
    root: Path | None = None,
    separator: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Corpus:
    """Build `recipe` (or the recipe of that name) with `tokenizer` (see `tokenizers`) and open it.

    `name` is the folder under `root` (default: `store.root()`); without it, the recipe's name, with the
    tokenizer's where that is not bytes. Where the same corpus lies there already it is opened and nothing is
    done; another one is replaced only with `force`. Raises BadInput for bad sources, and then writes nothing.
    """
    recipe = recipes.recipe(recipe) if isinstance(recipe, str) else recipe
    request = recipe.request() | tokenizers.request(tokenizer, separator)
    if name is None:
        plain = tokenizer.replace(":", "-") if tokenizer.startswith("bpe:") else Path(tokenizer).stem
        name = recipe.name if tokenizer == "bytes" else f"{recipe.name}-{plain}"

    def texts(documents: Spooled, order: np.ndarray) -> Iterator[bytes]:
        taken = 0
        for index in order:
            text = documents.content(index).tobytes()
            yield text
            taken += len(text)
            if taken >= tokenizers.BPE_TRAIN_BYTES:
                return

    def encoder(documents: Spooled, train: np.ndarray, say: Progress) -> tokenizers.Tokenizer:
        if tokenizer.startswith("bpe:"):
            say(f"training {tokenizer}")
        return tokenizers.make(tokenizer, separator, lambda: texts(documents, train))

    return _build(
        recipe,
        request=request,
        root=root or store.root(),
        name=name,
        encoder=encoder,
        unit=np.dtype(np.uint8),
        force=force,
        progress=progress,
    )


def import_tokens(
    recipe: Recipe,
    *,
    vocab_size: int,
    separator_id: int | None,
    name: str,
    root: Path | None = None,
    tokenizer_json: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Corpus:
    """Build a corpus from sources of token ids (`formats.sources`); the same rules as `build`.

    The documents are split where the sources do not say, checked for near duplicates, shuffled and packed like
    text. Bytes a token are known only where `tokenizer_json` is given, which then decodes every document; else
    they are None and losses cannot be put in bits per byte.
    """
    if separator_id is not None and not 0 <= separator_id < vocab_size:
        raise BadInput(f"separator id {separator_id} is outside the vocabulary of {vocab_size}")
    request = recipe.request() | {"vocab_size": vocab_size, "separator_id": separator_id}
    loaded, separator = None, None
    if tokenizer_json is not None:
        import tokenizers as library

        content = Path(tokenizer_json).read_text(encoding="utf-8")
        ids = library.Tokenizer.from_str(content)
        separator = ids.id_to_token(separator_id) if separator_id is not None else None
        loaded = tokenizers.from_json(Path(tokenizer_json).name, content, separator)
        if loaded.vocab_size > vocab_size:
            raise BadInput(
                f"{tokenizer_json} has {loaded.vocab_size} ids, more than the vocabulary of {vocab_size} given"
            )
        request["sha256"] = loaded.sha256

    def encoder(documents: Spooled, train: np.ndarray, say: Progress) -> tokenizers.Tokenizer:
        def unchanged(texts: Sequence[Any]) -> list[np.ndarray]:
            return list(texts)

        return tokenizers.Tokenizer(
            name=loaded.name if loaded else "imported",
            vocab_size=vocab_size,
            separator_id=separator_id,
            separator=separator,
            sha256=loaded.sha256 if loaded else None,
            json=loaded.json if loaded else None,
            encode=unchanged,
            decode=loaded.decode if loaded else lambda ids: " ".join(map(str, ids)),
        )

    return _build(
        recipe,
        request=request,
        root=root or store.root(),
        name=name,
        encoder=encoder,
        unit=np.dtype(np.uint32),
        force=force,
        progress=progress,
    )


def _build(
    recipe: Recipe,
    *,
    request: dict[str, Any],
    root: Path,
    name: str,
    encoder: Callable[[Spooled, np.ndarray, Progress], tokenizers.Tokenizer],
    unit: np.dtype,
    force: bool,
    progress: Progress | None,
) -> Corpus:
    say = progress or (lambda line: None)
    if name in ("", ".", "..") or os.sep in name:
        raise BadInput(f"{name!r} is no name of a corpus; give one that can name a folder under {root}")
    folder = root / name
    if (folder / "manifest.json").is_file() and not force:
        return _already_built(folder, request, say)
    if folder.exists() and not (folder / "manifest.json").is_file() and any(folder.iterdir()):
        raise BadInput(f"{folder} is no corpus and is not empty; choose another name")
    started = time.monotonic()
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.building")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    try:
        left_out: Counter = Counter()
        documents = spool(
            _documents(recipe, left_out, say),
            path=beside / "spool",
            domains=recipe.domains,
            dtype=unit,
            min_length=recipe.min_document_bytes,
            left_out=left_out,
        )
        say(f"read {len(documents.identities):,} documents; splitting")
        checking = _paced(say)
        parts = split(
            documents,
            domains=recipe.domains,
            validation_units=recipe.validation_bytes,
            max_validation_frac=recipe.max_validation_frac,
            max_units=recipe.max_bytes,
            tell=lambda share: checking(f"looked for near duplicates in {share:.0%} of the documents"),
        )
        train = training_order(documents, parts.kept & ~parts.validation)
        tokenizer = encoder(documents, train, say)
        manifest = _write(beside, recipe, documents, parts, train, tokenizer, say)
        documents.flat._mmap.close()
        (beside / "spool").unlink()
        manifest["left_out"] = dict(sorted(left_out.items()))
        manifest = store.sealed(
            {
                "format": store.FORMAT,
                "name": folder.name,
                "fingerprint": "",
                "request": request,
                **manifest,
                "build": {"secs": round(time.monotonic() - started, 1)},
            }
        )
        files.write_json(beside / "manifest.json", manifest)
        store.write_stamps(beside, manifest)
        _put_in_place(beside, folder, request, force=force)
    except OSError as error:
        # numpy tells a full disk without an errno
        if error.errno == errno.ENOSPC or shutil.disk_usage(root).free < _FULL_BYTES:
            raise BadInput(f"no space is left for {folder}: make room, or set SMELT_CORPORA to another disk") from error
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    say(f"built {folder} in {time.monotonic() - started:.0f} s")
    return open_corpus(folder)


def _already_built(folder: Path, request: dict[str, Any], say: Progress) -> Corpus:
    corpus = open_corpus(folder)
    if corpus.manifest["request"] != request:
        raise BadInput(
            f"{folder} holds another corpus ({corpus.fingerprint}) than the one asked for; "
            "choose another --name, or replace it with --force"
        )
    say(f"{folder} is built already ({corpus.fingerprint}); nothing to do")
    return corpus


def _documents(recipe: Recipe, left_out: Counter, say: Progress) -> Iterator[tuple[int, Document]]:
    for number, source in enumerate(recipe.sources):
        say(f"reading {source.name} ({number + 1} of {len(recipe.sources)})")
        tell = _paced(say)
        for num_read, document in enumerate(source.documents(left_out), start=1):
            yield number, document
            tell(f"read {num_read:,} documents of {source.name}")


def _write(
    folder: Path,
    recipe: Recipe,
    documents: Spooled,
    parts: Split,
    train: np.ndarray,
    tokenizer: tokenizers.Tokenizer,
    say: Progress,
) -> dict[str, Any]:
    """Write the token files; return the manifest's account of them."""
    dtype = tokenizers.token_dtype(tokenizer.vocab_size)
    digests = [sha256() for _ in recipe.domains]
    say(f"writing {len(train):,} training documents")
    counts = _write_split(folder, "train", documents, train, tokenizer, dtype, digests, _paced(say))
    validation: dict[str, Any] = {}
    for index, domain in enumerate(recipe.domains):
        order = training_order(documents, parts.validation & (documents.domain == index))
        stem = f"validation-{domain}"
        validation[domain] = _write_split(folder, stem, documents, order, tokenizer, dtype, digests)
        files.write_json(folder / f"{stem}.names.json", [documents.identities[i] for i in order])
    if tokenizer.json is not None:
        files.write_text(folder / "tokenizer.json", tokenizer.json)
    written = sorted(path.name for path in folder.iterdir() if path.name != "spool")
    return {
        "recipe": recipe.name,
        "tokenizer": {
            "name": tokenizer.name,
            "vocab_size": tokenizer.vocab_size,
            "separator_id": tokenizer.separator_id,
            "separator": tokenizer.separator,
            "sha256": tokenizer.sha256,
        },
        "token_dtype": dtype.name,
        "train": counts,
        "validation": validation,
        "domains": _domains(folder, recipe, documents, parts, counts, validation, digests),
        **parts.report,
        "files": {
            name: {
                "bytes": (folder / name).stat().st_size,
                "sha256": files.sha256_of_file(folder / name),
            }
            for name in written
        },
    }


def _domains(
    folder: Path,
    recipe: Recipe,
    documents: Spooled,
    parts: Split,
    train: dict[str, Any],
    validation: dict[str, Any],
    digests: list[Any],
) -> dict[str, Any]:
    """Size, share of the training tokens, licences and sha256 of each domain. The sha256 is of the domain's
    documents as they were read, training then validation, in the order of the files."""
    table = np.load(folder / "train.docs.npy")
    tokens = np.diff(table[:, 0], append=train["num_tokens"])
    domains = {}
    for index, domain in enumerate(recipe.domains):
        kept = parts.kept & (documents.domain == index)
        in_train = table[:, 2] == index
        held_out = validation[domain]
        known = train["num_bytes"] is not None and held_out["num_bytes"] is not None
        domains[domain] = {
            "num_documents": int(kept.sum()),
            "num_bytes": int(table[in_train, 1].sum()) + held_out["num_bytes"] if known else None,
            "num_tokens": int(tokens[in_train].sum()) + held_out["num_tokens"],
            "train_frac": round(int(tokens[in_train].sum()) / train["num_tokens"], 6),
            "sha256": digests[index].hexdigest(),
            "licences": {
                source.name: source.licence
                for number, source in enumerate(recipe.sources)
                if (kept & (documents.source == number)).any()
            },
        }
    return domains


def _write_split(
    folder: Path,
    stem: str,
    documents: Spooled,
    order: np.ndarray,
    tokenizer: tokenizers.Tokenizer,
    dtype: np.dtype,
    digests: list[Any],
    tell: Progress = lambda line: None,
) -> dict[str, Any]:
    """One stream of tokens and its table of documents."""
    of_text = documents.flat.dtype == np.uint8
    opening = [] if tokenizer.separator_id is None else [np.array([tokenizer.separator_id], dtype)]
    table = np.empty((len(order), 3), np.int64)
    table[:, 2] = documents.domain[order]
    table[:, 1] = documents.lengths[order] if of_text else -1
    position = 0
    batches = np.split(
        np.arange(len(order)), np.flatnonzero(np.diff(np.cumsum(documents.lengths[order]) // _ENCODE_BYTES)) + 1
    )
    with open(folder / f"{stem}.bin", "wb") as file:
        for batch in batches:
            contents = [documents.content(order[row]) for row in batch]
            for row, content in zip(batch, contents, strict=True):
                digests[documents.domain[order[row]]].update(content.tobytes())
            encoded = tokenizer.encode([c.tobytes() for c in contents] if of_text else contents)
            for row, tokens in zip(batch, encoded, strict=True):
                table[row, 0] = position
                if not of_text and tokenizer.json is not None:
                    table[row, 1] = len(tokenizer.decode(tokens.tolist()).encode())
                stream = np.concatenate([*opening, tokens.astype(dtype)])
                file.write(stream.tobytes())
                position += len(stream)
            tell(f"wrote {batch[-1] + 1:,} of {len(order):,} documents")
        file.flush()
        os.fsync(file.fileno())
    np.save(folder / f"{stem}.docs.npy", table)
    num_bytes = int(table[:, 1].sum()) if (table[:, 1] >= 0).all() else None
    return {
        "num_documents": len(order),
        "num_tokens": position,
        "num_bytes": num_bytes,
        "bytes_per_token": None if num_bytes is None else num_bytes / position,
    }


def _put_in_place(beside: Path, folder: Path, request: dict[str, Any], *, force: bool) -> None:
    """Rename the finished folder; where another process was first with the same corpus, keep that one."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.replaced")
    if force and folder.exists():
        os.rename(folder, aside)
    try:
        os.rename(beside, folder)
    except OSError:
        if not (folder / "manifest.json").is_file():
            raise
        _already_built(folder, request, lambda line: None)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what builds of this corpus left when they were killed, once no build can still be at it."""
    for suffix in ("building", "replaced"):
        for left in folder.parent.glob(f".{folder.name}.*.{suffix}"):
            if time.time() - left.stat().st_mtime > _ABANDONED_SECS:
                shutil.rmtree(left, ignore_errors=True)
