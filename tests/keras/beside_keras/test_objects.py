"""All of Keras' optimizers, schedules, losses and metrics, by a loop over its modules."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.keras.models import compiled

layers = keras.layers
optimizers = keras.optimizers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6))
CLASSES = RNG.integers(0, 5, 12)
SHARES = RNG.dirichlet(np.ones(5), 12)


def subclasses(module: Any, base: type) -> list[str]:
    """Returns names of a module's classes that have a base class, each class once."""
    names = [name for name in sorted(dir(module)) if name[0].isupper()]
    classes = {name: getattr(module, name) for name in names}
    return [
        name
        for name, cls in classes.items()
        if isinstance(cls, type) and issubclass(cls, base) and cls is not base
    ]


def dense() -> keras.Model:
    """Two dense layers."""
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(5)(layers.Dense(4)(inputs)))


def run_both(
    build: Any,
    optimizer: Any,
    x: Any,
    y: Any,
    steps: int,
    rtol: float = 1e-9,
    **settings: Any,
) -> None:
    """Compares some steps on one device and on a mesh."""
    atol = rtol / 1000
    results = []
    for mesh in (None, mtf.Mesh("data:2", "batch:data")):
        model = compiled(build, optimizer, mesh, **settings)
        # Keras loses what `build` assigns if that happens in a trace.
        model.optimizer.build(model.trainable_variables)
        logs = [model.train_on_batch(x, y, return_dict=True) for _ in range(steps)]
        results.append((logs, [v.numpy() for v in model.variables]))
    for log, expected in zip(results[1][0], results[0][0]):
        assert log.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(log[name], value, rtol, atol, err_msg=name)
    for value, expected in zip(results[1][1], results[0][1]):
        np.testing.assert_allclose(value, expected, rtol, atol)


SPECIAL = {
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(optimizers.SGD()),
    "MultiOptimizer": lambda: optimizers.MultiOptimizer(
        optimizers.OptimizerMap(optimizers.SGD(), {"dense/.*": optimizers.Adam()})
    ),
}
SETTINGS = {
    "clipnorm": {"clipnorm": 0.1},
    "global_clipnorm": {"global_clipnorm": 0.1},
    "clipvalue": {"clipvalue": 0.01},
    "loss_scale_factor": {"loss_scale_factor": 8.0},
    "learning_rate": {"learning_rate": lambda: 0.1},
}


def embedded() -> keras.Model:
    """An embedding, of which most rows are not named and some twice, and a dense layer."""
    inputs = keras.Input((4,), dtype="int64")
    x = layers.Embedding(20, 6)(inputs)
    return keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling1D()(x)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", subclasses(optimizers, optimizers.Optimizer))
def test_optimizers(name) -> None:
    """Three steps, with rows of an embedding: those that are not named, and their slots, are
    what Keras on TensorFlow makes of them.
    """
    make = SPECIAL.get(name) or getattr(optimizers, name)
    build = dense if name in SPECIAL else embedded
    x = X if name in SPECIAL else RNG.integers(0, 9, (12, 4))
    run_both(build, make, x, SHARES, 3, loss="mse")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_optimizers(name) -> None:
    run_both(
        dense, lambda: optimizers.AdamW(**SETTINGS[name]), X, SHARES, 2, loss="mse"
    )


SCHEDULES = {
    "CosineDecay": {"decay_steps": 10, "warmup_target": 0.2, "warmup_steps": 2},
    "CosineDecayRestarts": {"first_decay_steps": 2},
    "ExponentialDecay": {"decay_steps": 2, "decay_rate": 0.9, "staircase": True},
    "InverseTimeDecay": {"decay_steps": 2, "decay_rate": 0.9},
    "PiecewiseConstantDecay": {"boundaries": [1, 2], "values": [0.1, 0.2, 0.3]},
    "PolynomialDecay": {"decay_steps": 2, "cycle": True},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", subclasses(optimizers.schedules, optimizers.schedules.LearningRateSchedule)
)
def test_schedules(name) -> None:
    settings = dict(SCHEDULES[name])
    if "values" not in settings:
        settings["initial_learning_rate"] = 0.1

    def optimizer():
        return optimizers.SGD(getattr(optimizers.schedules, name)(**settings))

    run_both(dense, optimizer, X, SHARES, 4, loss="mse")


def test_losses() -> None:
    """All in one model, which has an output for each."""
    names = [
        n
        for n in subclasses(keras.losses, keras.losses.Loss)
        if n not in ("CTC", "Circle")
    ]

    def build():
        x = inputs = keras.Input((6,))
        outputs = {n: layers.Dense(5, "sigmoid", name=n)(x) for n in names}
        return keras.Model(inputs, outputs)

    sparse = ("Sparse", "CategoricalGeneralized")
    labels = {n: CLASSES if n.startswith(sparse) else SHARES for n in names}
    losses = {n: getattr(keras.losses, n)() for n in names}
    run_both(build, optimizers.SGD, X, labels, 2, loss=losses)


def test_the_circle_loss() -> None:
    run_both(dense, optimizers.SGD, X, CLASSES, 2, loss=keras.losses.Circle())


def frames() -> keras.Model:
    """Scores of five classes for each of nine frames."""
    inputs = keras.Input((9, 3))
    return keras.Model(inputs, layers.Dense(5)(inputs))


def test_the_ctc_loss() -> None:
    """Labels of several lengths, some twice in a row: its loops over frames are scans. It
    computes in float32.
    """
    x = RNG.normal(size=(12, 9, 3))
    y = RNG.integers(1, 5, (12, 4))
    y[::2, 3:] = 0
    y[::3, 1] = y[::3, 0]
    results = []
    for mesh in (None, mtf.Mesh("data:4; model:2", "batch:data; classes:model")):
        model = compiled(frames, optimizers.SGD, mesh, loss=keras.losses.CTC())
        logs = [model.train_on_batch(x, y) for _ in range(3)]
        results.append((logs, model.get_weights()))
    np.testing.assert_allclose(results[1][0], results[0][0], 1e-6)
    for value, expected in zip(results[1][1], results[0][1]):
        np.testing.assert_allclose(value, expected, 1e-6, 1e-6)


class Tracked(keras.Model):
    """`Mean` and `Sum` take values and weights, and no labels: steps of one's own use them."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = layers.Dense(5)
        self.mean = keras.metrics.Mean()
        self.total = keras.metrics.Sum()

    def call(self, x: Any) -> Any:
        return self.scores(x)

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data[:2]
        errors = keras.ops.square(self(x) - y)
        self.mean.update_state(errors, sample_weight=errors[:, :1])
        self.total.update_state(errors)
        return {"mean": self.mean.result(), "sum": self.total.result()}


def test_metrics_without_labels() -> None:
    def build():
        model = Tracked()
        model(X)
        return model

    results = []
    for mesh in (None, mtf.Mesh("data:2", "batch:data")):
        model = compiled(build, optimizers.SGD, mesh)
        results.append(model.evaluate(X, SHARES, 4, verbose=0, return_dict=True))
    for name in ("mean", "sum"):
        np.testing.assert_allclose(results[1][name], results[0][name], 1e-9)


PENALTIES = {
    "L1": {"l1": 0.1},
    "L2": {"l2": 0.1},
    "L1L2": {"l1": 0.1, "l2": 0.2},
    "OrthogonalRegularizer": {"factor": 0.1},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", subclasses(keras.regularizers, keras.regularizers.Regularizer)
)
def test_regularizers(name) -> None:
    def build():
        penalty = getattr(keras.regularizers, name)(**PENALTIES[name])
        hidden = layers.Dense(4, kernel_regularizer=penalty)
        inputs = keras.Input((6,))
        return keras.Model(inputs, layers.Dense(5)(hidden(inputs)))

    rtol = 1e-9
    if not _takes_float64(getattr(keras.regularizers, name)(**PENALTIES[name])):
        keras.config.set_floatx("float32")
        rtol = 1e-5
    run_both(build, optimizers.SGD, X, SHARES, 2, rtol, loss="mse")


def _takes_float64(penalty) -> bool:
    """Orthogonal penalties do not, and in Keras 3.13 nor does L1."""
    try:
        penalty(keras.ops.ones((2, 2), "float64"))
    except (TypeError, tf.errors.InvalidArgumentError):
        return False
    return True


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", subclasses(keras.constraints, keras.constraints.Constraint)
)
def test_constraints(name) -> None:
    """They change what the optimizer assigned."""

    def build():
        constraint = getattr(keras.constraints, name)()
        hidden = layers.Dense(4, kernel_constraint=constraint)
        inputs = keras.Input((6,))
        return keras.Model(inputs, layers.Dense(5)(hidden(inputs)))

    run_both(build, optimizers.SGD, X, SHARES, 2, loss="mse")


def metric_of(name: str) -> keras.metrics.Metric:
    """Returns a metric with the settings that it needs."""
    cls = getattr(keras.metrics, name)
    if name in ("IoU", "OneHotIoU"):
        return cls(5, [1], name=name)
    if "IoU" in name and name != "BinaryIoU":
        return cls(5, name=name)
    if "At" in name:
        return cls(0.5, name=name)
    if name == "MeanMetricWrapper":
        return cls(keras.losses.mean_squared_error, name=name)
    return cls(name=name)


# Before Keras 3.12 the best threshold is one of those that fit, whose number depends on values.
OF_THRESHOLDS = (
    "PrecisionAtRecall",
    "RecallAtPrecision",
    "SensitivityAtSpecificity",
    "SpecificityAtSensitivity",
)


def test_metrics() -> None:
    """All in one model, by the labels that they take."""
    excluded = ["Mean", "Sum"]
    if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 12):
        excluded += OF_THRESHOLDS
    metrics = subclasses(keras.metrics, keras.metrics.Metric)
    names = [n for n in metrics if n not in excluded]
    # These functions of TensorFlow take no float64.
    in_top = [n for n in names if "TopK" in n]
    binary = ["BinaryIoU"]
    scalar = ["IoU", "MeanIoU"]
    sparse = [n for n in names if n.startswith("Sparse") and n not in in_top]
    dense_labels = [n for n in names if n not in {*in_top, *binary, *scalar, *sparse}]
    groups = {"a": dense_labels, "b": sparse, "c": scalar, "d": binary}

    def build():
        x = inputs = keras.Input((6,))
        sizes = {"a": 5, "b": 5, "c": 1, "d": 1}
        outputs = {n: layers.Dense(k, "sigmoid", name=n)(x) for n, k in sizes.items()}
        return keras.Model(inputs, outputs)

    results = []
    for mesh in (None, mtf.Mesh("data:2", "batch:data")):
        metrics = {k: [metric_of(n) for n in group] for k, group in groups.items()}
        model = compiled(
            build,
            optimizers.SGD,
            mesh,
            loss=dict.fromkeys(groups, "mse"),
            metrics=metrics,
        )
        column = CLASSES[:, None]
        labels = {"a": SHARES, "b": column, "c": column, "d": column % 2}
        results.append(model.test_on_batch(X, labels, return_dict=True))
    assert len(results[0]) >= sum(map(len, groups.values()))
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, 1e-9, err_msg=name)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["TopK", "SparseTopK"])
def test_metrics_of_the_largest(name) -> None:
    keras.config.set_floatx("float32")
    y = CLASSES if name.startswith("Sparse") else SHARES
    metric = getattr(keras.metrics, f"{name}CategoricalAccuracy")
    results = []
    for mesh in (None, mtf.Mesh("data:2", "batch:data")):
        loss = "sparse_categorical_crossentropy" if y is CLASSES else "mse"
        model = compiled(dense, optimizers.SGD, mesh, loss=loss, metrics=[metric(k=2)])
        results.append(model.evaluate(X, y, verbose=0, return_dict=True))
    assert results[1] == pytest.approx(results[0], rel=1e-6)
