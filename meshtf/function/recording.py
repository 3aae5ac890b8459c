"""Records a Python function: calls it with symbolic tensors as arguments, whose ops become
the nodes of a graph.

    python = PythonFunction(fn, mesh=None, names={"x": "batch;d_model"})
    call = python.bind(args, kwargs)
    recording = python.record(Graph(call.mesh), call)

Calls with equal `call.key` share a trace, that is a compiled recording. `recording.recorded`
has the nodes and results that a runtime compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from meshtf.errors import MeshError, PlanError, explain_error
from meshtf.function.arguments import (
    CallArguments,
    context_entries,
    leaf_names,
    signature_of,
)
from meshtf.graph import (
    Graph,
    ShardedValue,
    Store,
    Tensor,
    context,
    current,
    current_executor,
    executing,
)
from meshtf.graph.context import RESET_IN_TRACES
from meshtf.graph.recorder import Recorded
from meshtf.graph.tensor import tensor_of_value
from meshtf.graph.used_layouts import layout_use, record_layout_use
from meshtf.mesh import Mesh
from meshtf.names import nested
from meshtf.names.arguments import as_callable, refuse
from meshtf.names.calls import wrong_call
from meshtf.ops.control.nested_values import flatten
from meshtf.ops.control.seeds import iterations


class ResultMarker:
    """Stands for a tensor in the structure that a function returns: each call puts another
    tensor there.
    """


RESULT = ResultMarker()
# A call within loops has the iteration indices of the loops as further arguments, so that
# random ops draw new numbers in each iteration. The names of these arguments begin with
# this prefix, which no argument of a user has, as it contains spaces.
_ITERATION_PREFIX = "loop iteration "


class Recording(NamedTuple):
    """A recorded call of a function.

    Attributes:
      recorded: the nodes, results and mesh of the function.
      arguments: the stores of the function's arguments, in order.
      structure: the nesting that the function returned, with `RESULT` for each tensor.
    """

    recorded: Recorded
    arguments: Sequence[Store]
    structure: Any

    @property
    def named_results(self) -> list[tuple[str, Tensor]]:
        """Returns (name, result) for each result. Names are the keys of a returned dict or
        NamedTuple; otherwise "output_0", "output_1" and so on.
        """
        structure = self.structure
        if isinstance(structure, Mapping) or hasattr(structure, "_fields"):
            root = ""
        elif nested.is_nested(structure):
            root = "output"
        else:
            root = "output_0"
        leaves = nested.flatten(structure)
        named_leaves = zip(leaf_names(root, structure), leaves, strict=True)
        names = [name for name, leaf in named_leaves if leaf is RESULT]
        return list(zip(names, self.recorded.results, strict=True))


class PythonFunction:
    """A function of tensors that can be recorded.

    Args:
      fn: the function.
      mesh: the mesh that the function runs on; None: the mesh of its arguments.
      names: for each argument that is an array, the names of its dimensions.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        mesh: Mesh | None,
        names: Mapping[str, str | Mapping[str, str]],
    ) -> None:
        self.fn = as_callable("fn", fn)
        self.mesh = mesh
        self.names = names
        self.signature = signature_of(fn, names)
        self.name = getattr(fn, "__name__", None) or repr(fn)
        unknown_names = set(names) - set(self.signature.parameters)
        if unknown_names:
            raise PlanError(
                f"mtf.function names the dimensions of {sorted(unknown_names)}, but "
                f"{self.name}{self.signature} has no such argument."
            )

    def signature_text(self) -> str:
        """Returns the parameters, with the dimensions of arrays: "(x='batch;d', step)"."""
        arguments = []
        for name in self.signature.parameters:
            dims = self.names.get(name)
            arguments.append(name if dims is None else f"{name}={dims!r}")
        return f"({', '.join(arguments)})"

    def bind(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        runs: bool = True,
        in_place: bool = False,
    ) -> CallArguments:
        """Binds the arguments of a call to the parameters, and returns them.

        Args:
          args: the positional arguments.
          kwargs: the keyword arguments.
          runs: whether the call runs, see `CallArguments`.
          in_place: whether the call runs without a trace, see `CallArguments`.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as mismatch:
            raise wrong_call(
                self.name, self.signature, args, kwargs, mismatch
            ) from None
        bound.apply_defaults()
        settings = current()
        mesh = self.mesh if settings.mesh is None else settings.mesh
        if mesh is None and in_place:
            mesh = current_executor().mesh
        call = CallArguments(mesh, runs=runs, in_place=in_place)
        for name, value in bound.arguments.items():
            if name in self.names:
                call.add_array(name, value, self.names[name])
            else:
                call.add_structure(name, value)
        if not in_place:
            # Scalars: the index of the current iteration of each enclosing loop.
            for depth, index in enumerate(iterations()):
                call.add_array(f"{_ITERATION_PREFIX}{depth}", index, dims="")
        call.key += context_entries(settings)
        return call

    def run(self, call: CallArguments) -> Any:
        """Calls the function, whose ops the current executor runs or records, and returns
        the results.
        """
        arguments = call.arguments()
        indices = [
            arguments.pop(name)
            for name in list(arguments)
            if name.startswith(_ITERATION_PREFIX)
        ]
        bound = self.signature.bind_partial()
        bound.arguments.update(arguments)
        iteration_indices = current().iterations
        if indices:
            iteration_indices = tuple(indices)
        with context(iterations=iteration_indices):
            return self.fn(*bound.args, **bound.kwargs)

    def record(self, graph: Graph, call: CallArguments) -> Recording:
        """Records a call in a graph.

        Raises:
          MeshError: no tensor or variable determines the mesh.
        """
        # Some settings of the caller's context do not apply to the ops of a trace.
        with executing(graph), context(**RESET_IN_TRACES):
            returned = self.run(call)
            leaves = flatten(returned)
            # Tensors and variables have a spec; a variable is read here, in the graph.
            results = [
                y if isinstance(y, Tensor) else y.tensor()
                for y in leaves
                if hasattr(y, "spec")
            ]
        if graph.mesh is None:
            raise self._no_mesh()
        record_layout_use(graph.mesh, layout_use(graph.nodes))
        marked_leaves = [RESULT if hasattr(y, "spec") else y for y in leaves]
        structure = nested.pack_sequence_as(returned, marked_leaves)
        recorded = Recorded(graph.nodes, results, mesh=graph.mesh, name=self.name)
        return Recording(recorded, arguments=call.stores, structure=structure)

    def record_on(
        self, mesh: Mesh, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Recording:
        """Records a call as if its tensors and variables were on another mesh."""

        def on_mesh(x: Any) -> Any:
            """Returns a tensor without data on the other mesh; anything else unchanged."""
            if isinstance(x, Tensor):
                return _abstract_tensor(x, mesh)
            return x

        args, kwargs = nested.map_structure(on_mesh, (args, kwargs))
        with context(mesh=mesh):
            return self.record(Graph(mesh), self.bind(args, kwargs, runs=False))

    def _no_mesh(self) -> MeshError:
        """Returns the error for a function without a mesh."""
        return MeshError(
            explain_error(
                f"nothing in {self.name} determines the mesh that it runs on.",
                way_out="Write @mtf.function(mesh=mesh, ...), or pass or use a tensor "
                "or variable.",
            )
        )


def _abstract_tensor(x: Tensor, mesh: Mesh) -> Tensor:
    """Returns a replicated tensor like x on another mesh, without data."""
    value = ShardedValue(mesh.replicated, [None] * mesh.size)
    return tensor_of_value(x.spec, value, mesh)


def check_names(names: Mapping[str, Any]) -> None:
    """Raises ArgumentError if a user gives an argument no names of dimensions."""
    for name, dims in names.items():
        values = dims.values() if isinstance(dims, Mapping) else [dims]
        if not all(isinstance(value, str) for value in values):
            takes = 'names of dimensions, such as "batch;d_model", or a dict of them'
            refuse(name, dims, takes)
