"""Each rule beside TensorFlow, with gradients, under drawn layouts of eight positions."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.tensorflow_import.rules.all_rules import all_rules
from meshtf.tensorflow_import.rules.compute.elementwise import BINARY, UNARY
from tests.tensorflow_import import control_cases, rule_cases, scatter_cases
from tests.tensorflow_import.imported import AXES, check_equal, imported
from tests.tensorflow_import.rule_cases import call, result_of

raw = tf.raw_ops
FILES = (rule_cases, control_cases, scatter_cases)
CASES = {name: case for file in FILES for name, case in file.CASES.items()}
WITHOUT_GRADIENT = {
    name: case for file in FILES for name, case in file.WITHOUT_GRADIENT.items()
}

# The kinds that no function of these files has.
WITHOUT_CASE = {
    "Angle",
    "Assert",  # as the next two that have effects: graph/test_effects.py
    "Assign",
    "Betainc",
    "BatchMatMul",
    "BatchMatMulV3",
    "Case",
    "CheckNumerics",
    "ExtractVolumePatches",
    "FFT3D",
    "Gradients",  # tests/keras/test_custom_steps.py
    "IFFT3D",
    "IRFFT",
    "IRFFT2D",
    "If",
    "LeakyRelu",
    "Mod",
    "Multinomial",
    "PrintV2",
    "Qr",
    "Select",
    "Svd",
    "While",
}


def _array(text: str, random_numbers: np.random.Generator) -> np.ndarray:
    kind, *sizes = text.split()
    shape = [int(size) for size in sizes]
    if kind == "i":
        return random_numbers.integers(0, 4, shape).astype("int32")
    x = random_numbers.normal(size=shape).astype("float32")
    return np.abs(x) * 0.5 + 0.25 if kind == "p" else x


def _check(name: str, gradients: bool) -> Any:
    function, shapes = (CASES | WITHOUT_GRADIENT)[name]
    seed = zlib.crc32(name.encode())
    numbers = np.random.default_rng(seed)
    arrays = [_array(text, numbers) for text in shapes]
    return check_equal(function, arrays, random.Random(seed), gradients)


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    result = _check(name, gradients=True)
    assert not result.named.lowering.replicated


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_rule_without_gradient(name: str) -> None:
    _check(name, gradients=False)


def test_relative_shift() -> None:
    """Scores by distance, as in XLNet: reshapes change the digits of an axis that keeps its
    name, with two sizes.
    """

    def scores(x: tf.Tensor) -> tf.Tensor:
        by_distance = tf.reshape(x, [8, 8, 4])[:, 1:]
        return tf.reshape(by_distance, [8, 4, 7])[:, :, :4] + x[:, :, :4]

    arrays = [np.random.default_rng(0).normal(size=[8, 4, 8]).astype("float32")]
    result = check_equal(scores, arrays, random.Random(0), True)
    assert not result.named.lowering.replicated


@pytest.mark.parametrize("kinds", [UNARY, BINARY], ids=["unary", "binary"])
def test_element_by_element(kinds: dict[str, Any]) -> None:
    """All such operations in one function, of operands that broadcast."""
    arrays = [_array(text, np.random.default_rng(1)) for text in ("p 8 6", "p 6")]
    arrays[1] = arrays[1] + 1.5
    draw = random.Random(1)
    if kinds is UNARY:
        # TensorFlow refuses the gradient of one of them.
        known = [kind for kind in UNARY if kind != "PreventGradient"]
        check_equal(
            lambda x: [_unary_result(kind, x) for kind in known], arrays[:1], draw
        )
    else:
        check_equal(
            lambda x, y: [result_of(kind, x, y) for kind in BINARY], arrays, draw
        )


def _unary_result(kind: str, x: tf.Tensor) -> tf.Tensor:
    operation = getattr(raw, kind)
    if kind in ("ComplexAbs", "Conj", "Imag", "Real"):
        return tf.abs(call(operation, tf.complex(x, 2.0 * x)))
    if kind == "LogicalNot":
        return tf.cast(call(operation, x > 0.5), tf.float32)
    return tf.cast(call(operation, x), tf.float32)


def test_rules_without_a_case() -> None:
    """The list of kinds that have a rule, and no case in this file, is up to date."""
    numbers = np.random.default_rng(0)
    seen = {*UNARY, *BINARY}
    for function, shapes in (CASES | WITHOUT_GRADIENT).values():
        arrays = [_array(text, numbers) for text in shapes]
        program = imported(function, arrays).program
        seen |= {node.kind for node in program.all_nodes()}
    draws = {kind for kind in all_rules() if "Random" in kind or "Normal" in kind}
    draws |= {"StatelessMultinomial", "StatelessShuffle"}
    missing = set(all_rules()) - seen - draws
    assert sorted(missing) == sorted(WITHOUT_CASE)


def test_no_gradient_of_a_loop_until_a_condition() -> None:
    function, shapes = WITHOUT_GRADIENT["a loop until"]
    arrays = [_array(text, np.random.default_rng(0)) for text in shapes]
    program = imported(function, arrays)
    with pytest.raises(mtf.ArgumentError, match="number of steps that is computed"):
        program.run(mtf.Mesh(AXES, "batch:data"), arrays, gradients=True)


def test_a_rule_that_tensorflow_does_not_give() -> None:
    """Within a function that another one calls: right, and without gradient."""
    inner = tf.function(lambda x: control_cases.clipped(x * 3.0), autograph=False)
    arrays = [_array("f 8 6", np.random.default_rng(0))]
    check_equal(lambda x: inner(x) + 1.0, arrays, random.Random(0), gradients=False)
    program = imported(lambda x: inner(x) + 1.0, arrays)
    with pytest.raises(mtf.ArgumentError, match="a rule of the function's own"):
        program.run(mtf.Mesh(AXES, "batch:data"), arrays, gradients=True)
