"""A TensorFlow function as a named function of a mesh."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshtf.errors import ArgumentError, DTypeError, ShapeError, explain_error
from meshtf.function.function import Function
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_mesh
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import nested
from meshtf.names.arguments import as_bool, as_mapping, as_text
from meshtf.names.calls import explain_wrong_calls
from meshtf.ops.shapes.reshape import transpose
from meshtf.tensorflow_import.axis_names import (
    check_names,
    from_program,
    names_of_axes,
    shape_text,
    to_program,
)
from meshtf.tensorflow_import.check import check_outputs
from meshtf.tensorflow_import.dimensions.hints import Hints
from meshtf.tensorflow_import.dimensions.names import unused_name
from meshtf.tensorflow_import.dimensions.table import DimensionTable, dimension_table
from meshtf.tensorflow_import.graph.program import Value
from meshtf.tensorflow_import.graph.read import read_function
from meshtf.tensorflow_import.graph.state import path_of
from meshtf.tensorflow_import.named_program import NamedProgram
from meshtf.tensorflow_import.traced import TracedFunction, is_spec, trace


@explain_wrong_calls
def from_tensorflow(
    fn: Any,
    mesh: Mesh,
    *specs: Any,
    inputs: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    signature: str = "serving_default",
    check: bool = True,
    name: str | None = None,
) -> ImportedFunction:
    """Returns a TensorFlow function as a function of named tensors on a mesh.

        program = mtf.from_tensorflow("served", mesh, inputs={"x": "batch:8; length:16"})
        y = program(x=array)                         # [batch, length, ...]

    The function's graph is imported operation by operation. Which axes of its tensors are one
    dimension is found by analysis; their names come from `inputs` and from the variables. An
    operation without a rule runs replicated, as the TensorFlow operation that it is.

    Args:
      fn: a `tf.function` or a function of TensorFlow tensors, a concrete function, a signature
        of a SavedModel, or the path of a SavedModel. Its variables get copies on the mesh.
      mesh: the mesh.
      *specs: the positional arguments that it is traced with, as for `get_concrete_function`:
        a `tf.TensorSpec` or an array for each tensor, and Python values. None are needed by a
        concrete function, a SavedModel and a `tf.function` with an `input_signature`.
      inputs: names of the axes of arguments, by parameter: {"x": "batch; length"}; for a dict
        or a list of tensors, a dict or list of them. With sizes ("batch:8") where the
        function takes any. Arguments that are left out get names such as "batch".
      names: new names of dimensions, by those that they would have.
      signature: which signature of a SavedModel.
      check: whether to compare its results with the TensorFlow function's on random numbers,
        on one device; functions that draw random numbers are not compared.
      name: the name that its variables begin with, as of a module.

    Returns:
      An `ImportedFunction`: a module that is called with arrays or named tensors.

    Raises:
      ArgumentError: the function does what no mesh can (strings, tables, files; all such
        operations are listed), or an argument is unknown.
      ShapeError: names or sizes do not fit an argument, or sizes are unknown.
      NumericsError: the check found results that differ.
    """
    as_mesh("mesh", mesh)
    as_text("signature", signature)
    as_bool("check", check)
    if inputs is not None:
        as_mapping("inputs", inputs, 'a dict of names, such as {"x": "batch; length"}')
    if names is not None:
        as_mapping("names", names, 'a dict of new names, such as {"d": "d_model"}')
    traced = trace(fn, specs, signature, inputs or {})
    call = _Call(traced, names or {})
    entries = list(call.named.program.on_entry.values())
    values = [value.variable.numpy for value in entries]
    function = ImportedFunction(call, mesh, values, name)
    if check:
        check_outputs(call.named, traced, function.copies)
    for value in entries:
        value.variable = _Source(path_of(value.variable), value.variable.trainable)
    return function


class ImportedFunction(Module):
    """A TensorFlow function on a mesh: a module whose variables are copies of its variables.

    It takes the arguments of the TensorFlow function: arrays, or tensors with the names of
    their dimensions in any order. Results have the function's structure, and one dimension
    for each axis. Within a `mtf.function` it is recorded with the caller.

    Attributes:
      mesh: the mesh of its variables.
      copies: the variables, in the order in which the TensorFlow function reads them.
      bound_function: the `mtf.function` that runs it.
    """

    default_name = "imported"

    def __init__(
        self,
        call: _Call,
        mesh: Mesh,
        values: Sequence[Callable[[], Any]],
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.mesh = mesh
        self._call = call
        entries = call.named.program.on_entry.values()
        self.copies = []
        used: set[str] = set()
        for entry, value in zip(entries, values):
            stem = path_of(entry.variable).strip("/") or "variable"
            path = unused_name(stem, used.__contains__)
            used.add(path)
            self.copies.append(call.named.variable(mesh, entry, path, value))
        self.bound_function = Function(
            _Body(self, call.parameters, call.name), mesh=mesh, names=call.dims
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = nested.map_structure(self._call.as_floats, (args, kwargs))
        return self.bound_function(*args, **kwargs)

    @property
    def dimensions(self) -> DimensionTable:
        """A table of the program's dimensions: names, sizes, how they are sharded, where they
        are, and which operations run replicated.
        """
        return dimension_table(self._call.named, self.mesh)

    @property
    def program(self) -> NamedProgram:
        """The program that runs, with the names of its dimensions."""
        return self._call.named

    def on_mesh(self, mesh: Mesh) -> ImportedFunction:
        """Returns the function on another mesh, with variables of the values that these
        have; nothing is imported again. `mtf.search(program.on_mesh, ...)` finds a layout.
        """
        values = [v.numpy for v in self.copies]
        return ImportedFunction(self._call, mesh, values, self.path[-1])

    def run(self, arguments: Mapping[str, Any]) -> Any:
        """Returns the results of a call, in the present function.

        Args:
          arguments: by parameter, its tensors and Python values.
        """
        call = self._call
        inputs = call.tensors_of(arguments)
        variables = dict(zip(call.named.program.on_entry, self.copies))
        outputs = call.named.run(self.mesh, variables, inputs)
        return call.results(outputs)


class _Source(NamedTuple):
    """What remains of a TensorFlow variable: its copies on meshes have its value."""

    path: str
    trainable: bool


class _Call:
    """What calls of an imported function need; shared by copies of it.

    Attributes:
      name: The TensorFlow function's name.
      named: The program.
      parameters: The function's parameters.
      dims: By parameter, a nesting of named shapes.
    """

    def __init__(self, traced: TracedFunction, renames: Mapping[str, str]) -> None:
        program = read_function(traced.concrete, traced.concrete.variables)
        named_arguments = {}
        for value, argument in zip(program.inputs, traced.arguments):
            value.path = argument.label
            if argument.names is not None:
                named_arguments[id(value)] = argument.names
        named = NamedProgram(program, renames, hints=Hints(axes=named_arguments))
        self.name = traced.name
        self.named = named
        self.parameters = traced.parameters
        self._structure = traced.structure
        self._outputs = nested.map_structure(
            lambda x: x is not None, traced.concrete.structured_outputs
        )
        self._shapes = []
        for value, argument in zip(named.program.inputs, traced.arguments):
            axis_names = names_of_axes(named, value)
            if argument.names is not None:
                axis_names = [renames.get(name, name) for name in argument.names]
                check_names(named, value, axis_names)
            self._shapes.append(shape_text(value, axis_names))
        self._takes_double = any(v.dtype.name == "float64" for v in program.inputs)
        remaining = iter(self._shapes)
        dims = nested.map_structure(
            lambda x: next(remaining) if is_spec(x) else None, dict(traced.structure)
        )
        self.dims = {
            name: nesting
            for name, nesting in dims.items()
            if None not in nested.flatten(nesting)
        }

    def __deepcopy__(self, memo: dict[int, Any]) -> _Call:
        return self

    def as_floats(self, x: Any) -> Any:
        """Returns an array of float64 as float32, unless the function takes float64: so does
        TensorFlow.
        """
        is_double = isinstance(x, np.ndarray) and x.dtype == np.float64
        return x.astype(np.float32) if is_double and not self._takes_double else x

    def tensors_of(self, arguments: Mapping[str, Any]) -> list[Tensor]:
        """Returns the program's inputs: the tensors of a call's arguments.

        Raises:
          ArgumentError: A Python value is not the one that the function was traced with.
          ShapeError: A tensor has other dimensions than the argument.
          DTypeError: A tensor has another type.
        """
        leaves = nested.flatten(dict(arguments))
        traced_leaves = nested.flatten(dict(self._structure))
        if len(leaves) != len(traced_leaves):
            raise ArgumentError(
                f"the function takes {len(traced_leaves)} values, in the structure "
                f"{dict(self._structure)}, not {len(leaves)}"
            )
        inputs = iter(zip(self.named.program.inputs, self._shapes))
        tensors = []
        for leaf, traced_leaf in zip(leaves, traced_leaves):
            if is_spec(traced_leaf):
                value, shape = next(inputs)
                x = _matched(leaf, value, shape)
                tensors.append(to_program(self.named, value, x))
            elif leaf is not traced_leaf and leaf != traced_leaf:
                raise ArgumentError(
                    f"the function was traced with {traced_leaf!r}, and is called with "
                    f"{leaf!r}: import it again with this value"
                )
        return tensors

    def results(self, outputs: Sequence[Tensor]) -> Any:
        """Returns outputs in the structure that the function returns."""
        program = self.named.program
        values = [v for v in program.outputs if v.is_tensor]
        remaining = iter(
            from_program(self.named, value, x) for value, x in zip(values, outputs)
        )
        return nested.map_structure(
            lambda is_tensor: next(remaining) if is_tensor else None, self._outputs
        )


class _Body:
    """What the `mtf.function` of an imported function runs: a method with the parameters of
    the TensorFlow function.
    """

    def __init__(
        self, module: ImportedFunction, parameters: inspect.Signature, name: str
    ) -> None:
        self._module = module
        self.__signature__ = parameters
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        with self._module.scope():
            return self._module.run(bound.arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Body:
        module = copy.deepcopy(self._module, memo)
        return _Body(module, self.__signature__, self.__name__)


def _matched(x: Any, value: Value, shape: str) -> Tensor:
    """Returns a tensor with its dimensions in the order of an argument's axes.

    Raises:
      ShapeError: It has other dimensions.
      DTypeError: It has another type.
    """
    label = value.path
    expected = [axis.split(":")[0] for axis in shape.split("; ") if axis]
    if not isinstance(x, Tensor) and hasattr(x, "tensor"):
        x = x.tensor()
    if not isinstance(x, Tensor):
        raise ArgumentError(f'the argument "{label}" is a tensor [{shape}], not {x!r}')
    if x.dtype != value.dtype.name:
        raise DTypeError(
            f'the argument "{label}" is {value.dtype.name} [{shape}], not {x.dtype}: '
            f'write mtf.cast(x, "{value.dtype.name}")'
        )
    sizes = dict(zip(expected, value.shape))
    if {d.name: d.size for d in x.shape} != sizes:
        raise ShapeError(
            explain_error(
                f'the argument "{label}" has the dimensions [{shape}].',
                tensor=repr(x.shape),
                way_out="mtf.rename gives a tensor these names; for other sizes import the "
                "function again.",
            )
        )
    return transpose(x, expected)
