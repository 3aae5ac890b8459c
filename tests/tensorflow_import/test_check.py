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
