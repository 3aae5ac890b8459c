"""Names and sizes of arguments, and the errors that name them."""

from __future__ import annotations

import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.tensorflow_import.argument_names import arguments_of

STRUCTURE = {
    "x": tf.TensorSpec([None, 16]),
    "batch": {"ids": tf.TensorSpec([None, None], tf.int32), "flag": True},
}


def test_names_give_sizes_to_each_other():
    inputs = {"x": "batch:8; d", "batch": {"ids": "batch; length:4"}}
    first, second = arguments_of(STRUCTURE, inputs)
    assert (first.label, first.sizes, first.names) == (
        "batch['ids']",
        (8, 4),
        ("batch", "length"),
    )
    assert (second.label, second.sizes) == ("x", (8, 16))


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({}, r"\"batch\['ids'\]\": axis 0\n.*axis 1\n.*\"x\": axis 0\n.*inputs="),
        ({"x": "batch"}, '"x" has 2 axes, and `inputs` names 1'),
        ({"x": "batch:8; d:15"}, 'axis 1 of "x" is d:15 by `inputs`.* size 16'),
        ({"x": "b:8; b"}, 'two axes of "x" one name'),
        (
            {"x": "batch:8; d", "batch": {"ids": "batch:9; length:2"}},
            'dimension "batch" has the sizes 9 and 8',
        ),
        ({"y": "batch:8"}, "names 'y', but the function has no such argument"),
        ({"batch": {"idz": "b:8"}}, "Did you mean ids"),
        ({"batch": "b:8"}, "is a dict of tensors"),
        ({"batch": {"flag": "b:8"}}, "is no tensor"),
        ({"x": ["b:8"]}, "is one tensor"),
    ],
)
def test_errors_name_the_argument_and_the_axis(inputs, message):
    with pytest.raises(mtf.MeshtfError, match=f"(?s){message}"):
        arguments_of(STRUCTURE, inputs)
