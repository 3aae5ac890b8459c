"""A call of a function of named tensors as plain TensorFlow operations on one device.

    traced = trace(fn, names, signature, variables, chunk=32)
    results, new_values = traced(weights, [x])

What is traced is a pure function of its weights and its inputs. So a file can store it, and layers
can share it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from meshtf.errors import ArgumentError, PlanError, explain_error
from meshtf.function.function import Function
from meshtf.function.recording import RESULT, Recording
from meshtf.graph import Spec
from meshtf.keras.named_layer.signature import Signature, batch_of
from meshtf.mesh import Mesh
from meshtf.names import Shape, nested
from meshtf.ops.control.custom_gradient import Result
from meshtf.ops.control.seeds import seed
from meshtf.partition import Compute, Program, build, walk
from meshtf.runtime.spmd.module.unsupported import refuse_effects
from meshtf.runtime.variable import Variable
from meshtf.saved_model.batch_axes import batch_axes
from meshtf.saved_model.single_device import SingleDevice, unsharded_value
from meshtf.saved_model.sizes import BatchAxes, check_sizes, in_chunks

_SEEDS = ("number", "step", "step_chunk")  # sorted, as the arguments of a dict are
_CHUNKS = (
    "Say how many entries a batch has: keras.Input(..., batch_size=32), and batches of this "
    "size alone. Or let each entry of the result depend on one entry."
)


class TracedCall(NamedTuple):
    """A function for inputs of one signature.

    Attributes:
        function: TensorFlow's function, of weights and inputs: the results, and then new
            values of variables.
        outputs: The structure of the results, a `keras.KerasTensor` for each.
        written: The indices of the variables that the function writes.
        batch: The axes of a batch of any size, by the indices of inputs and results as text;
            None: the batch has one size.
    """

    function: Callable[..., Sequence[Any]]
    outputs: Any
    written: Sequence[int]
    batch: BatchAxes | None

    def __call__(
        self, weights: Sequence[Any], inputs: Sequence[Any], seeds: Sequence[Any]
    ) -> tuple[Any, dict[int, Any]]:
        """Returns the results, and the new value of each variable that is written, by index.

        Args:
            weights: The value of each variable.
            inputs: The inputs, TensorFlow tensors.
            seeds: Two scalars of int32; none if the function draws no random numbers.
        """

        def run(xs: Mapping[str, Any], index: Any) -> dict[str, Any]:
            indices = [index] if len(seeds) else []
            ys = self.function(*weights, *xs.values(), *seeds, *indices)
            return _by_index(ys)

        xs = _by_index(inputs)
        if self.batch is None:
            values = run(xs, tf.constant(0))
        else:
            values = in_chunks(run, xs, self._specs(self.batch.chunk), self.batch)
        ys = list(values.values())
        count = len(nested.flatten(self.outputs))
        results = nested.pack_sequence_as(self.outputs, ys[:count])
        return results, dict(zip(self.written, ys[count:]))

    def _specs(self, chunk: int) -> dict[str, Spec]:
        """Returns the shape and type of the results of a chunk."""
        specs = {}
        for k, y in enumerate(nested.flatten(self.outputs)):
            sizes = [chunk if size is None else size for size in y.shape]
            shape = Shape([(f"axis_{i}", size) for i, size in enumerate(sizes)])
            specs[str(k)] = Spec(shape, y.dtype)
        return specs


def _by_index(values: Sequence[Any]) -> dict[str, Any]:
    return {str(k): x for k, x in enumerate(values)}


def trace(
    fn: Callable[..., Any],
    names: Mapping[str, str],
    signature: Signature,
    variables: Sequence[Variable],
    chunk: int,
    is_seeded: bool,
) -> TracedCall:
    """Traces a call of a function.

    Args:
        fn: The function of named tensors.
        names: The dimensions of its inputs, by parameter.
        signature: The sizes and types of its inputs.
        variables: The variables that it may read and write, on any mesh.
        chunk: The number of entries that are computed at once, of a batch of any size.
        is_seeded: Whether each call has seeds.

    Raises:
        ArgumentError: A result is no tensor.
        PlanError: The function uses a variable that is not among them, prints or writes
            summaries, has a gradient that it defines itself; or an operation needs the whole
            batch, whose size is unknown.
    """
    specs = {}
    for name, (sizes, dtype) in zip(names, signature.inputs):
        known = [chunk if size is None else size for size in sizes]
        specs[name] = tf.TensorSpec(known, dtype)
    recording = _record(fn, names, specs, signature.training, is_seeded)
    recorded = recording.recorded
    program = build(recorded.nodes, recorded.results, recorded.mesh)
    refuse_effects(program)
    written = _check(program, variables)
    batch = None
    if signature.is_any_batch:
        batch = _batch(recording, names, written, variables)
    by_name = dict(zip(sorted(names), recording.arguments))
    seeds = recording.arguments[len(names) :]
    stores = [*(by_name[name] for name in names), *seeds]
    function = _function(program, stores, variables, written)
    return TracedCall(function, _outputs(recording, batch), written, batch)


def _record(
    fn: Callable[..., Any],
    names: Mapping[str, str],
    specs: Mapping[str, Any],
    training: bool,
    is_seeded: bool,
) -> Recording:
    """Records the call for a mesh of one position."""
    settings = {}
    if "training" in inspect.signature(fn).parameters:
        settings["training"] = training

    def call(inputs: Mapping[str, Any], seeds: Mapping[str, Any]) -> Any:
        with seed(*seeds.values()) if seeds else contextlib.nullcontext():
            return fn(**inputs, **settings)

    seeds = _SEEDS if is_seeded else ()
    scalars = {name: tf.TensorSpec([], "int32") for name in seeds}
    seed_names = dict.fromkeys(_SEEDS, "")
    function = Function(call, names={"inputs": dict(names), "seeds": seed_names})
    return function.record_on(Mesh(""), (dict(specs), scalars), {})


def _check(program: Program, variables: Sequence[Variable]) -> list[int]:
    """Returns the indices of the variables that a program writes.

    Raises:
        PlanError: It uses other variables, or has a gradient that a user defines.
    """
    written: dict[int, None] = {}
    for step, _ in walk(program):
        for store in step.reads:
            if isinstance(store, Variable):
                _index(store, variables)
        written.update((_index(v, variables), None) for v in step.writes)
        compute = step.computation
        if compute is not None and isinstance(compute.node.op, Result):
            _refuse_gradient(compute)
    return list(written)


def _index(variable: Any, variables: Sequence[Variable]) -> int:
    """Returns the index of a variable."""
    for k, known in enumerate(variables):
        if known is variable:
            return k
    raise PlanError(
        explain_error(
            f"the function of a Keras layer uses the variable {variable.name!r}, which is no "
            "weight of the layer: it would not train, nor be saved.",
            weights=", ".join(v.name for v in variables) or "none",
            way_out="Name it, or the module that has it: mtf.keras.Layer(fn, inputs, "
            "variables=[module]).",
        )
    )


def _refuse_gradient(step: Compute) -> None:
    """Raises PlanError for a gradient that a user defines: TensorFlow would take another one.
    Rules of meshtf's layers compute the gradient of the function, in another way.
    """
    rule = getattr(step.node.gradient_rule, "gradient", None)
    rule = getattr(rule, "keywords", {}).get("rule", rule)
    if getattr(rule, "__module__", "").split(".")[0] == "meshtf":
        return
    raise PlanError(
        explain_error(
            "the function of a Keras layer defines a gradient of its own, which Keras would not "
            "use.",
            result=repr(step.node.outputs[0]),
            source=step.node.source,
            way_out="Write this part in TensorFlow, with tf.custom_gradient, as a layer before "
            "or after this one.",
        )
    )


def _batch(
    recording: Recording,
    names: Mapping[str, str],
    written: Sequence[int],
    variables: Sequence[Variable],
) -> BatchAxes:
    """Returns the axes of a batch of any size.

    Raises:
        PlanError: An operation needs all of it.
    """
    dim = batch_of(names)
    assert dim is not None  # it has no size
    if written:
        raise PlanError(
            explain_error(
                f"the function writes the variable {variables[written[0]].name!r}, once for a "
                f"batch, and the size of {dim!r} is unknown.",
                way_out=_CHUNKS,
            )
        )
    order = list(names)
    seeds = recording.arguments[len(names) :]
    inputs = [str(order.index(name)) for name in sorted(names)]
    inputs += [store.name for store in seeds]
    outputs = [str(k) for k in range(len(recording.recorded.results))]
    return batch_axes(dim, recording, inputs, outputs, _CHUNKS, draws=bool(seeds))


def _outputs(recording: Recording, batch: BatchAxes | None) -> Any:
    """Returns the results' structure, with their shapes as Keras has them."""
    axes = {} if batch is None else batch.outputs
    outputs = []
    for k, y in enumerate(recording.recorded.results):
        sizes: list[int | None] = list(y.shape.sizes)
        if str(k) in axes:
            sizes[axes[str(k)]] = None
        outputs.append(keras.KerasTensor(sizes, y.dtype))
    leaves = nested.flatten(recording.structure)
    if not outputs or any(leaf is not RESULT for leaf in leaves):
        kinds = ", ".join(type(leaf).__name__ for leaf in leaves if leaf is not RESULT)
        raise ArgumentError(
            explain_error(
                "the function of a Keras layer returns tensors, in lists, tuples or dicts.",
                returned=kinds or "nothing",
                way_out="Return only tensors.",
            )
        )
    return nested.pack_sequence_as(recording.structure, outputs)


def _function(
    program: Program,
    stores: Sequence[Any],
    variables: Sequence[Variable],
    written: Sequence[int],
) -> Any:
    """Returns a TensorFlow function of the variables' values and the inputs.

    Args:
        program: What it runs.
        stores: Where the program reads each input.
        variables: The variables.
        written: The indices of those whose new values follow the results.
    """
    with tf.init_scope():  # Keras may trace a step of its own
        constants = {
            store: unsharded_value(store)
            for store in program.read_stores
            if store.kind != "number" and store not in (*variables, *stores)
        }

    def run(*values: Any) -> list[Any]:
        known = dict(constants) | dict(zip(variables, values))
        for store, x in zip(stores, values[len(variables) :]):
            known[store] = check_sizes(store.name, x, store.spec.shape.sizes)
        device = SingleDevice(program, known)
        results = device.run()
        return [*results, *(device.store_values[variables[k]] for k in written)]

    specs = [
        tf.TensorSpec(store.spec.shape.sizes, store.spec.dtype)
        for store in (*variables, *stores)
    ]
    return tf.function(run, specs, autograph=False)
