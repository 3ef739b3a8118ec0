import math

import numpy as np
import pytest

from smelt.errors import BadInput
from smelt.train import evaluate


def test_losses_are_summed_by_document():
    nats = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    documents = evaluate.by_document(nats, np.array([[7, 7, 9], [9, 9, 9]]))
    assert documents.doc_ids.tolist() == [7, 9]
    assert documents.sum_nats.tolist() == [3.0, 18.0]
    assert documents.num_tokens.tolist() == [2, 4]
    assert documents.loss_nats == pytest.approx(3.5)


def test_the_standard_error_treats_documents_as_the_units():
    generator = np.random.default_rng(0)
    means, estimates = [], []
    for _ in range(400):
        levels = generator.normal(2.0, 0.5, 40)  # a document is hard or easy as a whole
        nats = levels[:, None] + generator.normal(0, 0.1, (40, 25))
        documents = evaluate.by_document(nats, np.repeat(np.arange(40), 25).reshape(40, 25))
        means.append(documents.loss_nats)
        estimates.append(documents.standard_error_nats)
    assert np.mean(estimates) == pytest.approx(np.std(means), rel=0.1)


def test_one_document_has_no_standard_error():
    assert evaluate.by_document(np.ones((1, 4)), np.zeros((1, 4), int)).standard_error_nats is None


def test_bits_per_byte_of_uniform_bytes_is_eight():
    documents = evaluate.by_document(np.full((2, 8), math.log(256)), np.zeros((2, 8), int))
    assert evaluate.bits_per_byte(documents, num_bytes=16) == pytest.approx(8.0)
    assert evaluate.bits_per_byte(documents, num_bytes=None) is None


def test_saved_losses_come_back(tmp_path):
    documents = {"prose": evaluate.by_document(np.ones((2, 3)), np.array([[0, 0, 1], [1, 2, 2]]))}
    evaluate.save(tmp_path / "validation.npz", documents)
    loaded = evaluate.load(tmp_path / "validation.npz")["prose"]
    assert loaded.sum_nats.tolist() == documents["prose"].sum_nats.tolist()
    with pytest.raises(BadInput, match="does not exist"):
        evaluate.load(tmp_path / "nothing.npz")
