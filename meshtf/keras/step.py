"""A batch on a mesh: a model's own step, traced once for each signature of a batch."""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from meshtf.errors import ArgumentError, TraceWarning, explain_error
from meshtf.function.function import Function
from meshtf.graph import Tensor
from meshtf.keras.check import check_processes, has_processes
from meshtf.keras.layer_settings.calls import layers_noted
from meshtf.keras.layer_settings.patterns import LayerSettings
from meshtf.keras.marks import gradients_marked
from meshtf.keras.placed_variables import PlacedVariables
from meshtf.keras.repeated_updates import repeated
from meshtf.keras.roles import hints_of_step
from meshtf.keras.variables import OnMesh, StepCheck, tracing
from meshtf.mesh.axes import caller_stacklevel
from meshtf.runtime.storage.asarray import asarray
from meshtf.runtime.variable import Variable
from meshtf.tensorflow_import.graph.program import Program
from meshtf.tensorflow_import.graph.read import read_function
from meshtf.tensorflow_import.graph.state import path_of
from meshtf.tensorflow_import.repeats.stacks import Repeated
from meshtf.tensorflow_import.without_running import abstract_function, abstract_mesh

_MANY_SHAPES = 3  # two are usual: the last batch is smaller
_SAME_BATCHES = (
    "Give all of them the same batches, in one order: the mesh shards each batch."
)


class TracedStep:
    """A step for batches of one signature.

    Attributes:
        program: What it does, with names.
        function: The `mtf.function` that runs it.
        seconds: Processor time of Keras' own trace ("trace") and of its import ("import").
        first_seconds: The time of the trace, and of the first run once it was.
        has_run: Whether it ran.
    """

    def __init__(
        self, model: Any, placed: PlacedVariables, method: str, batch: Any
    ) -> None:
        """Traces a step.

        Args:
            model: The Keras model.
            placed: Its variables on the mesh.
            method: The model's method: "train_step", "test_step" or "predict_step".
            batch: A batch, whose shapes and types matter.
        """
        self._placed = placed
        self._method = method
        self.seconds = {"trace": 0.0, "import": 0.0}
        self.has_run = False
        start = time.monotonic()
        placed.drop_unused()
        concrete, program = _trace(model, method, batch, self.seconds, placed.settings)
        self._structure = concrete.structured_outputs
        if getattr(model, "optimizer", None) is not None:
            placed.slots.update(id(v) for v in model.optimizer.variables)
        hints = hints_of_step(model, batch)
        for value, name in zip(program.inputs, hints.arguments):
            value.path = name or value.path
        with _timed(self.seconds, "import"):
            self.program = placed.name(program, hints, _repeated(model, placed))
        self._outputs = [v for v in program.outputs if v.is_tensor]
        self._states: list[OnMesh] = []
        self._updated: list[OnMesh] = []
        self.function = self.program.function(
            f"{model.name}.{method}", placed.mesh, placed.variables
        )
        self.first_seconds = time.monotonic() - start

    def __call__(self, batch: Any) -> Any:
        """Runs the step, and returns what the model's method returns."""
        if self.has_run:
            return self._run(batch)
        start = time.monotonic()
        results = self._run(batch)
        self.first_seconds += time.monotonic() - start
        self.has_run = True
        return results

    def _run(self, batch: Any) -> Any:
        if not self._states:
            if has_processes(self._placed.mesh):
                self._check_batch(batch)
            self.adopt_variables()
        for state in self._states:
            state.to_mesh()
        results = self.function(self._placed.next_seed(), *self.arguments(batch))
        scalars = [x for x in results if not x.shape]
        check = StepCheck(scalars[0]) if scalars and self._placed.mesh.live else None
        for state in self._updated:
            state.changed_by_step(check)
        values = iter(
            [
                x if not v.shape else tf.constant(x.numpy().reshape(v.shape))
                for x, v in zip(results, self._outputs)
            ]
        )
        return tf.nest.map_structure(
            lambda spec: spec if spec is None else next(values), self._structure
        )

    def abstract_function(self) -> Function[..., Any]:
        """Returns the step as a function that does not run, on the mesh without devices."""
        layout_of = functools.partial(self._placed.layout_of, self.program)
        mesh = abstract_mesh(self._placed.mesh)
        return abstract_function(self.program, self._method, mesh, layout_of)

    def _check_batch(self, batch: Any) -> None:
        """Raises ClusterError if several processes have other numbers in the first batch."""
        arrays = {
            f"array {k} of a batch": np.asarray(x)
            for k, x in enumerate(tensors_of(batch))
        }
        check_processes(self._placed.mesh, arrays, _SAME_BATCHES)

    def adopt_variables(self) -> None:
        """Puts the step's variables on the mesh."""
        placed, program = self._placed, self.program.program
        placed.adopt(self.program)
        self._states = [placed.state_of(key) for key in program.on_entry]
        self._updated = [placed.state_of(key) for key in program.updates]

    def variables_on_mesh(self) -> dict[str, Variable]:
        """Returns the step's variables on the mesh, by the path of Keras' variable, or of the
        first one of repeated layers. They have the newest values, and what is assigned to them
        next counts.
        """
        if not self._states:
            self.adopt_variables()
        variables: dict[str, Variable] = {}
        for state, entry in zip(self._states, self.program.program.on_entry.values()):
            state.to_mesh()
            state.changed_by_step(None)
            stack = self.program.stack_of(entry)
            first = entry.variable if stack is None else stack.variables[0]
            variables[path_of(first)] = state.variable
        return variables

    def arguments(self, batch: Any) -> list[Tensor]:
        """Returns the tensors of a batch with the step's names."""
        named, mesh = self.program, self._placed.mesh
        return [
            asarray(
                mesh,
                np.asarray(x).reshape(named.sizes_of(value)),
                named.shape_of(value),
            )
            for x, value in zip(tensors_of(batch), named.program.inputs)
        ]


def _repeated(model: Any, placed: PlacedVariables) -> list[Repeated]:
    """Returns the layers that a model repeats, which the user has named."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer = None
    return [
        layers.variables(optimizer, model.trainable_variables)
        for layers in placed.settings.repeated
    ]


def warn_of_shapes(name: str, steps: Mapping[Any, TracedStep]) -> None:
    """Warns if a third shape of batches has just run for the first time.

    Args:
        name: What the warning calls the step.
        steps: The steps that ran, by the signature of their batches.
    """
    if len(steps) != _MANY_SHAPES:
        return
    seconds = sum(step.first_seconds for step in steps.values())
    shapes = [
        ", ".join(str(shape) for shape, _ in signature[1:]) for signature in steps
    ]
    warnings.warn(
        explain_error(
            f"batches of {len(steps)} shapes came to {name} so far. Each shape is traced and "
            f"compiled at its first batch: these took {seconds:.1f} s together.",
            shapes="\n".join(shapes),
            way_out="Give it few shapes. Pad lengths to a few: "
            "dataset.bucket_by_sequence_length(..., pad_to_bucket_boundary=True) or "
            "dataset.padded_batch(..., padded_shapes=...); and drop a smaller last batch: "
            "batch(..., drop_remainder=True).",
        ),
        TraceWarning,
        stacklevel=caller_stacklevel(),
    )


def signature_of(batch: Any) -> tuple[Any, ...]:
    """Returns what makes two batches run the same traced step."""
    structure = repr(tf.nest.map_structure(_is_tensor, batch))
    tensors = tensors_of(batch)
    return (structure, *((tuple(x.shape), tf.as_dtype(x.dtype)) for x in tensors))


def tensors_of(batch: Any) -> list[Any]:
    """Returns the tensors of a batch."""
    return [x for x in tf.nest.flatten(batch) if _is_tensor(x)]


def _trace(
    model: Any,
    method: str,
    batch: Any,
    seconds: dict[str, float],
    settings: LayerSettings,
) -> tuple[Any, Program]:
    """Returns a model's step as TensorFlow traced it, and its program."""
    optimizer = getattr(model, "optimizer", None)
    if method == "train_step" and optimizer is not None and model.built:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
    signature = tf.nest.map_structure(_spec_of, batch)
    with (
        tracing(),
        gradients_marked() as marks,
        repeated(model, method) as updates,
        layers_noted(settings) as calls,
    ):

        def step(data: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            marks.start(graph)
            updates.start(graph)
            calls.start()
            with tf.variable_creator_scope(_outside_of_the_trace):
                return getattr(model, method)(data)

        with _timed(seconds, "trace"):
            function = tf.function(step, autograph=False)
            concrete = function.get_concrete_function(signature)
    with tracing(), _timed(seconds, "import"):
        calls.note_lines(concrete.graph)
        variables = variables_of(model)
        handles = {id(v.value.handle) for v in variables}
        variables += [v for v in concrete.variables if id(v.handle) not in handles]
        program = read_function(
            concrete,
            variables,
            marks.marks,
            updates.repeats,
            calls.sections,
            keeps_effects=True,
        )
        calls.check(concrete.graph, program)
    return concrete, program


def _outside_of_the_trace(create: Callable[..., Any], **options: Any) -> Any:
    """Returns a variable that a step creates, as metrics do in their first one.

    `tf.function` traces a function twice if it creates a variable. Of those that another
    thread creates it does not know.

    Args:
        create: What creates the variable within the trace.
        **options: The arguments of `tf.Variable`.
    """
    if not callable(options.get("initial_value")):
        # Its value may depend on what is traced.
        return create(**options)
    names = ("trainable", "name", "dtype", "shape", "aggregation")
    arguments = {name: options[name] for name in names if name in options}
    # Keras' generators of random numbers are those of this thread.
    with tf.init_scope():
        arguments["initial_value"] = options["initial_value"]()
    with futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(tf.Variable, **arguments).result()


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Adds the processor time of a block."""
    start = time.process_time()
    yield
    seconds[name] += time.process_time() - start


def variables_of(model: Any) -> list[Any]:
    """Returns a model's variables, those of its optimizers and of its metrics."""
    variables = [*model.variables, *model.metrics_variables]
    for attribute in [getattr(model, "optimizer", None), *vars(model).values()]:
        if isinstance(attribute, keras.optimizers.Optimizer):
            variables += attribute.variables
    return list({id(v): v for v in variables}.values())


def _is_tensor(x: Any) -> bool:
    """Whether a leaf of a batch is a tensor: None, or an absent value, is none."""
    return x is not None and not isinstance(x, tf.experimental.Optional)


def _spec_of(x: Any) -> Any:
    if not _is_tensor(x):
        return None
    if isinstance(x, (tf.RaggedTensor, tf.SparseTensor)):
        raise ArgumentError(
            f"a batch has a {type(x).__name__}: a mesh runs dense tensors; use "
            "`to_tensor` or `tf.sparse.to_dense` in the dataset"
        )
    return tf.TensorSpec(x.shape, x.dtype)
