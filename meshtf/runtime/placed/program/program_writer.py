"""Writes a program as one FunctionDef (TensorFlow's protocol buffer of a function), node
by node.

    program = ProgramWriter()
    x = program.argument(tf.TensorSpec([4]))
    (y,) = program.call(callee, [x], "/device:CPU:1")
    definition = program.finish([y], ["/device:CPU:1"])

Writing a node takes about 20 microseconds; tracing an op takes TensorFlow ten times as
long, and a program on many devices has thousands of nodes. A construct for which the
writer has no method, such as a loop, is traced by TensorFlow, and the traced nodes are
inserted into the program (`section`).
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

_program_indices = itertools.count()  # for unique names
_SHAPES = "_output_shapes"  # the attribute with shapes that TensorFlow cannot infer


def _shapes(shape: tf.TensorShape) -> Any:
    """Returns the attribute value for an op with one output of this shape."""
    shapes = tf.compat.v1.AttrValue.ListValue(shape=[shape.as_proto()])
    return tf.compat.v1.AttrValue(list=shapes)


class _ControlBlock:
    """A `with program.after(...)` block.

    Attributes:
      controls: the control inputs of the nodes of the block.
      nodes: the names of the nodes that were added in the block.
    """

    def __init__(self, controls: Sequence[str]) -> None:
        self.controls = controls
        self.nodes: set[str] = set()


class ProgramWriter:
    """A program that is being written.

    Attributes:
      definition: the FunctionDef, to which nodes are added.
      captured: the tensors of other graphs that the program uses; they are its last
        arguments.
      functions: the concrete functions that nodes call; they must exist as long as the
        program.
    """

    def __init__(self) -> None:
        self.definition = function_def(f"meshtf_program_{next(_program_indices)}")
        self.captured: list[Any] = []
        self.functions: list[Any] = []
        self._captures: dict[int, SymbolicTensor] = {}  # by the id of the tensor
        self._constants: dict[Any, SymbolicTensor] = {}
        self._order = ResourceOrder()  # of reads and writes of variables
        self._host_effects: list[str] = []  # nodes of the last section that had some
        self._must_run: dict[str, None] = {}  # names of nodes, as keys
        self._control_blocks: list[_ControlBlock] = []  # the enclosing `after` blocks
        self._scope = ""
        self._name_counts: dict[str, int] = {}

    def argument(self, spec: tf.TensorSpec) -> SymbolicTensor:
        """Adds an argument. All arguments must be added before any tensor is captured."""
        assert not self.captured
        return self._input(f"argument_{len(self._inputs)}", spec.shape, spec.dtype)

    def capture(self, x: Any) -> SymbolicTensor:
        """Returns the argument of the program whose value is x, a tensor of another graph;
        the same argument at each call. A symbolic tensor is returned unchanged.
        """
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
        self,
        name: str,
        shape: tf.TensorShape,
        dtype: tf.DType,
    ) -> SymbolicTensor:
        """Adds an argument to the FunctionDef."""
        attributes = self.definition.arg_attr[len(self._inputs)]
        attributes.attr[_SHAPES].CopyFrom(_shapes(shape))
        argument = self._inputs.add()
        argument.name = name
        argument.type = dtype.as_datatype_enum
        return SymbolicTensor(self, name, shape, dtype)

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Starts the names of new nodes with `name`, which ends with "/", in a `with`
        block.
        """
        outer = self._scope
        self._scope = name
        try:
            yield
        finally:
            self._scope = outer

    def inner_scope(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Appends `name`, which ends with "/", to the current scope, in a `with` block."""
        return self.scope(self._scope + name)

    @contextlib.contextmanager
    def after(self, tensors: Sequence[SymbolicTensor]) -> Iterator[None]:
        """Makes new nodes run only after `tensors` are computed, in a `with` block."""
        controls = list(dict.fromkeys(f"^{x.node}" for x in tensors))
        self._control_blocks.append(_ControlBlock(controls))
        try:
            yield
        finally:
            self._control_blocks.pop()

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
          kind: the type of the op, such as "Identity".
          inputs: the input tensors.
          attributes: {name: integer, data type or AttrValue}.
          outputs: the shape and data type of each output; the op has one output, or one
            list of outputs.
          device: TensorFlow's name of the device; "": TensorFlow chooses a device.
          output_name: the name of the output in the op's definition.
          controls: the names of nodes after which the new node runs.
        """
        node_def = self.definition.node_def.add()
        node_def.name = self._new_name(kind)
        node_def.op = kind
        node_def.device = device
        node_def.input.extend(x.name for x in inputs)
        block_controls = self._controls(node_def.name, [x.node for x in inputs])
        extra_controls = [f"^{name}" for name in controls]
        node_def.input.extend(dict.fromkeys([*extra_controls, *block_controls]))
        for name, value in attributes.items():
            if isinstance(value, int):
                node_def.attr[name].i = value
            elif isinstance(value, tf.DType):
                node_def.attr[name].type = value.as_datatype_enum
            else:
                node_def.attr[name].CopyFrom(value)
        return [
            SymbolicTensor(self, f"{node_def.name}:{output_name}:{k}", shape, dtype)
            for k, (shape, dtype) in enumerate(outputs)
        ]

    def constant(
        self, value: Any, dtype: tf.DType | str = "int32", device: str = ""
    ) -> SymbolicTensor:
        """Returns a number or an array as a tensor. Equal ones on a device share a node."""
        dtype = tf.as_dtype(dtype)
        array = np.asarray(value, dtype.as_numpy_dtype)
        key = array.tobytes(), array.shape, dtype, device
        if key not in self._constants:
            proto = tf.make_tensor_proto(array, dtype)
            node_def = self.definition.node_def.add()
            node_def.name = self._new_name("Const")
            node_def.op = "Const"
            node_def.device = device
            node_def.attr["value"].tensor.CopyFrom(proto)
            node_def.attr["dtype"].type = dtype.as_datatype_enum
            name = f"{node_def.name}:output:0"
            shape = tf.TensorShape(array.shape)
            self._constants[key] = SymbolicTensor(self, name, shape, dtype)
        return self._constants[key]

    def call(
        self,
        callee: GraphFunction,
        args: Sequence[Any],
        device: str,
    ) -> list[SymbolicTensor]:
        """Adds a call of a traced function. Reads and writes of variables keep the order
        of the calls.

        Args:
          callee: the function.
          args: the arguments; tensors of other graphs are captured.
          device: the device that runs the function.
        """
        inputs = [self.capture(x) for x in args]
        resources = [x.name for x in inputs if x.dtype == tf.resource]
        controls = self._order.before(resources, writes=callee.writes)
        if callee.as_branch:
            # The first input of a `Case` op is the index of the branch to run.
            inputs = [self.constant(0, device=device), *inputs]
        outputs = self.node(
            callee.kind,
            inputs,
            attributes=callee.attributes,
            outputs=list(zip(callee.shapes, callee.dtypes)),
            device=device,
            controls=controls,
        )
        if callee.stateful:
            name = self.definition.node_def[-1].name  # the call, added just now
            self._order.add([name], resources, writes=callee.writes)
            if callee.writes:
                self._must_run[name] = None
        return outputs

    def read_variable(
        self,
        handle: Any,
        shape: tf.TensorShape,
        dtype: tf.DType,
        device: str,
    ) -> SymbolicTensor:
        """Adds a read of a variable and returns its value."""
        resource = self.capture(handle)
        (value,) = self.node(
            "ReadVariableOp",
            [resource],
            attributes={"dtype": dtype, _SHAPES: _shapes(shape)},
            outputs=[(shape, dtype)],
            device=device,
            output_name="value",
            controls=self._order.before([resource.name], writes=False),
        )
        self._order.add([value.node], [resource.name], writes=False)
        return value

    def section(self, body: Callable[[list[Any]], list[Any]], inputs: list[Any]) -> Any:
        """Adds the nodes of a function that TensorFlow traces, and returns its results.

        Args:
          body: a function from a list of tensors and tf.TensorArrays, one for each input,
            to a list of distinct results.
          inputs: distinct tensors and lists of this program, or tensors of other graphs.
        """
        inputs = [x if isinstance(x, SymbolicList) else self.capture(x) for x in inputs]
        # Both lists are filled when `run` is traced. For each result: the index of the
        # input that it is, or None. For each result that is no input: its spec.
        input_indices: list[int | None] = []
        specs: list[Any] = []

        def run(*flows: Any) -> list[Any]:
            # TensorArrays cannot be arguments, only the flow tensors that represent them.
            args = [
                tf.nest.pack_sequence_as(x.spec, [flow], expand_composites=True)
                for x, flow in zip(inputs, flows)
            ]
            results = body(args)
            index_of = {id(x): k for k, x in enumerate(args)}
            input_indices.extend(index_of.get(id(y)) for y in results)
            outputs = [y for y in results if id(y) not in index_of]
            specs.extend(map(tf.type_spec_from_value, outputs))
            return outputs

        tensors = [x.flow if isinstance(x, SymbolicList) else x for x in inputs]
        tensor_specs = [x.spec for x in tensors]
        tf_function = tf.function(run, autograph=False)
        concrete_function = tf_function.get_concrete_function(*tensor_specs)
        self.functions.append(concrete_function)
        captured = [self.capture(x) for x in concrete_function.captured_inputs]
        names = self._insert(concrete_function.function_def, [*tensors, *captured])
        outputs = iter(map(self._result, names, concrete_function.outputs, specs))
        return [next(outputs) if k is None else inputs[k] for k in input_indices]

    def _result(
        self,
        name: str,
        y: Any,
        spec: Any,
    ) -> SymbolicTensor | SymbolicList:
        """Returns the output `y` of a section, which this program calls `name`."""
        tensor = SymbolicTensor(self, name, y.shape, y.dtype)
        if isinstance(spec, tf.TensorArraySpec):
            return SymbolicList(flow=tensor, spec=spec)
        return tensor

    def _insert(
        self, definition: Any, arguments: Sequence[SymbolicTensor]
    ) -> list[str]:
        """Inserts the nodes of a FunctionDef and returns the names of its results. Reads
        and writes of variables, and host effects such as prints, keep their order.
        """
        names = [x.name for x in arguments]
        section = SectionNodes(definition, names, prefix=self._new_name("section"))
        for resource in section.resources:
            controls = self._order.before([resource], writes=section.writes(resource))
            section.add_controls(section.users(resource), controls)
        if section.host_effects:
            section.add_controls(section.host_effects, self._host_effects)
            self._host_effects = section.host_effects
        for resource in section.resources:
            users = [*section.users(resource), *section.must_run]
            self._order.add(users, [resource], writes=section.writes(resource))
        self._must_run.update(dict.fromkeys(section.must_run))
        for node in section.nodes:
            if node.op == "Const":  # has no inputs to wait for
                continue
            data_inputs = [name for name in node.input if not name.startswith("^")]
            input_nodes = [name.partition(":")[0] for name in data_inputs]
            node.input.extend(self._controls(node.name, input_nodes))
        self.definition.node_def.extend(section.nodes)
        return section.results

    def finish(self, results: Sequence[SymbolicTensor], devices: Sequence[str]) -> Any:
        """Returns the FunctionDef.

        Args:
          results: the results of the program.
          devices: the device of each result, for results that are arguments.
        """
        signature = self.definition.signature
        signature.is_stateful = True
        for index, (x, device) in enumerate(zip(results, devices, strict=True)):
            # A FunctionDef can only return outputs of nodes.
            if x.is_argument:
                (x,) = self.node(
                    "Identity",
                    [x],
                    attributes={"T": x.dtype},
                    outputs=[(x.shape, x.dtype)],
                    device=device,
                )
            output = signature.output_arg.add()
            output.name = f"result_{index}"
            output.type = x.dtype.as_datatype_enum
            self.definition.ret[output.name] = x.name
        for index, name in enumerate(self._must_run):
            signature.control_output.append(f"must_run_{index}")
            self.definition.control_ret[f"must_run_{index}"] = name
        share_constants(self.definition)
        return self.definition

    def _controls(self, name: str, inputs: Sequence[str]) -> list[str]:
        """Returns the control inputs of a new node: those of the enclosing `after` blocks.
        If an input of the node was added in a block, that input waits already.
        """
        controls: dict[str, None] = {}
        for block in self._control_blocks:
            if not any(x in block.nodes for x in inputs):
                controls.update(dict.fromkeys(block.controls))
            block.nodes.add(name)
        return list(controls)

    def _new_name(self, kind: str) -> str:
        """Returns a unique name for a node: "MatMul", "MatMul_1", ..."""
        name = self._scope + kind
        count = self._name_counts.get(name, 0)
        self._name_counts[name] = count + 1
        return f"{name}_{count}" if count else name


def call_on(
    callee: GraphFunction,
    args: Sequence[Any],
    device: str,
    program: ProgramWriter | None,
) -> list[Any]:
    """Calls a function on a device and returns its results: in a program that is written,
    or in the graph that TensorFlow traces if `program` is None.
    """
    if program is not None:
        return program.call(callee, args, device)
    with tf.device(device):
        return callee(args)
