"""TensorFlow's tapes and decorated functions while a step is traced.

Methods of `tf.GradientTape` are replaced, by their public names: a tape that is opened in the
step's graph is a `Recording`. Functions with `@tf.function` run in the step's graph, as if
they were not decorated: a graph of their own would hide what is recorded, and would stay when
the step is long traced.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import ArgumentError
from meshtf.keras.tapes.jacobians import batch_jacobian, jacobian
from meshtf.keras.tapes.recording import Recording

# Returns the gradients by sources of targets, each times a tensor (None: 1).
Gradients = Callable[[Recording, Sequence[Any], Sequence[Any], Any], list[Any]]

_NONE = tf.UnconnectedGradients.NONE
_FUNCTION = type(tf.function(lambda: None))  # has no public name


class StepTapes:
    """The tapes that are opened in the graph of a step."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._graph: tf.Graph | None = None
        # By tape: its recording, and the arguments that it was made with.
        self._recordings: Any = weakref.WeakKeyDictionary()
        self._settings: Any = weakref.WeakKeyDictionary()

    def start(self, graph: tf.Graph) -> None:
        """Starts with a step's graph."""
        self._graph = graph
        self._recordings.clear()

    def is_here(self) -> bool:
        """Whether operations are created in the step's graph."""
        return (
            self._graph is not None and tf.compat.v1.get_default_graph() is self._graph
        )

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Replaces the methods of tapes, and the call of decorated functions."""
        replacements: dict[str, Callable[..., Any]] = {
            "__exit__": self._exit,
            "watch": self._watch,
            "stop_recording": self._stop_recording,
            "reset": lambda recording: recording.forget(),
            "watched_variables": self._watched_variables,
        }
        with contextlib.ExitStack() as stack:
            for name, ours in replacements.items():
                _replace(stack, tf.GradientTape, name, self._of_recording(ours))
            for name in ("gradient", "jacobian", "batch_jacobian"):
                ours = getattr(self, f"_{name}")
                _replace(stack, tf.GradientTape, name, self._asking(ours))
            _replace(stack, tf.GradientTape, "__init__", self._init)
            _replace(stack, tf.GradientTape, "__enter__", self._enter)
            _replace(stack, _FUNCTION, "__call__", self._call)
            yield

    def _init(self, original: Any, tape: Any, *args: Any, **kwargs: Any) -> None:
        original(tape, *args, **kwargs)
        names = ("persistent", "watch_accessed_variables")
        self._settings[tape] = dict(zip(names, args)) | kwargs

    def _enter(self, original: Any, tape: Any) -> Any:
        if not self.is_here():
            return original(tape)
        if tape not in self._recordings:
            settings = self._settings.get(tape, {})
            watches = settings.get("watch_accessed_variables", True)
            self._recordings[tape] = Recording(self._graph, watches)
        self._recordings[tape].start()
        return tape

    def _of_recording(self, ours: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a method that is ours for tapes of the step."""

        def method(original: Any, tape: Any, *args: Any, **kwargs: Any) -> Any:
            if tape not in self._recordings:
                return original(tape, *args, **kwargs)
            return ours(self._recordings[tape], *args, **kwargs)

        return method

    def _asking(self, ours: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a method of tapes that asks for gradients.

        It raises ArgumentError in another graph than that of the step.
        """

        def method(original: Any, tape: Any, *args: Any, **kwargs: Any) -> Any:
            if tape not in self._recordings:
                return original(tape, *args, **kwargs)
            if not self.is_here():
                raise ArgumentError(
                    "a tf.GradientTape that was opened in train_step is asked for gradients "
                    "in a branch or a loop (tf.cond, tf.while_loop): ask for them outside "
                    "of it, or open the tape in it"
                )
            result = ours(self._recordings[tape], *args, **kwargs)
            if not self._settings.get(tape, {}).get("persistent", False):
                self._recordings[tape].stop()
            return result

        return method

    def _exit(self, recording: Recording, *exception: Any) -> None:
        recording.stop()

    def _watch(self, recording: Recording, tensor: Any) -> None:
        for x in tf.nest.flatten(tensor, expand_composites=True):
            recording.watch(x)

    @contextlib.contextmanager
    def _stop_recording(self, recording: Recording) -> Iterator[None]:
        recording.stop()
        yield
        recording.start()

    def _watched_variables(self, recording: Recording) -> Any:
        raise ArgumentError(
            "tf.GradientTape.watched_variables is not known in a step on a mesh: name the "
            "variables, as in model.trainable_variables"
        )

    def _gradient(
        self,
        recording: Recording,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = _NONE,
    ) -> Any:
        targets = tf.nest.flatten(target)

        def by(flat: Sequence[Any]) -> Sequence[Any]:
            return self._gradients(recording, targets, flat, output_gradients)

        return _for_sources(by, sources, unconnected_gradients, ())

    def _jacobian(
        self,
        recording: Recording,
        target: Any,
        sources: Any,
        unconnected_gradients: Any = _NONE,
        parallel_iterations: Any = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        def by(flat: Sequence[Any]) -> Sequence[Any]:
            return jacobian(
                lambda weights: self._gradients(recording, [target], flat, [weights]),
                target,
                flat,
            )

        return _for_sources(by, sources, unconnected_gradients, target.shape)

    def _batch_jacobian(
        self,
        recording: Recording,
        target: Any,
        source: Any,
        unconnected_gradients: Any = _NONE,
        parallel_iterations: Any = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        result = batch_jacobian(
            lambda weights: self._gradients(recording, [target], [source], [weights]),
            target,
            source,
        )
        if result is None and _are_zeros(unconnected_gradients):
            return tf.zeros([*target.shape, *source.shape[1:]], target.dtype)
        return result

    def _call(self, original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a decorated function. One with a signature converts its arguments, so it keeps
        its graph.
        """
        is_plain = type(function) is _FUNCTION
        if not self.is_here() or not is_plain or function.input_signature is not None:
            return original(function, *args, **kwargs)
        try:
            converted = tf.autograph.to_graph(function.python_function)
        # AutoGraph's errors, as of a function without its source, have no common class.
        except Exception:
            return original(function, *args, **kwargs)
        return converted(*args, **kwargs)


def _replace(
    stack: contextlib.ExitStack, cls: type, name: str, ours: Callable[..., Any]
) -> None:
    """Replaces a method of a class, until the stack is closed.

    Args:
        stack: Puts the method back.
        cls: The class.
        name: The method's name.
        ours: Gets the method, and then its arguments.
    """
    original = getattr(cls, name)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return ours(original, *args, **kwargs)

    setattr(cls, name, method)
    stack.callback(setattr, cls, name, original)


def _are_zeros(unconnected_gradients: Any) -> bool:
    return bool(tf.UnconnectedGradients(unconnected_gradients).value == "zero")


def _for_sources(
    by: Callable[[Sequence[Any]], Sequence[Any]],
    sources: Any,
    unconnected_gradients: Any,
    shape: Sequence[int],
) -> Any:
    """Returns gradients in the structure of their sources, with zeros in place of None if that
    is asked for.

    Args:
        by: Returns the gradients by a list of sources.
        sources: Tensors and variables in any structure.
        unconnected_gradients: A `tf.UnconnectedGradients`.
        shape: What gradients have before the shape of their source.
    """
    flat = tf.nest.flatten(sources)
    results = list(by(flat))
    if _are_zeros(unconnected_gradients):
        results = [
            tf.zeros([*shape, *x.shape], x.dtype) if y is None else y
            for x, y in zip(flat, results)
        ]
    return tf.nest.pack_sequence_as(sources, results)
