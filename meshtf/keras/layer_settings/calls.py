"""Which operations of a traced step belong to which layer.

While a step is traced, each call of a layer notes the operations that it adds to the graph: those
between its begin and its end. (Names of operations tell layers apart no more when one is called
twice.)
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from meshtf.errors import ArgumentError, explain_error
from meshtf.keras.layer_settings.patterns import LayerSettings
from meshtf.names import Source
from meshtf.tensorflow_import.graph.program import Program, Section


class LayerCalls:
    """The calls of layers in a trace.

    Attributes:
        sections: By the name of a function's graph, and that of an operation, its section.
    """

    def __init__(self, settings: LayerSettings) -> None:
        """Prepares a trace of a model whose layers may have settings."""
        self.sections: dict[str, dict[str, Section]] = {}
        self._settings = settings
        # By the path of a layer, the graphs that its calls added to.
        self._graphs: dict[str, set[str]] = {}
        self._sections_around = [Section()]
        # By a graph's identity, in which a call has not ended, the numbers of its first and last
        # operations, of calls that have ended.
        self._spans: dict[int, list[tuple[int, int, Section]]] = {}
        # What a pattern says to recompute. Within it nothing else is a section of its own.
        self._by_pattern: object = None
        self._groups: dict[tuple[str | None, ...], object] = {}
        # How often layers that the model repeats were called, by path.
        self._num_calls: collections.Counter[str] = collections.Counter()

    def start(self) -> None:
        """Starts with a graph. (A function that makes variables is traced twice.)"""
        self.sections.clear()
        self._graphs.clear()
        self._groups.clear()
        self._num_calls.clear()

    def note_lines(self, graph: tf.Graph) -> None:
        """Notes the user's lines of a step's operations outside of layers."""
        modules = (keras, tf, sys.modules[__name__.partition(".")[0]])
        folders = [os.path.dirname(str(module.__file__)) + os.sep for module in modules]
        sections = self.sections.setdefault(getattr(graph, "name", ""), {})
        for operation in graph.get_operations():
            if operation.name not in sections:
                source = Source.of_tensorflow(operation.traceback, folders)
                sections[operation.name] = Section(source=source)

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
        label = path or layer.path or layer.name
        section = Section(label, changes, repeat=self._repeat_of(path))
        if group is None or self._by_pattern is not None:
            with self._section(section):
                yield
            return
        # Calls of layers of one group are computed again together, others each for itself.
        self._by_pattern = (
            self._groups.setdefault(group, object()) if group else object()
        )
        try:
            with self._section(
                dataclasses.replace(section, recomputed=self._by_pattern)
            ):
                yield
        finally:
            self._by_pattern = None

    def _repeat_of(self, path: str) -> tuple[int, int, int] | None:
        """Returns for a layer that is called, if the model repeats it, the index of its group,
        that of the call and that of the layer.
        """
        for group, repeated in enumerate(self._settings.repeated):
            key = repeated.key_of(path)
            if key is not None:
                call = self._num_calls[path]
                self._num_calls[path] += 1
                return group, call, repeated.index_of(key)
        return None

    @contextlib.contextmanager
    def optimizer(self, optimizer: Any) -> Iterator[None]:
        """Within, an optimizer updates variables."""
        with self._section(Section(optimizer.name)):
            yield

    @contextlib.contextmanager
    def recomputed(self) -> Iterator[None]:
        """Within, a function of `tf.recompute_grad` is called."""
        recomputed = object() if self._by_pattern is None else None
        with self._section(Section(recomputed=recomputed)):
            yield

    @contextlib.contextmanager
    def _section(self, section: Section) -> Iterator[None]:
        graph = tf.compat.v1.get_default_graph()
        is_first = id(graph) not in self._spans
        spans = self._spans.setdefault(id(graph), [])
        begin = graph.version  # how many operations it has
        section = section.within(self._sections_around[-1])
        self._sections_around.append(section)
        try:
            yield
            spans.append((begin, graph.version, section))
        finally:
            self._sections_around.pop()
            if is_first:
                del self._spans[id(graph)]
        if is_first:
            sections = self.sections.setdefault(_graph_name(), {})
            operations = graph.get_operations()
            for begin, end, section in spans:  # the inner ones come first
                for operation in operations[begin:end]:
                    sections.setdefault(operation.name, section)


def _graph_name() -> str:
    return getattr(tf.compat.v1.get_default_graph(), "name", "")


@contextlib.contextmanager
def layers_noted(settings: LayerSettings) -> Iterator[LayerCalls]:
    """Notes the calls of layers in the trace of a step, and what `keras.remat` computes
    again.
    """
    calls = LayerCalls(settings)
    optimizer_class = keras.optimizers.Optimizer
    call_layer, apply = keras.Layer.__call__, optimizer_class.apply
    recompute_grad = tf.recompute_grad

    @functools.wraps(call_layer)
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        with calls.layer(layer):
            return call_layer(layer, *args, **kwargs)

    @functools.wraps(apply)
    def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        with calls.optimizer(optimizer):
            return apply(optimizer, *args, **kwargs)

    def recomputed(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            with calls.recomputed():
                return fn(*args, **kwargs)

        return run

    keras.Layer.__call__ = call
    optimizer_class.apply = update
    tf.recompute_grad = recomputed
    try:
        yield calls
    finally:
        keras.Layer.__call__ = call_layer
        optimizer_class.apply = apply
        tf.recompute_grad = recompute_grad
