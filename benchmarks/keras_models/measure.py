"""Three steps of a model's `fit` on eight positions, beside Keras."""

from __future__ import annotations

import dataclasses
import time
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import meshtf as mtf
from benchmarks.keras_models.configurations import IN_FLOAT32, Configuration, build
from benchmarks.keras_models.sharding import Work

AXES = "data:4; model:2"
# Between runs in float64; models that compute in float32 within reach the second one.
_EQUAL, _EQUAL_IN_FLOAT32 = 1e-9, 1e-5


@dataclasses.dataclass
class Result:
    """What a model gave.

    Attributes:
        source, name: The configuration.
        loss: The difference of the losses, relative to Keras'.
        weights: The largest difference of weights, relative to the largest weight of a variable.
        by_batch, by_model: The shares of FLOPs that the data axis and a model axis shard.
        batches: What the data axis shards: "batch"; of a graph the edges as well.
        names: What the model axis shards.
        replicated: By kind, how many operations run replicated.
        keras_seconds, seconds: Of `fit`, its first step included.
        error: Why it did not run.
    """

    source: str
    name: str
    loss: float = 0.0
    weights: float = 0.0
    by_batch: float = 0.0
    by_model: float = 0.0
    batches: list[str] = dataclasses.field(default_factory=list)
    names: list[str] = dataclasses.field(default_factory=list)
    replicated: dict[str, int] = dataclasses.field(default_factory=dict)
    keras_seconds: float = 0.0
    seconds: float = 0.0
    error: str = ""

    @property
    def equal(self) -> str:
        """How near the run is to Keras'."""
        if self.error:
            return "failed"
        off = max(self.loss, self.weights)
        if off <= _EQUAL:
            return "1e-9"
        return "1e-5" if off <= _EQUAL_IN_FLOAT32 else f"off by {off:.0e}"


def measure(configuration: Configuration) -> Result:
    """Runs a model on one device and on a mesh."""
    result = Result(*configuration)
    warnings.simplefilter("ignore")
    is_float32 = configuration.name in IN_FLOAT32
    keras.config.set_floatx("float32" if is_float32 else "float64")
    try:
        _measure(configuration, result)
    except Exception as error:
        result.error = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    keras.backend.clear_session()
    return result


def _measure(configuration: Configuration, result: Result) -> None:
    reference, history, result.keras_seconds = _fit(configuration, None)
    work = Work(*traced_step(configuration))
    result.by_batch, result.by_model = work.by_batch, work.by_model
    result.batches, result.names = work.batches, work.names
    rules = [f"{name}:data" for name in work.batches]
    rules += [f"{name}:model" for name in work.names]
    mesh = mtf.Mesh(AXES, "; ".join(rules))
    model, mesh_history, result.seconds = _fit(configuration, mesh)
    (named,) = model._meshtf_steps
    result.replicated = dict(named.program.lowering.replicated)
    result.loss = abs(mesh_history / history - 1)
    pairs = zip(reference.variables, model.variables)
    result.weights = max(_difference(a.numpy(), b.numpy()) for a, b in pairs)


def _difference(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x.astype("float64"), y.astype("float64")
    return float(np.abs(x - y).max() / (np.abs(x).max() + 1e-9))


def _compiled(configuration: Configuration) -> tuple[Any, tf.data.Dataset]:
    model, inputs, labels = build(configuration)
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    inputs = [tuple(x) if isinstance(x, list) else x for x in inputs]
    batches = list(zip(inputs, labels))
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), batches[0])
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=specs
    )
    return model, dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))


def traced_step(configuration: Configuration) -> tuple[Any, Any]:
    """Returns a model's training step, of which nothing runs, and a batch."""
    model, dataset = _compiled(configuration)
    named = mtf.keras.distribute(model, mtf.Mesh("data:1"))
    batch = next(iter(dataset))
    step = named.step("train_step", batch)
    step.adopt_variables()
    return step, batch


def _fit(
    configuration: Configuration, mesh: mtf.Mesh | None
) -> tuple[keras.Model, float, float]:
    """Returns a model after three steps, its loss, and the seconds."""
    model, dataset = _compiled(configuration)
    if mesh is not None:
        named = mtf.keras.distribute(model, mesh)
    begin = time.perf_counter()
    history = model.fit(dataset, epochs=1, verbose=0).history
    seconds = time.perf_counter() - begin
    if mesh is not None:
        batch = next(iter(dataset))
        model._meshtf_steps = [named.step("train_step", batch)]
    return model, history["loss"][-1], seconds
