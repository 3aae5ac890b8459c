"""Ops made in little time are the ops that TensorFlow makes; what stands for its helper
goes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from meshtf.runtime.tf_internals.fast_tracing import op_def_library, quick_ops

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
raw = tf.raw_ops

BODIES: dict[str, Callable[[Any, Any], Any]] = {
    "reshape": lambda x, n: [
        tf.reshape(x, [4, 3]),
        tf.reshape(x, [-1]),
        tf.reshape(x, n[None]),
        tf.reshape(x, [n]),
        tf.reshape(x, np.array([2, 6])),
        tf.reshape(x, [4, 3]),
    ],
    "lists": lambda x, n: [
        raw.Pack(values=[5]),
        raw.Pack(values=[6]),
        raw.Pack(values=[n, n]),
        raw.Pack(values=[n]),
        raw.Pack(values=[x, x], axis=1),
        raw.ConcatV2(values=[x, x], axis=1),
        raw.ConcatV2(values=[x, x], axis=0),
        tf.concat([x, x, x], 0),
        tf.concat([x[:1], x], 0),
        tf.stack([n, 3]),
    ],
    "many outputs": lambda x, n: [
        *tf.split(x, 2, 1),
        *tf.split(x, 4, 1),
        *tf.split(x, 2, 1),
        *tf.unstack(x),
        *tf.unstack(x),
        *tf.math.top_k(x, 2),
        *tf.math.top_k(x, 3),
        *tf.split(x, [1, 3], 1),
        *tf.split(x, [3, 1], 1),
    ],
    "attributes": lambda x, n: [
        tf.matmul(x, x, transpose_a=True),
        tf.matmul(x, x, transpose_b=True),
        tf.reduce_sum(x, 1),
        tf.reduce_sum(x, 1, keepdims=True),
        tf.reduce_sum(x, [0, 1]),
        tf.nn.leaky_relu(x, 0.0),
        1 / raw.LeakyRelu(features=-abs(x), alpha=-0.0),
        1 / raw.LeakyRelu(features=-abs(x), alpha=0.0),
        tf.cast(x, "int32"),
        tf.cast(x, tf.float64),
        tf.cast(n, "float64"),
    ],
    "types": lambda x, n: [
        x + 1,
        n + 1,
        x * 2.5,
        tf.cast(x, "float64") + 1,
        tf.range(3),
        tf.range(n),
        tf.range(3.0),
        tf.range(2, 9, 3),
        tf.fill([2, 2], 7),
        tf.fill([2], 7.0),
        tf.zeros([2]),
        tf.one_hot([1, 2], 4),
        tf.one_hot([n], 4),
        tf.gather(x, [2, 0]),
        tf.gather(x, n // 4, axis=1),
        tf.constant(3),
        tf.constant([3]),
        tf.constant(3, "int64"),
    ],
    "large": lambda x, n: [
        raw.Range(start=tf.constant(2**40, "int64"), limit=2**40 + 2, delta=1),
        tf.constant(2**40, "int64") + 1,
        tf.roll(x, 1, 0),
        tf.roll(x, [1], [1]),
    ],
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("device", [None, "/device:CPU:0"])
def test_ops_are_those_that_tensorflow_makes(name: str, device: str | None) -> None:
    def twice(x: Any, n: Any) -> Any:
        with tf.device(device):
            return [BODIES[name](x, n) for _ in range(2)]

    @tf.function(autograph=False)
    def quickly(x: Any, n: Any) -> Any:
        with quick_ops():
            return twice(x, n)

    given = tf.constant(X), tf.constant(12)
    slowly, quick = (
        tf.function(twice, autograph=False),
        quickly.get_concrete_function(*given),
    )
    results = (tf.nest.flatten(f(*given)) for f in (slowly, quick))
    for want, got in zip(*results, strict=True):
        assert want.dtype == got.dtype and want.shape == got.shape
        np.testing.assert_array_equal(want, got)
    want, got = (
        _counted(f.graph) for f in (slowly.get_concrete_function(*given), quick)
    )
    assert {k: n for k, n in want.items() if "Const" not in k} == {
        k: n for k, n in got.items() if "Const" not in k
    }
    assert sum(n for k, n in got.items() if "Const" in k) < sum(
        n for k, n in want.items() if "Const" in k
    )


def _counted(graph: Any) -> dict[str, int]:
    """Returns how often there is each kind of op, with its attributes, device and
    output shapes.
    """
    found: dict[str, int] = {}
    for op in graph.get_operations():
        attrs = sorted(
            (k, str(v)) for k, v in op.node_def.attr.items() if op.type != "Const"
        )
        key = str((op.type, op.device, attrs, [str(y.shape) for y in op.outputs]))
        found[key] = found.get(key, 0) + 1
    return found


CONTEXTS: dict[str, list[Any]] = {
    "one in another": ["/job:localhost", "/device:CPU:0"],
    "none ends them": ["/device:CPU:0", None, "/task:0"],
    "a spec": [tf.DeviceSpec(job="localhost"), "CPU:0"],
    "a function": [
        "/task:0",
        lambda op: "/device:CPU:0" if op.type == "AddV2" else "/job:worker",
    ],
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_devices_are_those_that_tensorflow_gives(name: str) -> None:
    def devices(quickly: bool) -> list[Any]:
        def body(x: Any) -> Any:
            with (
                quick_ops() if quickly else contextlib.nullcontext(),
                contextlib.ExitStack() as around,
            ):
                for context in CONTEXTS[name]:
                    device = tf.compat.v1.device if callable(context) else tf.device
                    around.enter_context(device(context))
                y = x + x
                with tf.control_dependencies([y]):
                    return tf.abs(tf.matmul(x, y))

        graph = (
            tf.function(body, autograph=False)
            .get_concrete_function(tf.TensorSpec([2, 2]))
            .graph
        )
        return [
            (op.type, op.device, len(op.control_inputs))
            for op in graph.get_operations()
        ]

    assert devices(True) == devices(False)


def test_a_wrong_op_is_refused_as_always() -> None:
    def wrong(x: Any) -> Any:
        with quick_ops():
            tf.matmul(x, x, transpose_a=True)
            return tf.matmul(x, x)

    with pytest.raises(ValueError, match="Dimensions must be equal"):
        tf.function(wrong, autograph=False)(X)

    def mixed(x: Any) -> Any:
        with quick_ops():
            x = x + x
            return raw.AddV2(x=x, y=tf.constant(1))

    with pytest.raises(TypeError, match="does not match type"):
        tf.function(mixed, autograph=False)(X)


def test_the_helper_goes_when_the_last_graph_is_traced() -> None:
    own = op_def_library._apply_op_helper
    inside, done = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        with quick_ops():
            inside.set()
            assert done.wait(60)
            return tf.reshape(x, [6, 2])

    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(tf.function(slow, autograph=False)(X))
    )
    thread.start()
    assert inside.wait(60) and op_def_library._apply_op_helper is not own

    def nested(x: Any) -> Any:
        with quick_ops():
            return tf.reshape(x, [2, 6])

    assert tf.function(nested, autograph=False)(X).shape == [2, 6]
    plain = tf.function(
        lambda x: tf.reshape(x, [12]) + 1, autograph=False
    )  # one of the user's
    np.testing.assert_array_equal(plain(X), X.reshape(12) + 1)
    assert op_def_library._apply_op_helper is not own
    done.set()
    thread.join()
    assert results[0].shape == [6, 2] and op_def_library._apply_op_helper is own
