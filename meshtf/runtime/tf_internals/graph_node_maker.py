"""What makes ops of a graph that is being traced: quickly, and of equal constants one.

    maker = Maker(graph)
    op = maker.quickly("MatMul", [a, b], known("MatMul", attrs))

It uses private parts of TensorFlow, on behalf of `quick_ops`.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session as c_api
from tensorflow.python.framework import op_def_registry, ops


class Known(NamedTuple):
    """What ops of one kind with equal attributes share."""

    attrs: dict[str, Any]  # all of them, as TensorFlow's `AttrValue`
    serialized: list[tuple[str, bytes]]
    counts: list[int | None]  # of tensors for each input; None: one, and no list


Instead = Callable[[str, Known], tuple[str, Known]]


def known(kind: str, attrs: dict[str, Any]) -> Known:
    """Returns what ops of a kind with these attributes share."""
    counts: list[int | None] = []
    for taken in op_def_registry.get(kind).input_arg:
        if taken.number_attr:
            counts.append(attrs[taken.number_attr].i)
        else:
            counts.append(
                len(attrs[taken.type_list_attr].list.type)
                if taken.type_list_attr
                else None
            )
    return Known(
        attrs,
        [(name, value.SerializeToString()) for name, value in attrs.items()],
        counts,
    )


class Maker:
    """What makes the ops of a graph.

    Args:
      graph: the graph.
      instead: of a kind and what its attributes are, returns those of the op that is
        made.
    """

    def __init__(self, graph: Any, instead: Instead | None = None) -> None:
        self.graph, self.slowly, self.taken = (
            graph,
            graph._create_op_internal,
            graph.capture,
        )
        self.instead = instead or (lambda *asked: asked)
        self.constants: dict[Any, Any] = {}
        self.devices: dict[Any, str | None] = {}  # by contexts around
        self.capturing = False
        self.last: tuple[Any, Any] = (
            None,
            None,
        )  # types of inputs, and attributes, of the last op

    def capture(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns a tensor of the graph for one of outside: maybe a constant that is an
        input.
        """
        self.capturing = True
        try:
            return self.taken(x, *args, **kwargs)
        finally:
            self.capturing = False

    def make(
        self,
        op_type: str,
        inputs: Any,
        dtypes: Any = None,
        input_types: Any = None,
        name: str | None = None,
        attrs: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Returns an op, of constants one made before that is equal; arguments are
        TensorFlow's.
        """

        def new() -> Any:
            return self._new(
                op_type, inputs, dtypes, input_types, name, attrs, *args, **kwargs
            )

        if op_type == "Const" and not self.capturing:
            return self._once(attrs["value"].SerializeToString(), new)
        op = new()
        self.last = input_types, attrs
        return op

    def constant(self, value: Any, dtype: tf.DType) -> Any:
        """Returns a tensor of a whole number or a list of them."""
        key = (tuple(value) if isinstance(value, list) else value), dtype
        return self._once(key, lambda: tf.constant(value, dtype))

    def _once(self, key: Any, new: Callable[[], Any]) -> Any:
        key = (
            tuple(
                spec.display_name
                for spec in self.graph._device_function_stack.peek_objs()
            ),
            key,
        )
        if key not in self.constants:
            with self.graph.control_dependencies(
                None
            ):  # waiting for nothing, so that all may have it
                self.constants[key] = new()
        return self.constants[key]

    def _new(
        self,
        op_type: str,
        inputs: Any,
        dtypes: Any = None,
        input_types: Any = None,
        name: str | None = None,
        attrs: Any = None,
        op_def: Any = None,
        compute_device: bool = True,
    ) -> Any:
        if self.graph._get_control_flow_context() is not None:
            return self.slowly(
                op_type,
                inputs,
                dtypes,
                input_types,
                name,
                attrs,
                op_def,
                compute_device,
            )
        return self.quickly(
            op_type, inputs, known(op_type, attrs or {}), name, compute_device
        )

    def quickly(
        self,
        kind: str,
        inputs: Sequence[Any],
        same: Known,
        name: str | None = None,
        compute_device: bool = True,
    ) -> Any:
        """Returns an op of known attributes, which is no constant; not inside of
        TensorFlow 1's loops.

        Raises:
          ValueError: TensorFlow refuses it.
        """
        graph = self.graph
        kind, same = self.instead(kind, same)
        xs = [
            x if getattr(x, "graph", None) is graph else graph.capture(x)
            for x in inputs
        ]
        name = (
            name[:-1] if name and name[-1] == "/" else graph.unique_name(name or kind)
        )
        after: Sequence[Any] = ()
        if graph._control_dependencies_stack:
            after = graph._control_dependencies_for_inputs({x.op for x in xs})
        device = self._device() if compute_device else None
        with graph._mutation_lock():
            with graph._c_graph.get() as c_graph:
                made = c_api.TF_NewOperation(c_graph, kind, name)
            if device:
                c_api.TF_SetDevice(made, device)
            rest = iter(xs)
            for count in same.counts:
                if count is None:
                    c_api.TF_AddInput(made, next(rest)._as_tf_output())
                else:
                    c_api.TF_AddInputList(
                        made, [x._as_tf_output() for x in itertools.islice(rest, count)]
                    )
            for op in after:
                c_api.TF_AddControlInput(made, op._c_op)
            for attr, value in same.serialized:
                c_api.TF_SetAttrValueProto(made, attr, value)
            op = ops.Operation._from_c_op(_finished(made), graph)
            if device is None:
                graph._create_op_helper(op, compute_device=compute_device)
            else:
                graph._record_op_seen_by_control_dependencies(op)
        return op

    def _device(self) -> str | None:
        """Returns the device of ops that are made now; None: TensorFlow has more to
        settle for them.
        """
        graph = self.graph
        if (
            graph._colocation_stack
            or graph._attr_scope_map
            or graph._op_to_kernel_label_map
            or graph._gradient_override_map
            or graph._gradient_function_map
            or graph._container
        ):
            return None
        around = tuple(graph._device_function_stack.peek_objs())
        if around not in self.devices:
            self.devices[around] = _merged(around)
        return self.devices[around]


def _merged(specs: Sequence[Any]) -> str | None:
    """Returns the device that contexts, innermost first, give all ops; None: it depends
    on the op.
    """
    op = types.SimpleNamespace(device="")
    for spec in specs:
        if spec.is_null_merge:
            continue
        if not spec.fast_string_merge:
            return None
        op.device = spec.string_merge(op)
    return str(op.device)


def _finished(made: Any) -> Any:
    try:
        return c_api.TF_FinishOperation(made)
    except tf.errors.InvalidArgumentError as error:  # TensorFlow tells of these so, too
        raise ValueError(error.message) from error
