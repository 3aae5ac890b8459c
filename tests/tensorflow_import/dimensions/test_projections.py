"""Kernels of attention get the right names whatever the order of their axes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

SPEC = tf.TensorSpec([8, 6], tf.int32)
ORDERS = {"d_model first": ("mhk", "hkm"), "heads first": ("hmk", "hkm")}
# A letter's size: d_model, heads, d_head.
SIZES = {"m": 12, "h": 4, "k": 2}


class Attention(tf.Module):
    """A layer of attention over embeddings, with biases and keys by distance, and a layer d_ff."""

    def __init__(self, inwards: str, outwards: str, heads: int) -> None:
        super().__init__()
        self._equations = inwards, outwards
        self._random = np.random.default_rng(0)
        sizes = SIZES | {"h": heads}
        self.tokens = self._variable("tokens/embeddings", [20, 12])
        self.biases = self._variable("relative_attention/embeddings", [11, heads])
        self.distances = self._variable("rel_embedding/rel_embedding", [11, 12])
        self.kernels = {
            name: self._variable(f"{name}/kernel", [sizes[c] for c in letters])
            for name, letters in (
                ("query", inwards),
                ("key", inwards),
                ("value", inwards),
                ("attention_output", outwards),
            )
        }
        self.up = self._variable("up/kernel", [12, 16])
        self.down = self._variable("down/kernel", [16, 12])

    def _variable(self, name: str, shape: list[int]) -> tf.Variable:
        return tf.Variable(self._random.normal(size=shape) / 2, name=name)

    @tf.function(input_signature=[SPEC])
    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        inwards, outwards = self._equations
        x = tf.gather(self.tokens, ids)
        q, k, v = (
            tf.einsum(f"blm,{inwards}->blhk", x, self.kernels[name])
            for name in ("query", "key", "value")
        )
        distance = tf.range(6)[:, None] - tf.range(6)[None] + 5
        bias = tf.transpose(tf.gather(self.biases, distance), [2, 0, 1])
        of_distances = tf.einsum(
            f"rm,{inwards}->rhk", self.distances, self.kernels["key"]
        )
        scores = tf.einsum("bqhk,rhk->bhqr", q, of_distances)
        one_hot = tf.one_hot(distance, 11, dtype=tf.float64)
        bias += tf.einsum("bhqr,qlr->bhql", scores, one_hot)
        weights = tf.nn.softmax(tf.einsum("bqhk,blhk->bhql", q, k) + bias)
        joined = tf.einsum("bhql,blhk->bqhk", weights, v)
        output = self.kernels["attention_output"]
        x += tf.einsum(f"bqhk,{outwards}->bqm", joined, output)
        return x + tf.nn.relu(x @ self.up) @ self.down


@pytest.mark.parametrize("heads", [4, 1])
@pytest.mark.parametrize("order", ORDERS)
def test_usual_layouts_fit_saved_models(order, heads, tmp_path) -> None:
    """heads, d_ff and vocab on one axis: no variable has two of them."""
    module = Attention(*ORDERS[order], heads)
    tf.saved_model.save(module, str(tmp_path))
    layout = "batch:data; d_ff:model; vocab:model"
    if heads > 1:
        layout += "; heads:model"
    mesh = mtf.Mesh("data:2; model:2", layout)
    program = mtf.from_tensorflow(str(tmp_path), mesh)
    shapes = {v.name.partition("/")[2]: v.shape.names for v in program.variables}
    letters = {"m": "d_model", "h": "heads", "k": "d_head"}
    for name, kernel in zip(("query", "attention_output"), ORDERS[order]):
        expected = [letters[c] for c in kernel if c != "h" or heads > 1]
        assert list(shapes[f"{name}/kernel"]) == expected
    assert shapes["tokens/embeddings"] == ("vocab", "d_model")
    assert shapes["relative_attention/embeddings"][0] == "buckets"
    assert shapes["rel_embedding/rel_embedding"] == ("buckets", "d_model")
    assert shapes["up/kernel"] == ("d_model", "d_ff")

    ids = np.random.default_rng(1).integers(0, 20, [8, 6]).astype("int32")

    @mtf.function(ids="batch; length")
    def gradients(ids):
        (y,) = program(ids=ids).values()
        return mtf.gradients([mtf.reduce_sum(mtf.square(y))], program.copies)

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(module(ids) ** 2)
    theirs = tape.gradient(loss, module.trainable_variables)
    by_name = {v.name.split(":")[0]: g for v, g in zip(module.variables, theirs)}
    for copy, ours in zip(program.copies, gradients(ids)):
        expected = tf.convert_to_tensor(by_name[copy.name.partition("/")[2]]).numpy()
        np.testing.assert_allclose(
            ours.numpy().reshape(expected.shape), expected, 1e-9, 1e-9
        )
