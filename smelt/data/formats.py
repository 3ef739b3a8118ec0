"""Pre-tokenised files of other projects -> a source of token ids.

    nanogpt    headerless little-endian ids; the type is not in the file: uint16, or uint32 above 65,536 ids
    llmc       256 int32 of header (magic, version, number of tokens), then uint16 (20240520, 1) or uint32 (20240801, 7)
    megatron   <prefix>.bin, raw ids, and <prefix>.idx: "MMIDIDX\\0\\0", u64 version 1, u8 type, u64 sequences, u64
               length of the document table, i32 length and i64 byte offset of each sequence, i64 document table

Layouts from their public writers: karpathy/nanoGPT data/*/prepare.py, karpathy/llm.c dev/data/data_common.py,
NVIDIA/Megatron-LM megatron/core/datasets/indexed_dataset.py. Every id is checked against the vocabulary; a file
that is torn is refused.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from smelt.data.documents import Document, Recipe, Source
from smelt.errors import BadInput
from smelt.files import sha256_of_file

_LLMC = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
_LLMC_HEADER_BYTES = 256 * 4
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
Format = Literal["nanogpt", "llmc", "megatron"]


def token_recipe(
    name: str,
    format: Format,
    paths: Sequence[str | Path],
    *,
    vocab_size: int,
    separator_id: int | None,
    validation_paths: Sequence[str | Path] = (),
    dtype: Literal["uint16", "uint32"] = "uint16",
    domain: str = "text",
    licence: str | None = None,
    validation_tokens: int = 1_000_000,
) -> Recipe:
    """A recipe over pre-tokenised files, for `corpus.import_tokens`.

    `separator_id` cuts the streams into documents (and is not kept: the corpus sets its own); None makes each
    file, or each Megatron document, one document. `validation_paths` are held out as they are; without them the
    split is made here. `dtype` is of nanoGPT files only. Raises BadInput where the integer type of a file cannot
    hold the vocabulary.
    """
    readers: dict[str, Callable[[Path], tuple[np.ndarray, np.ndarray]]] = {
        "nanogpt": lambda path: read_nanogpt(path, dtype),
        "llmc": read_llmc,
        "megatron": read_megatron,
    }
    if format not in readers:
        raise BadInput(f"{format!r} is no format of tokens; known: {', '.join(readers)}")
    splits = [(Path(path), "train" if validation_paths else None) for path in paths]
    splits += [(Path(path), "validation") for path in validation_paths]
    files = [file for path, _ in splits for file in _files(format, path)]
    for path, _ in splits:
        _check_type(readers[format](path)[0].dtype, vocab_size, path)

    def documents(left_out: Counter) -> Iterator[Document]:
        for path, split in splits:
            tokens, starts = readers[format](path)
            if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
                bad = int(tokens.min()) if int(tokens.min()) < 0 else int(tokens.max())
                raise BadInput(f"{path} holds the id {bad}, outside the vocabulary of {vocab_size}; give a larger one")
            if separator_id is not None:
                found = np.flatnonzero(tokens == separator_id)
                if not len(found) and len(starts) < 2:
                    raise BadInput(
                        f"{path} never holds the separator id {separator_id}; give the end-of-text id of its tokenizer"
                    )
                starts = np.unique(np.concatenate([starts, found, found + 1]))
                starts = starts[starts < len(tokens)]
            for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(tokens)], strict=True)):
                content = np.asarray(tokens[start:end])
                if separator_id is not None and len(content) == 1 and content[0] == separator_id:
                    continue
                identity = f"{path.name}#{number}"
                yield Document(
                    identity=identity, group=f"{split}:{identity}", domain=domain, content=content, split=split
                )

    source = Source(
        name=format,
        domains=(domain,),
        licence=licence,
        request={
            "format": format,
            "files": {path.name: sha256_of_file(path) for path in files},
            "validation_files": sorted(Path(path).name for path in validation_paths),
            "dtype": dtype if format == "nanogpt" else None,
        },
        documents=documents,
    )
    return Recipe(name=name, sources=(source,), validation_bytes=validation_tokens)


def read_nanogpt(path: Path, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and the starts of documents (one)."""
    item_bytes = np.dtype(dtype).itemsize
    size = _size(path)
    if size % item_bytes:
        raise BadInput(f"{path} has {size} bytes, no whole number of {dtype}; it is torn or of another type")
    return _mapped(path, np.dtype(dtype).newbyteorder("<"), 0, size // item_bytes), np.zeros(1, np.int64)


def read_llmc(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and the starts of documents (one); the header says how many tokens there are."""
    size = _size(path)
    header = np.fromfile(path, "<i4", 256)
    kind = tuple(map(int, header[:2]))
    if kind not in _LLMC:
        raise BadInput(f"{path} is no llm.c token file: its header begins with {list(kind)}")
    dtype, num_tokens = np.dtype(_LLMC[kind]), int(header[2])
    expected = _LLMC_HEADER_BYTES + num_tokens * dtype.itemsize
    if size != expected:
        raise BadInput(
            f"{path} has {size} bytes, but its header says {num_tokens} tokens, hence {expected}; copy it again"
        )
    return _mapped(path, dtype, _LLMC_HEADER_BYTES, num_tokens), np.zeros(1, np.int64)


def read_megatron(prefix: Path) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and the starts of documents. `prefix` is the common path of .bin and .idx, or either of them."""
    prefix = prefix.with_suffix("") if prefix.suffix in (".bin", ".idx") else prefix
    index, data = _megatron_files(prefix)
    size, raw = _size(data), index.read_bytes() if _size(index) else b""
    if raw[:9] != _MEGATRON_MAGIC or len(raw) < 34 or int.from_bytes(raw[9:17], "little") != 1:
        raise BadInput(f"{index} is no Megatron index of version 1")
    if raw[17] not in _MEGATRON_TYPES:
        raise BadInput(f"{index}: type code {raw[17]} is no integer type; token ids are integers")
    dtype = np.dtype(_MEGATRON_TYPES[raw[17]])
    num_sequences, num_table = (int(n) for n in np.frombuffer(raw, "<u8", 2, 18))
    if len(raw) < 34 + 12 * num_sequences + 8 * num_table:
        raise BadInput(f"{index} has {len(raw)} bytes, too few for its {num_sequences} sequences; copy it again")
    lengths = np.frombuffer(raw, "<i4", num_sequences, 34).astype(np.int64)
    offsets = np.frombuffer(raw, "<i8", num_sequences, 34 + 4 * num_sequences)
    table = np.frombuffer(raw, "<i8", num_table, 34 + 12 * num_sequences)
    expected = int(lengths.sum()) * dtype.itemsize
    in_order = np.cumsum(lengths) - lengths
    if size != expected or not np.array_equal(offsets, in_order * dtype.itemsize):
        raise BadInput(f"{data} has {size} bytes, but {index.name} describes {expected}; copy both again")
    if num_table < 2 or table[0] != 0 or table[-1] != num_sequences or (np.diff(table) < 0).any():
        raise BadInput(f"{index}: its document table does not run from 0 to {num_sequences}; write it again")
    ends = np.concatenate([in_order, [int(lengths.sum())]])
    return _mapped(data, dtype, 0, int(lengths.sum())), np.unique(ends[table[:-1]])


def _check_type(dtype: np.dtype, vocab_size: int, path: Path) -> None:
    largest = int(np.iinfo(dtype).max)
    if vocab_size - 1 > largest:
        mend = "; if its ids are uint32, say so" if dtype.itemsize == 2 else ""
        raise BadInput(
            f"{path} stores {dtype.name}, which holds ids up to {largest}: "
            f"too small for a vocabulary of {vocab_size}{mend}"
        )


def _megatron_files(prefix: Path) -> tuple[Path, Path]:
    return prefix.with_name(prefix.name + ".idx"), prefix.with_name(prefix.name + ".bin")


def _files(format: str, path: Path) -> list[Path]:
    if format != "megatron":
        _size(path)
        return [path]
    return list(_megatron_files(path.with_suffix("") if path.suffix in (".bin", ".idx") else path))


def _size(path: Path) -> int:
    if not path.is_file():
        raise BadInput(f"{path} does not exist; give the file, or for Megatron the path before .bin and .idx")
    return path.stat().st_size


def _mapped(path: Path, dtype: np.dtype, offset: int, num_tokens: int) -> np.ndarray:
    if not num_tokens:
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(num_tokens,))
