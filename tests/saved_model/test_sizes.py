"""The sizes that signatures take."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf


@pytest.fixture(scope="module")
def signatures(tmp_path_factory):
    """Signatures of fixed sizes, and of batches of any size."""
    mesh = mtf.Mesh("data:2", "batch:data")

    @mtf.function(mesh=mesh, x="batch;d", y="batch")
    def last_and_all(x, y):
        return x["batch", -1], x * y

    folder = str(tmp_path_factory.mktemp("served") / "model")
    x, y = np.ones((8, 4), "float32"), np.ones(8, "float32")
    model = mtf.export_saved_model(last_and_all, x, y)
    product = mtf.function(lambda x, y: x * y, mesh=mesh, x="batch;d", y="batch")
    model.add("any_size", product, x, y, any_size="batch")
    model.save(folder)
    return tf.saved_model.load(folder).signatures


@pytest.mark.parametrize("signature", ["serving_default", "any_size"])
@pytest.mark.parametrize(
    "shape", [(16, 4), (7, 4), (8, 5), (4,), (), (8, 4, 1), (1, 8, 4)]
)
def test_other_sizes_are_an_error(signatures, signature, shape):
    serve = signatures[signature]
    number = shape[0] if shape else 8
    inputs = {"x": tf.ones(shape), "y": tf.ones([number])}
    if signature == "any_size" and len(shape) == 2 and shape[1] == 4:
        assert serve(**inputs)["output_0"].shape == shape
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"sizes_of_[xy]"):
        serve(**inputs)


def test_batches_of_two_sizes_are_an_error(signatures):
    with pytest.raises(tf.errors.InvalidArgumentError, match="batches of x, y differ"):
        signatures["any_size"](x=tf.ones([3, 4]), y=tf.ones([5]))
    assert signatures["serving_default"](x=tf.ones([8, 4]), y=tf.ones([8]))
