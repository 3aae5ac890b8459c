"""Recording a Python function: its arguments become tensors, what it returns becomes
results.

    python = PythonFunction(fn, mesh=None, names={"x": "batch;d_model"})
    call = python.bind(args, kwargs)            # its key tells whether it was recorded before
    recording = python.record(Graph(call.mesh), call)
    recording.recorded                          # what a runtime compiles
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.errors import MeshError, PlanError, explain_error
from meshtf.function.arguments import Call, leaf_names, signature_of, traced_for
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
from meshtf.names.arguments import as_callable
from meshtf.ops.control.nested_values import flatten
from meshtf.ops.control.seeds import iterations


class Result:
    """Stands for a tensor in the structure that a function returns."""


RESULT = Result()
_ITERATION = (
    "loop iteration "  # no name of an argument: with the numbers, random ops draw anew
)


class Recording(NamedTuple):
    """A call of a function, recorded.

    Args:
      recorded: what runtimes compile.
      arguments: the stores of its arguments, in order.
      structure: what the function returned, with `RESULT` for each tensor.
    """

    recorded: Recorded
    arguments: Sequence[Store]
    structure: Any

    @property
    def named_results(self) -> list[tuple[str, Tensor]]:
        """The results with names: their keys, or output_0, ..."""
        structure = self.structure
        named = isinstance(structure, Mapping) or hasattr(structure, "_fields")
        root = "" if named else "output" if tf.nest.is_nested(structure) else "output_0"
        leaves = zip(
            leaf_names(root, structure), tf.nest.flatten(structure), strict=True
        )
        names = [name for name, leaf in leaves if leaf is RESULT]
        return list(zip(names, self.recorded.results, strict=True))


class PythonFunction:
    """A function of tensors that can be recorded.

    Args:
      fn: the function.
      mesh: where it runs, if that is known.
      names: of the dimensions of arguments that are arrays.
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
        self.name = getattr(fn, "__name__", repr(fn))
        unknown = set(names) - set(self.signature.parameters)
        if unknown:
            raise PlanError(
                f"mtf.function names the dimensions of {sorted(unknown)}, but "
                f"{self.name}{self.signature} has no such argument."
            )

    def bind(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        runs: bool = True,
        in_place: bool = False,
    ) -> Call:
        """Returns the arguments of a call; see `Call` for `runs` and `in_place`."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        around = current()
        mesh = (
            around.mesh or self.mesh or (current_executor().mesh if in_place else None)
        )
        call = Call(mesh, runs, in_place)
        for name, value in bound.arguments.items():
            if name in self.names:
                call.add_array(name, value, self.names[name])
            else:
                call.add_structure(name, value)
        for depth, index in enumerate(
            () if in_place else iterations()
        ):  # of loops in Python
            call.add_array(f"{_ITERATION}{depth}", index, "")
        call.key += traced_for(around)
        return call

    def run(self, call: Call) -> Any:
        """Returns what the function returns, with its ops where they are called."""
        arguments = call.arguments()
        passed = tuple(
            arguments.pop(name) for name in [*arguments] if name.startswith(_ITERATION)
        )
        bound = self.signature.bind_partial()
        bound.arguments.update(arguments)
        with context(iterations=passed or current().iterations):
            return self.fn(*bound.args, **bound.kwargs)

    def record(self, graph: Graph, call: Call) -> Recording:
        """Records a call in a graph.

        Raises:
          MeshError: nothing tells on which mesh the function runs.
        """
        with executing(graph), context(**RESET_IN_TRACES):
            returned = self.run(call)
            flat = flatten(returned)
            results = [
                y if isinstance(y, Tensor) else y.tensor()  # variables are read here
                for y in flat
                if hasattr(y, "spec")
            ]
        if graph.mesh is None:
            raise self._no_mesh()
        record_layout_use(graph.mesh, layout_use(graph.nodes))
        marks = [RESULT if hasattr(y, "spec") else y for y in flat]
        return Recording(
            Recorded(graph.nodes, results, graph.mesh),
            call.stores,
            tf.nest.pack_sequence_as(returned, marks),
        )

    def record_on(
        self, mesh: Mesh, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Recording:
        """Records a call as if all that it uses lay on another mesh."""

        def moved(x: Any) -> Any:
            return _on_mesh(x, mesh) if isinstance(x, Tensor) else x

        args, kwargs = tf.nest.map_structure(moved, (args, kwargs))
        with context(mesh=mesh):
            return self.record(Graph(mesh), self.bind(args, kwargs, runs=False))

    def _no_mesh(self) -> MeshError:
        return MeshError(
            explain_error(
                f"nothing in {self.name} tells on which mesh it runs.",
                way_out="Write @mtf.function(mesh=mesh, ...), or pass or use a tensor "
                "or variable.",
            )
        )


def _on_mesh(x: Tensor, mesh: Mesh) -> Tensor:
    """Returns what stands for a tensor on a mesh, without a value."""
    return tensor_of_value(
        x.spec, ShardedValue(mesh.replicated, [None] * mesh.size), mesh
    )
