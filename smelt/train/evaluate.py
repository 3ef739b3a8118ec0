"""Weights and the fixed validation slices -> loss per document, and from it loss, standard error and bits per byte.

    loss_nats(domain)      = sum of nats / number of tokens over the slice
    standard error         of that ratio, documents being the independent units (linearised: sum of (s_d - L n_d)^2)
    bits_per_byte(domain)  = sum of nats / ln 2 / bytes of the text that the slice stands for
    val_loss_nats          = mean over the domains, each with equal weight, whatever their share in training

Per-document sums are kept (validation.npz), so that two runs can be compared pair by pair.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from smelt import model, parallel
from smelt.errors import BadInput
from smelt.files import write_bytes
from smelt.spec import ArchSpec, DataSpec


@dataclass(frozen=True, slots=True)
class DocumentLosses:
    """Of one domain: document ids, sum of nats and number of tokens of each, within the slice."""

    doc_ids: np.ndarray
    sum_nats: np.ndarray
    num_tokens: np.ndarray

    @property
    def loss_nats(self) -> float:
        return float(self.sum_nats.sum() / self.num_tokens.sum())

    @property
    def standard_error_nats(self) -> float | None:
        """None with fewer than two documents."""
        documents = len(self.doc_ids)
        if documents < 2:
            return None
        residuals = self.sum_nats - self.loss_nats * self.num_tokens
        return float(math.sqrt(documents / (documents - 1) * np.sum(residuals**2)) / self.num_tokens.sum())


def by_document(token_nats: np.ndarray, doc_ids: np.ndarray) -> DocumentLosses:
    """Per-token losses and the document of each token, any equal shapes -> sums per document."""
    ids, where = np.unique(doc_ids.ravel(), return_inverse=True)
    sums = np.bincount(where, weights=token_nats.ravel().astype(np.float64), minlength=len(ids))
    return DocumentLosses(ids, sums, np.bincount(where, minlength=len(ids)))


def compile_token_losses(arch: ArchSpec, data: DataSpec, mesh: Mesh | None = None) -> Callable[..., jax.Array]:
    """The compiled (params, tokens_BU, segments_BU) -> nats_BT of a shape; on a mesh all processes give all windows."""
    params = jax.eval_shape(lambda: model.init(arch, jax.random.key(0)))
    window = jax.ShapeDtypeStruct((data.batch_seqs, data.seq_len + 1), jnp.int32)

    def nats(params: Any, tokens_BU: jax.Array, segments_BU: jax.Array) -> jax.Array:
        how = {"confine_attention": data.confine_attention, "mesh": mesh}
        return model.token_losses(arch, params, tokens_BU, segments_BU, **how)

    if mesh is None:
        return jax.jit(nats).lower(params, window, window).compile()
    rows = parallel.batch_sharding(mesh, data.batch_seqs)
    places = (parallel.shardings(mesh, params), rows, rows)
    jitted = jax.jit(nats, in_shardings=places, out_shardings=parallel.everywhere(mesh))
    compiled = jitted.lower(params, window, window).compile()
    return lambda params, *windows: compiled(params, *parallel.spread(windows, (rows, rows)))


def validation_losses(
    token_losses: Callable[..., jax.Array],
    params: Any,
    slices: Mapping[str, Any],
    batch_seqs: int,
    stop: Callable[[], None] = lambda: None,
) -> dict[str, DocumentLosses]:
    """Losses of every domain's slice, `batch_seqs` windows at a time; `stop` is polled between batches."""
    losses = {}
    for domain, windows in slices.items():
        tokens_NU, segments_NU = windows.tokens, windows.segments
        nats = []
        for start in range(0, len(tokens_NU), batch_seqs):
            stop()
            tokens_BU, segments_BU = tokens_NU[start : start + batch_seqs], segments_NU[start : start + batch_seqs]
            missing = batch_seqs - len(tokens_BU)
            padded = [np.pad(window, ((0, missing), (0, 0))) for window in (tokens_BU, segments_BU)]
            nats.append(np.asarray(token_losses(params, *padded))[: len(tokens_BU)])
        losses[domain] = by_document(np.concatenate(nats), windows.doc_ids)
    return losses


def bits_per_byte(documents: DocumentLosses, num_bytes: float | None) -> float | None:
    """None where the corpus does not know its bytes."""
    return None if num_bytes is None else float(documents.sum_nats.sum()) / math.log(2) / num_bytes


def save(path: Path, losses: Mapping[str, DocumentLosses]) -> None:
    """Write per-document losses, atomically."""
    import io

    content = io.BytesIO()
    arrays = {}
    for domain, documents in losses.items():
        arrays |= {
            f"{domain}/doc_ids": documents.doc_ids,
            f"{domain}/sum_nats": documents.sum_nats,
            f"{domain}/num_tokens": documents.num_tokens,
        }
    np.savez(content, **arrays)
    write_bytes(path, content.getvalue())


def load(path: Path) -> dict[str, DocumentLosses]:
    """What `save` wrote."""
    if not path.exists():
        raise BadInput(f"{path} does not exist: the run has not been evaluated here")
    with np.load(path) as arrays:
        domains = sorted({name.split("/")[0] for name in arrays})
        return {
            domain: DocumentLosses(*(arrays[f"{domain}/{part}"] for part in ("doc_ids", "sum_nats", "num_tokens")))
            for domain in domains
        }
