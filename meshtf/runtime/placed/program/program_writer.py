"""Writes a program as one FunctionDef, node by node.

    program = ProgramWriter()
    x = program.argument(tf.TensorSpec([4]))
    (y,) = program.call(callee, [x], "/device:CPU:1")
    definition = program.finish([y])

A node costs some 20 microseconds so; an op that TensorFlow traces costs ten times as
much, and a program on many devices has thousands. What is not worth a form of its own,
such as a loop, is traced by TensorFlow and its nodes are taken over (`section`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.runtime.placed.program.function_calls import GraphFunction
from meshtf.runtime.placed.program.program_proto import (
    SectionNodes,
    function_def,
    share_constants,
)
from meshtf.runtime.placed.program.resource_order import ResourceOrder
from meshtf.runtime.placed.program.symbolic_tensor import (
    SymbolicList,
    SymbolicTensor,
)
from meshtf.runtime.storage.sharding import distinct

_NUMBERS = itertools.count()
_SHAPES = "_output_shapes"  # where TensorFlow finds what it cannot work out


def _shapes(shape: tf.TensorShape) -> Any:
    proto = tf.compat.v1.AttrValue
    return proto(list=proto.ListValue(shape=[shape.as_proto()]))


class _Waiting:
    """What nodes wait for in a block, and which were made in it."""

    def __init__(self, controls: Sequence[str]) -> None:
        self.controls = controls
        self.nodes: set[str] = set()


class ProgramWriter:
    """A program that is being written.

    Attributes:
      captured: tensors from outside, in the order of the last arguments.
      functions: concrete functions that nodes refer to; they must be kept as long as
        the program runs.
    """

    def __init__(self) -> None:
        self.definition = function_def(f"meshtf_program_{next(_NUMBERS)}")
        self.captured: list[Any] = []
        self.functions: list[Any] = []
        self._captures: dict[int, SymbolicTensor] = {}
        self._constants: dict[Any, SymbolicTensor] = {}
        self._order = ResourceOrder()
        self._host_effects: list[str] = []
        self._must_run: dict[str, None] = {}
        self._waiting: list[_Waiting] = []
        self._scope = ""
        self._names: dict[str, int] = {}

    def argument(self, spec: tf.TensorSpec) -> SymbolicTensor:
        """Adds an argument; before anything is captured."""
        assert not self.captured
        return self._input(f"argument_{len(self._inputs)}", spec.shape, spec.dtype)

    def capture(self, x: Any) -> SymbolicTensor:
        """Returns a tensor from outside as an argument, one for each such tensor."""
        if isinstance(x, SymbolicTensor):
            return x
        if id(x) not in self._captures:
            name = f"captured_{len(self.captured)}"
            self._captures[id(x)] = self._input(name, x.shape, x.dtype)
            self.captured.append(x)
        return self._captures[id(x)]

    @property
    def _inputs(self) -> Any:
        return self.definition.signature.input_arg

    def _input(
        self, name: str, shape: tf.TensorShape, dtype: tf.DType
    ) -> SymbolicTensor:
        attributes = self.definition.arg_attr[len(self._inputs)]
        attributes.attr[_SHAPES].CopyFrom(_shapes(shape))
        argument = self._inputs.add()
        argument.name = name
        argument.type = dtype.as_datatype_enum
        return SymbolicTensor(self, name, shape, dtype)

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Has the names of nodes that are made within begin with a name, which ends
        with "/".
        """
        outer = self._scope
        self._scope = name
        try:
            yield
        finally:
            self._scope = outer

    @contextlib.contextmanager
    def after(self, tensors: Sequence[SymbolicTensor]) -> Iterator[None]:
        """Has what is made within wait until tensors are there."""
        controls = list(dict.fromkeys(f"^{x.node}" for x in tensors))
        self._waiting.append(_Waiting(controls))
        try:
            yield
        finally:
            self._waiting.pop()

    def node(
        self,
        kind: str,
        inputs: Sequence[SymbolicTensor],
        attributes: Mapping[str, Any],
        outputs: Sequence[tuple[tf.TensorShape, tf.DType]],
        device: str,
        output_name: str = "output",
        controls: Sequence[str] = (),
    ) -> list[SymbolicTensor]:
        """Adds a node and returns its outputs.

        Args:
          kind: of the op, such as "Identity".
          inputs: its tensors.
          attributes: integers, data types, or AttrValues.
          outputs: their shapes and data types; the op has one output, or one list.
          device: TensorFlow's name; "" if TensorFlow may choose.
          output_name: how the op's definition calls the output.
          controls: names of nodes that it is to wait for.
        """
        node = self.definition.node_def.add()
        node.name = self._new_name(kind)
        node.op = kind
        node.device = device
        node.input.extend(x.name for x in inputs)
        waits = self._controls(node.name, [x.node for x in inputs])
        node.input.extend(dict.fromkeys([*(f"^{name}" for name in controls), *waits]))
        for name, value in attributes.items():
            if isinstance(value, int):
                node.attr[name].i = value
            elif isinstance(value, tf.DType):
                node.attr[name].type = value.as_datatype_enum
            else:
                node.attr[name].CopyFrom(value)
        return [
            SymbolicTensor(self, f"{node.name}:{output_name}:{k}", shape, dtype)
            for k, (shape, dtype) in enumerate(outputs)
        ]

    def constant(
        self, value: Any, dtype: tf.DType = tf.int32, device: str = ""
    ) -> SymbolicTensor:
        """Returns a number or an array as a tensor, one node for equal ones of a
        device.
        """
        array = np.asarray(value, dtype.as_numpy_dtype)
        key = array.tobytes(), array.shape, dtype, device
        if key not in self._constants:
            proto = tf.make_tensor_proto(array, dtype)
            node = self.definition.node_def.add()
            node.name = self._new_name("Const")
            node.op = "Const"
            node.device = device
            node.attr["value"].tensor.CopyFrom(proto)
            node.attr["dtype"].type = dtype.as_datatype_enum
            name = f"{node.name}:output:0"
            shape = tf.TensorShape(array.shape)
            self._constants[key] = SymbolicTensor(self, name, shape, dtype)
        return self._constants[key]

    def call(
        self, callee: GraphFunction, args: Sequence[Any], device: str
    ) -> list[SymbolicTensor]:
        """Adds a call of a traced function; what it does to variables keeps its order.

        Args:
          callee: the function.
          args: its arguments; tensors from outside are captured.
          device: where it runs.
        """
        inputs = [self.capture(x) for x in args]
        resources = [x.name for x in inputs if x.dtype == tf.resource]
        controls = self._order.before(resources, callee.writes)
        branch = [self.constant(0, device=device)] if callee.as_branch else []
        outputs = self.node(
            callee.kind,
            [*branch, *inputs],
            callee.attributes,
            list(zip(callee.shapes, callee.dtypes)),
            device,
            controls=controls,
        )
        if callee.stateful:
            name = self.definition.node_def[-1].name
            self._order.add([name], resources, callee.writes)
            if callee.writes:
                self._must_run[name] = None
        return outputs

    def read_variable(
        self, handle: Any, shape: tf.TensorShape, dtype: tf.DType, device: str
    ) -> SymbolicTensor:
        """Returns what a variable holds."""
        resource = self.capture(handle)
        (value,) = self.node(
            "ReadVariableOp",
            [resource],
            {"dtype": dtype, _SHAPES: _shapes(shape)},
            [(shape, dtype)],
            device,
            "value",
            self._order.before([resource.name], False),
        )
        self._order.add([value.node], [resource.name], False)
        return value

    def section(self, body: Callable[[list[Any]], list[Any]], inputs: list[Any]) -> Any:
        """Adds what TensorFlow traces, and returns its results.

        Args:
          body: of tensors and tf.TensorArrays in place of the inputs; returns distinct
            ones.
          inputs: distinct tensors and lists of this program, or from outside.
        """
        inputs = [x if isinstance(x, SymbolicList) else self.capture(x) for x in inputs]
        returned: list[int | None] = []  # of each result: which input it is
        specs: list[Any] = []  # of each other result

        def traced(*flows: Any) -> list[Any]:
            # TensorFlow takes no list as an argument, but the tensor that it is.
            args = [
                tf.nest.pack_sequence_as(x.spec, [flow], expand_composites=True)
                for x, flow in zip(inputs, flows)
            ]
            results = body(args)
            numbers = {id(x): k for k, x in enumerate(args)}
            returned.extend(numbers.get(id(y)) for y in results)
            made = [y for y in results if id(y) not in numbers]
            specs.extend(map(tf.type_spec_from_value, made))
            return made

        tensors = [x.flow if isinstance(x, SymbolicList) else x for x in inputs]
        function = tf.function(traced, autograph=False).get_concrete_function(
            *(x.spec for x in tensors)
        )
        self.functions.append(function)
        captured = [self.capture(x) for x in function.captured_inputs]
        names = self._take_over(function.function_def, [*tensors, *captured])
        made = iter(map(self._result, names, function.outputs, specs))
        return [next(made) if k is None else inputs[k] for k in returned]

    def _result(self, name: str, y: Any, spec: Any) -> SymbolicTensor | SymbolicList:
        """Returns a result of a section."""
        tensor = SymbolicTensor(self, name, y.shape, y.dtype)
        is_list = isinstance(spec, tf.TensorArraySpec)
        return SymbolicList(tensor, spec) if is_list else tensor

    def _take_over(
        self, definition: Any, arguments: Sequence[SymbolicTensor]
    ) -> list[str]:
        """Adds the nodes of a FunctionDef and returns the names of its results."""
        names = [x.name for x in arguments]
        nodes = SectionNodes(definition, names, self._new_name("section"))
        for resource in nodes.resources:
            writes = nodes.writes(resource)
            nodes.wait(nodes.users(resource), self._order.before([resource], writes))
        if nodes.host_effects:
            nodes.wait(nodes.host_effects, self._host_effects)
            self._host_effects = nodes.host_effects
        for resource in nodes.resources:
            done = [*nodes.users(resource), *nodes.must_run]
            self._order.add(done, [resource], nodes.writes(resource))
        self._must_run.update(dict.fromkeys(nodes.must_run))
        for node in nodes.nodes:
            inputs = [x.partition(":")[0] for x in node.input if x[0] != "^"]
            if node.op != "Const":
                node.input.extend(self._controls(node.name, inputs))
        self.definition.node_def.extend(nodes.nodes)
        return nodes.results

    def finish(self, results: Sequence[SymbolicTensor], devices: Sequence[str]) -> Any:
        """Returns the FunctionDef.

        Args:
          results: what the program returns.
          devices: of each result, where it lies if it is an argument.
        """
        signature = self.definition.signature
        signature.is_stateful = True
        for k, (x, device) in enumerate(zip(results, devices, strict=True)):
            if x.is_argument:  # a FunctionDef returns what nodes make
                (x,) = self.node(
                    "Identity", [x], {"T": x.dtype}, [(x.shape, x.dtype)], device
                )
            output = signature.output_arg.add()
            output.name = f"result_{k}"
            output.type = x.dtype.as_datatype_enum
            self.definition.ret[output.name] = x.name
        for k, name in enumerate(self._must_run):
            signature.control_output.append(f"must_run_{k}")
            self.definition.control_ret[f"must_run_{k}"] = name
        share_constants(self.definition)
        return self.definition

    def _controls(self, name: str, inputs: Sequence[str]) -> list[str]:
        """Returns what a new node waits for; not where one of its inputs does."""
        controls: dict[str, None] = {}
        for waiting in self._waiting:
            if not any(x in waiting.nodes for x in inputs):
                controls.update(dict.fromkeys(waiting.controls))
            waiting.nodes.add(name)
        return list(controls)

    def _new_name(self, kind: str) -> str:
        name = self._scope + kind
        number = self._names.get(name, 0)
        self._names[name] = number + 1
        return f"{name}_{number}" if number else name


def call_on(
    callee: GraphFunction,
    args: Sequence[Any],
    device: str,
    program: ProgramWriter | None,
) -> list[Any]:
    """Returns the results of a call on a device, in a program that is written, or that
    TensorFlow traces if it is None.
    """
    if program is not None:
        return program.call(callee, args, device)
    with tf.device(device):
        return callee(args)


def in_section(program: ProgramWriter, run: Callable[[Any], Any], given: Any) -> Any:
    """Returns what a function makes that TensorFlow traces as a part of a program.

    Args:
      program: the program.
      run: of a structure of tensors, returns another one; one tensor may stand at
        several places of either.
      given: the structure, of the program's tensors, with None where there is none.
    """
    inputs, places = distinct(tf.nest.flatten(given))
    structure: list[Any] = []  # of what it makes, with the number of each tensor

    def body(tensors: list[Any]) -> list[Any]:
        taken = [None if k < 0 else tensors[k] for k in places]
        made = run(tf.nest.pack_sequence_as(given, taken))
        outputs, numbers = distinct(tf.nest.flatten(made))
        structure.append(tf.nest.pack_sequence_as(made, numbers))
        return outputs

    outputs = program.section(body, inputs)
    return tf.nest.map_structure(lambda k: None if k < 0 else outputs[k], structure[0])
