"""Spooled documents -> which are kept, and which of those are held out for validation, clean of near duplicates.

1. Of documents with equal content the first is kept; a capped domain keeps documents in the order of their
   digests until the cap is reached.
2. Groups are ranked by a hash of their name, so that more text moves few documents across the split. The first
   groups that fill every domain's validation target are held out, whole.
3. A held-out document is a near duplicate when more than MAX_OVERLAP_FRAC of its shingles stand anywhere in the
   training text. Its group goes to training, the next in rank takes its place, and the check is made again,
   until none is left: nothing is lost and nothing crosses.

A shingle is WINDOW consecutive letters and digits of the lower-cased text (about ten words), so that white
space, punctuation and case hide no copy; or TOKEN_WINDOW token ids. One in SAMPLE is looked at, chosen by its
own hash, hence the same ones in a copy (the sampling of Broder, 1997).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from smelt.data.documents import SPLITS
from smelt.data.spool import Spooled, digest64
from smelt.errors import BadInput

WINDOW = 64
TOKEN_WINDOW = 16
SAMPLE = 8
# A third of a document seen in training: assumed. What overlap is left below it stands in the manifest.
MAX_OVERLAP_FRAC = 0.3
# Candidates are checked against the rest in one pass over the text, so there must be enough of them to replace
# the near duplicates among the first.
_POOL = 4
_BLOCK_UNITS = 32_768  # of one document hashed at once: what is made of them stays in the cache
_MULTIPLIER = 0x5851F42D4C957F2D  # odd, so that it has an inverse modulo 2**64
_FILTER_SLACK_BITS = 4  # of a table of hashes' beginnings, in which most of what is not sought is told at a look

_LETTERS_AND_DIGITS = bytes(
    ord(chr(byte).lower()) if chr(byte).isascii() and chr(byte).isupper() else byte for byte in range(256)
)
_DROPPED = bytes(byte for byte in range(128) if not chr(byte).isalnum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """`kept` and `validation` are masks over the documents; what was done is counted in `report`."""

    kept: np.ndarray
    validation: np.ndarray
    report: dict[str, Any]


def mixed(values: np.ndarray, salt: int = 0) -> np.ndarray:
    """uint64 -> uint64, a bijection that looks random: the finaliser of splitmix64 (Steele et al., 2014)."""
    with np.errstate(over="ignore"):
        z = values.astype(np.uint64, copy=False) + np.uint64((0x9E3779B97F4A7C15 * (salt + 1)) % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z ^= z >> np.uint64(shift)
            z *= np.uint64(factor)
        z ^= z >> np.uint64(31)
        return z


def split(
    documents: Spooled,
    *,
    domains: Sequence[str],
    validation_units: int,
    max_validation_frac: float,
    max_units: dict[str, int],
    tell: Callable[[float], None] = lambda share: None,
) -> Split:
    """Decide for every document. Units are bytes of text, or tokens where the documents are tokens. `tell` is given
    the share of the text that is checked, a document at a time.

    Documents whose split is given keep it, except that a near duplicate in validation goes to training. Raises
    BadInput where a domain would have no training or no validation document.
    """
    lengths = documents.lengths
    kept, num_equal = _without_equals(documents)
    kept, num_over_cap = _capped(documents, kept, domains, max_units)
    units = np.array([lengths[kept & (documents.domain == d)].sum() for d in range(len(domains))])
    given = bool((documents.split >= 0).any())
    of_text = documents.flat.dtype == np.uint8

    groups, group_of = np.unique(documents.group_digest, return_inverse=True)
    group_units = np.zeros((len(groups), len(domains)), np.int64)
    np.add.at(group_units, (group_of[kept], documents.domain[kept]), lengths[kept])
    if given:
        wanted = np.zeros(len(groups), bool)
        wanted[group_of[kept & (documents.split == SPLITS.index("validation"))]] = True
        ranked = np.flatnonzero(wanted)
        target, pool_target = np.full(len(domains), np.iinfo(np.int64).max), None
    else:
        # A group that is over half of a domain would leave too little to train on.
        eligible = (group_units <= units / 2).all(axis=1) & (group_units.sum(axis=1) > 0)
        ranked = np.argsort(mixed(groups), kind="stable")
        ranked = ranked[eligible[ranked]]
        target = np.minimum(validation_units, np.ceil(max_validation_frac * units)).astype(np.int64)
        pool_target = np.minimum(_POOL * target, units // 2)
    pool = ranked if given else _fill(ranked, group_units, pool_target)
    in_pool = np.zeros(len(groups), bool)
    in_pool[pool] = True

    candidates = np.flatnonzero(kept & in_pool[group_of])
    shingles = [_shingles(documents.content(index)) for index in candidates]
    sought = np.unique(np.concatenate([*shingles, np.empty(0, np.uint64)]))
    seen = _seen(documents, np.flatnonzero(kept & ~in_pool[group_of]), sought, tell)

    rejected = np.zeros(len(groups), bool)
    while True:
        chosen = _fill(pool[~rejected[pool]], group_units, target)
        held_out = np.zeros(len(groups), bool)
        held_out[chosen] = True
        # Candidates that are not held out are training text too.
        seen_now = seen.copy()
        for index, hashes in zip(candidates, shingles, strict=True):
            if not held_out[group_of[index]]:
                seen_now[np.searchsorted(sought, hashes)] = True
        overlap = np.array([seen_now[np.searchsorted(sought, hashes)].mean() for hashes in shingles])
        bad = held_out[group_of[candidates]] & (overlap > MAX_OVERLAP_FRAC)
        if not bad.any():
            break
        rejected[group_of[candidates[bad]]] = True

    validation = kept & held_out[group_of]
    train = kept & ~validation
    moved = kept & rejected[group_of]
    of_validation = held_out[group_of[candidates]]
    report: dict[str, Any] = {
        "equal_documents_dropped": num_equal,
        "documents_over_cap_dropped": num_over_cap,
        "near_duplicates": {
            "shingle": f"{WINDOW} letters and digits" if of_text else f"{TOKEN_WINDOW} token ids",
            "sampled": f"1 in {SAMPLE}",
            "max_overlap_frac": MAX_OVERLAP_FRAC,
            "documents_moved_to_train": {},
            "overlap_left_frac": {},  # mean over the validation documents of the domain
        },
    }
    for index, domain in enumerate(domains):
        of_domain = documents.domain == index
        if not (validation & of_domain).any() or not (train & of_domain).any():
            raise BadInput(_why_not_split(domain, int((kept & of_domain).sum()), int((moved & of_domain).sum())))
        near = report["near_duplicates"]
        near["documents_moved_to_train"][domain] = int((moved & of_domain).sum())
        left = overlap[of_validation & of_domain[candidates]]
        near["overlap_left_frac"][domain] = round(float(left.mean()), 6)
    return Split(kept=kept, validation=validation, report=report)


def _why_not_split(domain: str, num_documents: int, num_moved: int) -> str:
    if num_moved:
        return (
            f"domain {domain!r}: all of its {num_moved} candidate documents are near duplicates of training text, "
            "so nothing is left to validate on; give more different text"
        )
    return (
        f"domain {domain!r} has {num_documents} usable document(s), and the split holds out whole ones; "
        "give at least two, or say what separates the documents of a file"
    )


def training_order(documents: Spooled, mask: np.ndarray) -> np.ndarray:
    """Indices of the documents in `mask`, shuffled by a hash of their content: no seed and no library's
    generator has a part in it."""
    chosen = np.flatnonzero(mask)
    return chosen[np.argsort(mixed(documents.content_digest[chosen], salt=1), kind="stable")]


def _without_equals(documents: Spooled) -> tuple[np.ndarray, int]:
    kept = np.zeros(len(documents.identities), bool)
    # Where a split is given, a document in both is training text: sorting by split lets "train" come first.
    order = np.argsort(documents.split, kind="stable")
    kept[order[np.unique(documents.content_digest[order], return_index=True)[1]]] = True
    return kept, int((~kept).sum())


def _capped(
    documents: Spooled, kept: np.ndarray, domains: Sequence[str], max_units: dict[str, int]
) -> tuple[np.ndarray, dict[str, int]]:
    kept, dropped = kept.copy(), {}
    for domain, cap in max_units.items():
        chosen = training_order(documents, kept & (documents.domain == list(domains).index(domain)))
        over = chosen[np.cumsum(documents.lengths[chosen]) > cap]
        kept[over] = False
        dropped[domain] = len(over)
    return kept, dropped


def _fill(ranked: np.ndarray, group_units: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The groups in order of rank that some domain still needs to reach its target."""
    have = np.zeros(len(target), np.int64)
    taken = []
    for group in ranked:
        missing = have < target
        if not missing.any():
            break
        if (group_units[group][missing] > 0).any():
            taken.append(group)
            have += group_units[group]
    return np.array(taken, np.int64)


def _seen(documents: Spooled, indices: np.ndarray, sought: np.ndarray, tell: Callable[[float], None]) -> np.ndarray:
    """Which of the sorted hashes `sought` occur in the documents `indices`; `tell` is given the share that is read."""
    seen = np.zeros(len(sought), bool)
    bits = len(sought).bit_length() + _FILTER_SLACK_BITS
    shift, possible = np.uint64(64 - bits), np.zeros(2**bits, bool)
    possible[sought >> shift] = True
    for place, index in enumerate(indices if len(sought) else ()):
        hashes = _sampled(documents.content(index))
        hashes = hashes[possible[hashes >> shift]]
        found = np.minimum(np.searchsorted(sought, hashes), len(sought) - 1)
        seen[found[sought[found] == hashes]] = True
        tell(place / len(indices))
    return seen


def _shingles(content: np.ndarray) -> np.ndarray:
    """The sampled shingle hashes of a document: uint64, sorted, unique, at least one."""
    return np.unique(_sampled(content))


def _sampled(content: np.ndarray) -> np.ndarray:
    """The same as they stand in the document, one that occurs twice standing twice."""
    window = TOKEN_WINDOW
    if content.dtype == np.uint8:
        window = WINDOW
        content = np.frombuffer(content.tobytes().translate(_LETTERS_AND_DIGITS, _DROPPED), np.uint8)
    sampled, least = [], []
    for start in range(0, len(content) - window + 1, _BLOCK_UNITS):
        hashes = _windows_hashed(content[start : start + _BLOCK_UNITS + window - 1], window)
        sampled.append(hashes[hashes < np.uint64(2**64 // SAMPLE)])
        least.append(hashes.min())
    if not least:  # shorter than a shingle: the whole of it is one
        return np.array([digest64(content.tobytes())], np.uint64)
    found = np.concatenate(sampled)
    return found if len(found) else np.array([min(least)], np.uint64)


def _windows_hashed(values: np.ndarray, window: int) -> np.ndarray:
    """Hash of `values[i : i + window]` for every i of at least `window` values, up to a block's: mixed, of

        sum_k (values[i + k] + 1) m^(window - 1 - k)   modulo 2**64

    by sums from the beginning of values over m^k, of which a window's is a difference times a power of m."""
    falling, rising = _powers(window)
    sums = np.zeros(len(values) + 1, np.uint64)
    np.multiply(values + np.uint64(1), falling[: len(values)], out=sums[1:])
    np.cumsum(sums, out=sums)
    hashes = sums[window:] - sums[:-window]
    hashes *= rising[: len(hashes)]
    return mixed(hashes)


@cache
def _powers(window: int) -> tuple[np.ndarray, np.ndarray]:
    """m^-j and m^(j + window - 1) modulo 2**64 for every place j of a block."""
    size = _BLOCK_UNITS + window - 1

    def powers(factor: int, first: int) -> np.ndarray:
        found = np.full(size, factor, np.uint64)
        found[0] = first
        return np.cumprod(found)

    return powers(pow(_MULTIPLIER, -1, 2**64), 1), powers(_MULTIPLIER, pow(_MULTIPLIER, window - 1, 2**64))
