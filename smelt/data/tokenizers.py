"""Text -> token ids: bytes, a byte-level BPE trained here, or a `tokenizer.json` of the user's.

Every tokenizer has one id that separates documents and that no text encodes to:

- `bytes`: the id is the byte's value, vocabulary 256. Byte 0 separates: a document that contains it is refused.
- `bpe:N`: N ids, trained by `tokenizers` on the first BPE_TRAIN_BYTES of the training documents, in the corpus's
  order; all 256 bytes are in it, so that every text can be encoded. Id 0 is `<|document|>`.
- a path: the user's file; its separator is the one end-of-text token it has, or the one that is named.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from smelt.errors import BadInput

SEPARATOR = "<|document|>"
# 16 MB train a vocabulary of 4,096 in about 15 s on 2 cores, and more text hardly moves it: measured elsewhere.
BPE_TRAIN_BYTES = 16_000_000
_END_OF_TEXT = (
    "<|document|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<eos>",
    "</s>",
    "[SEP]",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokenizer:
    """`name` is what was asked for; `sha256` is of the tokenizer's file (null for bytes, which has none)."""

    name: str
    vocab_size: int
    separator_id: int | None
    separator: str | None  # the separator's spelling in a tokenizer.json
    sha256: str | None
    json: str | None
    encode: Callable[[Sequence[bytes]], list[np.ndarray]]
    decode: Callable[[Sequence[int]], str]


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest unsigned type that holds every id."""
    for dtype, size in ((np.uint8, 256), (np.uint16, 65_536), (np.uint32, 2**32)):
        if vocab_size <= size:
            return np.dtype(dtype).newbyteorder("<")
    raise BadInput(f"a vocabulary of {vocab_size} ids does not fit into 32 bits; use a smaller tokenizer")


def byte_tokenizer() -> Tokenizer:
    return Tokenizer(
        name="bytes",
        vocab_size=256,
        separator_id=0,
        separator=None,
        sha256=None,
        json=None,
        encode=lambda texts: [np.frombuffer(text, np.uint8) for text in texts],
        # The separator is shown as a blank line; a sampled sequence may end inside a character.
        decode=lambda ids: bytes(ids).replace(b"\x00", b"\n\n").decode(errors="replace"),
    )


def request(tokenizer: str, separator: str | None) -> dict[str, Any]:
    """What decides a tokenizer, as JSON. Raises BadInput for a name that is none and a file that is not there."""
    if tokenizer == "bytes":
        return {"tokenizer": "bytes"}
    if tokenizer.startswith("bpe:"):
        return {"tokenizer": f"bpe:{_bpe_size(tokenizer)}", "train_bytes": BPE_TRAIN_BYTES}
    if not Path(tokenizer).is_file():
        raise BadInput(f"{tokenizer!r} is no tokenizer; give bytes, bpe:4096, or the path of a tokenizer.json")
    content = Path(tokenizer).read_bytes()
    return {"tokenizer": "file", "sha256": sha256(content).hexdigest(), "separator": separator}


def make(tokenizer: str, separator: str | None, training_texts: Callable[[], Iterator[bytes]]) -> Tokenizer:
    """The tokenizer of that name; a BPE is trained on `training_texts`, which the others do not read."""
    if tokenizer == "bytes":
        return byte_tokenizer()
    if tokenizer.startswith("bpe:"):
        return from_json(tokenizer, _trained_bpe(_bpe_size(tokenizer), training_texts()), SEPARATOR)
    try:
        content = Path(tokenizer).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{tokenizer} is not UTF-8 text; give a tokenizer.json") from None
    return from_json(Path(tokenizer).name, content, separator)


def _bpe_size(name: str) -> int:
    size = name.removeprefix("bpe:")
    if not size.isdecimal() or not 257 <= int(size) <= 2**20:
        raise BadInput(f"{name!r}: a byte-level BPE needs 257 ids or more (256 bytes and the separator): bpe:4096")
    return int(size)


def _trained_bpe(vocab_size: int, texts: Iterable[bytes]) -> str:
    from tokenizers import Tokenizer as Trainable
    from tokenizers import decoders, models, pre_tokenizers, trainers

    trainable = Trainable(models.BPE())
    trainable.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainable.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trainable.train_from_iterator((text.decode() for text in texts), trainer)
    found = trainable.get_vocab_size()
    if found != vocab_size:
        raise BadInput(f"the text has only {found} tokens to learn, not {vocab_size}; use bpe:{found} or more text")
    return trainable.to_str()


def from_json(name: str, content: str, separator: str | None) -> Tokenizer:
    """The tokenizer that a `tokenizer.json` describes. Raises BadInput where its separator is not one token."""
    from tokenizers import Tokenizer as Loaded

    try:
        loaded = Loaded.from_str(content)
    except Exception as error:  # the library raises a bare Exception
        raise BadInput(f"{name} is no tokenizer.json ({str(error).splitlines()[0]})") from None
    # Text that spells a special token is text.
    loaded.encode_special_tokens = True
    loaded.no_padding()
    loaded.no_truncation()
    vocabulary = loaded.get_vocab(with_added_tokens=True)
    known = [separator] if separator is not None else [token for token in _END_OF_TEXT if token in vocabulary]
    if len(known) != 1 or known[0] not in vocabulary:
        found = ", ".join(known) if known and known[0] in vocabulary else "none"
        raise BadInput(f"{name}: which token separates documents? found: {found}; name one that is in its vocabulary")

    def encode(texts: Sequence[bytes]) -> list[np.ndarray]:
        batch = loaded.encode_batch_fast([text.decode() for text in texts], add_special_tokens=False)
        return [np.array(encoding.ids, np.int64) for encoding in batch]

    return Tokenizer(
        name=name,
        vocab_size=max(vocabulary.values()) + 1,
        separator_id=vocabulary[known[0]],
        separator=known[0],
        sha256=sha256(content.encode()).hexdigest(),
        json=content,
        encode=encode,
        decode=lambda ids: loaded.decode(list(ids), skip_special_tokens=False),
    )
