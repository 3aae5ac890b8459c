"""The comparison of an imported function with TensorFlow's."""

from __future__ import annotations

import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.tensorflow_import.rules.all_rules import all_rules
from meshtf.tensorflow_import.rules.table import RULES, Rule

MESH = "data:2"
SPEC = tf.TensorSpec([4, 3])


class Wrong(Rule):
    """A rule that computes something else."""

    def dimensions(self, analysis, node):
        RIGHT.dimensions(analysis, node)

    def lower(self, lowering, node):
        return mtf.math.erf(lowering.tensor(node.inputs[0]))


RIGHT = all_rules()["Tanh"]


@pytest.fixture
def wrong_rule(monkeypatch):
    monkeypatch.setitem(RULES, "Tanh", Wrong())


def two_results(x):
    return {"right": x * 2.0, "wrong": [tf.tanh(x, name="bent")]}


def test_a_wrong_result_is_named(wrong_rule):
    with pytest.raises(mtf.NumericsError) as caught:
        mtf.from_tensorflow(two_results, mtf.Mesh(MESH), SPEC)
    message = str(caught.value)
    assert "['wrong'][0]" in message and "bent" in message and "by 0." in message


def test_it_can_be_left_out(wrong_rule):
    assert mtf.from_tensorflow(two_results, mtf.Mesh(MESH), SPEC, check=False)


def test_a_wrong_assignment_is_named_and_the_variable_keeps_its_value(wrong_rule):
    state = tf.Variable(tf.ones([3]), name="running")

    def update(x):
        state.assign(tf.tanh(tf.reduce_mean(x, 0)))
        return x

    with pytest.raises(mtf.NumericsError, match="the new value of running"):
        mtf.from_tensorflow(update, mtf.Mesh(MESH), SPEC)
    assert state.numpy().tolist() == [1, 1, 1]


def test_abstract_meshes_and_integers_are_checked():
    mesh = mtf.Mesh("data:64", "batch:data", devices="abstract")
    spec = tf.TensorSpec([4, 3], tf.int32)
    program = mtf.from_tensorflow(lambda x: tf.reduce_sum(x, 1) // 2, mesh, spec)
    assert not program.variables


def test_nan_of_one_kernel_is_not_a_wrong_import():
    """TensorFlow's fused product and ReLU on CPUs make 0 of NaN, and a mean over no ids is NaN:
    such numbers are not compared.
    """
    table, kernel = tf.ones([30, 8]), tf.ones([8, 16])

    def pooled(ids):
        is_id = tf.cast(ids > 0, tf.float32)[..., None]
        mean = tf.reduce_sum(tf.gather(table, ids) * is_id, 1) / tf.reduce_sum(is_id, 1)
        return tf.nn.relu(tf.matmul(mean, kernel) + tf.ones([16]))

    spec = tf.TensorSpec([64, 3], tf.int32)
    mtf.from_tensorflow(pooled, mtf.Mesh(MESH), spec)


def test_nan_that_the_import_makes_is_an_error(monkeypatch):
    class MakesNaN(Wrong):
        def lower(self, lowering, node):
            return lowering.tensor(node.inputs[0]) / 0.0 * 0.0

    monkeypatch.setitem(RULES, "Tanh", MakesNaN())
    with pytest.raises(mtf.NumericsError, match="12 of 12 elements are NaN in only"):
        mtf.from_tensorflow(lambda x: tf.tanh(x), mtf.Mesh(MESH), SPEC)


def test_nan_for_all_numbers_is_told(wrong_rule):
    """What TensorFlow gives no number for is not compared, and the rest is."""

    def one_column(x):
        return tf.concat([tf.tanh(x[:, :1] * float("nan")), x[:, 1:]], 1)

    class Zero(Wrong):
        def lower(self, lowering, node):
            return mtf.zeros_like(lowering.tensor(node.inputs[0]))

    RULES["Tanh"] = Zero()  # `wrong_rule` puts the right one back
    with pytest.warns(UserWarning, match="is NaN in TensorFlow.* in 4 of 12 elements"):
        mtf.from_tensorflow(one_column, mtf.Mesh(MESH), SPEC)
