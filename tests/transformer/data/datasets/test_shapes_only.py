"""Data without texts: the shapes of batches, and an error where texts are needed."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from transformer import data

MADE = data.ShapesOnly(data.EncoderDecoderFeatures(inputs=8, targets=4, packed=True))


def test_it_is_data():
    assert isinstance(MADE, data.Data) and "inputs=8" in str(MADE)
    found = MADE.features(2)
    assert found["inputs"] == data.ArraySpec((2, 8), np.dtype("int32"), "inputs")
    assert found["weights"] == data.ArraySpec((2, 4), np.dtype("float32"), "weights")
    # TensorFlow takes them as specs of its own.
    inputs = tf.TensorSpec([2, 8], tf.int32, "inputs")
    assert tf.TensorSpec.from_spec(found["inputs"]) == inputs
    assert "input_segments" in found


@pytest.mark.parametrize(
    "ask",
    [
        lambda: MADE.batches(2),
        lambda: MADE.held_out(2),
        lambda: MADE.vocabulary.encode("text"),
        lambda: MADE.vocabulary.decode([1]),
    ],
)
def test_it_has_no_texts(ask):
    with pytest.raises(data.DataError, match="bind train.data"):
        ask()
