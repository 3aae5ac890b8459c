"""Which operations of a traced step belong to layers that have settings of their own.

While a step is traced, each call of such a layer notes the operations that it adds to the graph:
those between its begin and its end. (Names of operations tell layers apart no more when one is
called twice.)
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from meshtf.errors import ArgumentError, explain_error
from meshtf.keras.layer_settings.patterns import LayerSettings
from meshtf.mesh import NO_CHANGES
from meshtf.tensorflow_import.graph.program import Program, Section


class LayerCalls:
    """The calls of layers in a trace.

    Attributes:
        sections: By the name of a function's graph, and that of an operation, its section.
    """

    def __init__(self, settings: LayerSettings) -> None:
        """Prepares a trace of a model whose layers have settings."""
        self.sections: dict[str, dict[str, Section]] = {}
        self._settings = settings
        # By the path of a layer, the graphs that its calls added to.
        self._graphs: dict[str, set[str]] = {}
        self._sections_around = [Section()]
        # What a pattern says to recompute. Within it nothing else is a section of its own.
        self._by_pattern: object = None
        self._groups: dict[tuple[str | None, ...], object] = {}

    def start(self) -> None:
        """Starts with a graph. (A function that makes variables is traced twice.)"""
        self.sections.clear()
        self._graphs.clear()
        self._groups.clear()

    def check(self, graph: tf.Graph, program: Program) -> None:
        """Checks that layers of each pattern were called in the traced graph, or in bodies of
        its loops and branches, if the program uses their variables.

        Args:
            graph: The graph.
            program: What was read of it.

        Raises:
            ArgumentError: All were called in a `tf.function` of their own.
        """
        functions = graph.as_graph_def().library.function if self._settings else ()
        known = {getattr(graph, "name", ""), *(f.signature.name for f in functions)}
        used = program.differentiated_variables() or set(program.on_entry)
        for pattern, layers in self._settings.matched.items():
            called = any(known & self._graphs.get(path, set()) for path in layers)
            if not called and any(used & variables for variables in layers.values()):
                raise ArgumentError(
                    explain_error(
                        f'the layers that match "{pattern}", of `regions` or `recompute`, '
                        "are not called as layers of the model's step.",
                        layers=", ".join(layers),
                        way_out="They are called within a tf.function of their own, or by "
                        "`layer.call`: match a layer around them, or call `layer` itself.",
                    )
                )

    @contextlib.contextmanager
    def layer(self, layer: Any) -> Iterator[None]:
        """Within, a layer is called."""
        path = self._settings.path_of(layer)
        if path:
            self._graphs.setdefault(path, set()).add(_graph_name())
        changes = self._settings.region_of(path)
        group = self._settings.recomputed_group(path)
        if group is None or self._by_pattern is not None:
            with self._section(Section(changes)):
                yield
            return
        # Calls of layers of one group are computed again together, others each for itself.
        self._by_pattern = (
            self._groups.setdefault(group, object()) if group else object()
        )
        try:
            with self._section(Section(changes, self._by_pattern)):
                yield
        finally:
            self._by_pattern = None

    @contextlib.contextmanager
    def recomputed(self) -> Iterator[None]:
        """Within, a function of `tf.recompute_grad` is called."""
        recomputed = object() if self._by_pattern is None else None
        with self._section(Section(recomputed=recomputed)):
            yield

    @contextlib.contextmanager
    def _section(self, section: Section) -> Iterator[None]:
        if section.layout == NO_CHANGES and section.recomputed is None:
            yield
            return
        graph = tf.compat.v1.get_default_graph()
        begin = len(graph.get_operations())
        section = section.within(self._sections_around[-1])
        self._sections_around.append(section)
        try:
            yield
        finally:
            self._sections_around.pop()
        sections = self.sections.setdefault(_graph_name(), {})
        for operation in graph.get_operations()[begin:]:
            sections.setdefault(operation.name, section)


def _graph_name() -> str:
    return getattr(tf.compat.v1.get_default_graph(), "name", "")


@contextlib.contextmanager
def layers_noted(settings: LayerSettings) -> Iterator[LayerCalls]:
    """Notes the calls of layers in the trace of a step, and of what `keras.remat` computes
    again.
    """
    calls = LayerCalls(settings)
    call_layer, recompute_grad = keras.Layer.__call__, tf.recompute_grad

    @functools.wraps(call_layer)
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        with calls.layer(layer):
            return call_layer(layer, *args, **kwargs)

    def recomputed(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            with calls.recomputed():
                return fn(*args, **kwargs)

        return run

    if settings:
        keras.Layer.__call__ = call
    tf.recompute_grad = recomputed
    try:
        yield calls
    finally:
        keras.Layer.__call__ = call_layer
        tf.recompute_grad = recompute_grad
