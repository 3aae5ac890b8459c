"""meshtf.runtime.placed.program.program_proto: constants once, and what they wait for kept."""

from __future__ import annotations

import tensorflow as tf

from meshtf.runtime.placed.program.program_proto import definition_of


def traced(body):
    function = tf.function(body, autograph=False)
    return function.get_concrete_function(tf.TensorSpec([4]), tf.TensorSpec([4]))


def test_equal_constants_are_one_and_others_stay():
    function = traced(lambda x, y: [x + 1.0, y + 1.0, x - 0.0, y - (-0.0), x * 2.0])
    values = [
        node.attr["value"].tensor.float_val[0]
        for node in definition_of(function).node_def
        if node.op == "Const"
    ]
    assert sorted(values) == [0.0, 0.0, 1.0, 2.0]  # 0.0 and -0.0


def test_who_takes_a_constant_waits_for_what_it_waited_for():
    """TensorFlow has an op wait only where none of its inputs waits already."""

    def body(x, y):
        first = tf.raw_ops.Identity(input=x, name="first")
        with tf.control_dependencies([first]):
            later_sum = tf.raw_ops.AddV2(x=y, y=tf.constant(1.0), name="later")
        return [later_sum, x + 1.0]

    (later_sum,) = [
        n for n in definition_of(traced(body)).node_def if n.name == "later"
    ]
    assert later_sum.input[-1] == "^first"


def test_the_name_is_not_the_one_that_tensorflow_gave():
    function = traced(lambda x, y: [x + y])
    assert definition_of(function).signature.name != function.name.decode()
