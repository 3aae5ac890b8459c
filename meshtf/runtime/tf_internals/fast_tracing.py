"""Ops of a graph that is being traced, made in little time, and few of them.

    with quick_ops():              # while a tf.function is traced
      y = tf.matmul(a, b)          # as always
      op = add_op("MatMul", [a, b], known("MatMul", attrs))        # all attributes known

- Stack traces are left out: TensorFlow takes them apart again for each device that runs
  a function, and they tell of meshtf's code alone; the user's was recorded before.
- Equal constants are one op; they were a quarter of all.
- TensorFlow works out the attributes of each op in Python. Here they are kept for as
  long as graphs are traced, for ops of one kind with inputs of the same types. Where
  anything else than tensors, whole numbers and lists of them is given, TensorFlow makes
  the op as always.
- `tf.device` makes a function each time, and asks what its arguments are called.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import (
    op_callbacks,
    op_def_library,
    op_def_registry,
    ops,
)

from meshtf.runtime.tf_internals.graph_node_maker import Instead, Known, Maker, known

Made = tuple[
    list[Any], bool, Any, list[Any]
]  # structure, stateful, op, outputs: TensorFlow's


@contextlib.contextmanager
def quick_ops(instead: Instead | None = None) -> Iterator[None]:
    """Lets ops of the graph that is being traced be made in little time, or others
    instead of them.

    Args:
      instead: see `op_maker.Maker`.
    """
    graph = tf.compat.v1.get_default_graph()
    maker = Maker(graph, instead)
    graph._create_op_internal, graph.capture = maker.make, maker.capture
    try:
        with _HELPER.in_force():
            yield
    finally:
        del graph._create_op_internal, graph.capture


class _Recipe(NamedTuple):
    """How ops of one kind with inputs of the same types and equal attributes
    are made.
    """

    dtypes: list[tf.DType]  # of the inputs
    same: Known
    structure: list[Any]  # of the outputs
    stateful: bool


class _Helper:
    """What stands for TensorFlow's helper that makes ops, and for `tf.device`, in
    graphs.
    """

    def __init__(self) -> None:
        self.graphs, self.lock = 0, threading.Lock()
        self.recipes: dict[Any, _Recipe] = {}
        self.slowly: Any = None  # TensorFlow's own
        self.slow_device: Any = None

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Stands for TensorFlow's until all graphs are traced, of whatever threads."""
        with self.lock:
            self.graphs += 1
            if self.graphs == 1:
                self.slowly, op_def_library._apply_op_helper = (
                    op_def_library._apply_op_helper,
                    self.apply,
                )
                self.slow_device, ops.device = ops.device, self.device
        try:
            yield
        finally:
            with self.lock:
                self.graphs -= 1
                if not self.graphs:
                    op_def_library._apply_op_helper, ops.device = (
                        self.slowly,
                        self.slow_device,
                    )
                    self.recipes.clear()

    def device(self, name: Any) -> Any:
        """Returns a context in which ops of the default graph are made on a device."""
        maker = _maker()
        if maker is None or not isinstance(name, str):
            return self.slow_device(name)
        return _on(maker.graph._device_function_stack, name)

    def apply(
        self, op_type_name: str, name: str | None = None, **keywords: Any
    ) -> Made:
        """Returns an op of the default graph, and what TensorFlow's helper tells
        of it.
        """
        maker = _maker()
        given = None
        if maker is not None and not op_callbacks.should_invoke_op_callbacks():
            given = _given(op_type_name, keywords)
        if given is None:
            return self.slowly(op_type_name, name=name, **keywords)
        assert maker is not None
        key, xs = given
        if key not in self.recipes:
            made = self.slowly(op_type_name, name=name, **keywords)
            dtypes, attrs = maker.last
            self.recipes[key] = _Recipe(dtypes, known(op_type_name, attrs), *made[:2])
            return made
        dtypes, same, structure, stateful = self.recipes[key]
        tensors = [
            x if isinstance(x, tf.Tensor) else maker.constant(x, dtype)
            for x, dtype in zip(xs, dtypes, strict=True)
        ]
        op = _added(maker, op_type_name, tensors, same, name)
        return list(structure), stateful, op, op.outputs


@contextlib.contextmanager
def _on(stack: Any, device: str) -> Iterator[None]:
    stack.push_obj(_device(device))
    try:
        yield
    finally:
        stack.pop_obj()


@functools.cache
def _device(name: str) -> Any:
    return ops._UserDeviceSpec(name)


def _maker() -> Maker | None:
    """Returns what makes the ops of the default graph, if that is here."""
    maker = getattr(
        tf.compat.v1.get_default_graph()._create_op_internal, "__self__", None
    )
    return maker if isinstance(maker, Maker) else None


_HELPER = _Helper()


def _given(kind: str, keywords: Mapping[str, Any]) -> tuple[Any, list[Any]] | None:
    """Returns what must be equal for ops to be made alike, and the inputs; None: not
    known.
    """
    xs: list[Any] = []
    key: list[Any] = [kind]
    inputs = _inputs(kind)
    for name, is_list in inputs.items():
        x = keywords.get(name)
        some: list[Any] = x if is_list and isinstance(x, list) else [x]
        if all(isinstance(y, tf.Tensor) for y in some):
            key.append(tuple(y.dtype for y in some))
        elif _whole(x) and not is_list:
            key.append(int)
        else:
            return None
        xs += some
    for name, value in keywords.items():
        if name not in inputs:
            value = tuple(value) if isinstance(value, list) else value
            key.append(
                (name, type(value), str(value) if isinstance(value, float) else value)
            )  # -0.0
    try:
        hash(tuple(key))
    except TypeError:
        return None
    return tuple(key), xs


def _whole(value: Any) -> bool:
    """Whether something is a whole number of 32 bits or a list of some."""
    numbers = value if isinstance(value, list) and value else [value]
    return all(type(x) is int and -(2**31) <= x < 2**31 for x in numbers)


@functools.cache
def _inputs(kind: str) -> dict[str, bool]:
    """Returns for each input of an op whether it is a list; of references, of
    TensorFlow 1, none.
    """
    inputs = op_def_registry.get(kind).input_arg
    if any(i.is_ref for i in inputs):
        return {}
    return {i.name: bool(i.number_attr or i.type_list_attr) for i in inputs}


def add_op(kind: str, inputs: Sequence[Any], same: Known) -> Any:
    """Adds an op to the graph that is being traced, and returns it.

    Args:
      kind: its type.
      inputs: tensors, those of lists one after the other.
      same: what its attributes are.
    """
    return _added(_maker(), kind, inputs, same)


def _added(
    maker: Maker | None,
    kind: str,
    xs: Sequence[Any],
    same: Known,
    name: str | None = None,
) -> Any:
    graph = tf.compat.v1.get_default_graph()
    if maker is not None and graph._get_control_flow_context() is None:
        return maker.quickly(kind, xs, same, name)
    return graph._create_op_internal(kind, list(xs), None, name=name, attrs=same.attrs)


def whole_number(value: int) -> Any:
    """Returns a scalar int32 of the graph that is being traced."""
    maker = _maker()
    return (
        tf.constant(value, tf.int32)
        if maker is None
        else maker.constant(value, tf.int32)
    )
