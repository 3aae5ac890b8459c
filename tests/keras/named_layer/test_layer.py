"""A module of meshtf as a Keras layer: it trains, on one device and on a mesh, as Keras' do."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.keras.named_layer.nets import FIT, Hidden, X, Y, trained

EIGHT = mtf.Mesh("data:4; model:2", "batch:data; d_ff:model")
ONE = mtf.Mesh("")
SCALE = mtf.Variable(ONE, "d_model:8", "ones", name="scale", dtype="float64")


def hidden_layer(mesh: mtf.Mesh = ONE, rate: float = 0.0, **options: Any) -> Any:
    """Returns a layer of `Hidden`."""
    return mtf.keras.Layer(Hidden(mesh, rate), "batch; d_model", **options)


def scaled(x: mtf.Tensor) -> mtf.Tensor:
    """Multiplies by a variable."""
    return x * SCALE


@pytest.mark.parametrize(
    ("inputs", "chunk_size"), [({}, 3), ({"batch_size": 4}, 32)], ids=["any", "fixed"]
)
def test_it_trains_as_a_layer_of_keras(inputs: Any, chunk_size: int) -> None:
    net = Hidden(EIGHT)
    layer = mtf.keras.Layer(net, "batch; d_model", chunk_size=chunk_size)
    dense = keras.layers.Dense(16, "tanh")
    dense.build((None, 8))
    dense.set_weights([net.w.numpy(), net.b.numpy()])
    model, losses = trained(layer, **inputs)
    reference, expected = trained(dense, **inputs)
    np.testing.assert_allclose(losses, expected, 1e-9)
    assert model.count_params() == reference.count_params()
    assert [w.name for w in layer.weights] == ["hidden.b", "hidden.w"]
    for weight, other in zip(layer.weights[::-1], dense.weights):
        np.testing.assert_allclose(weight.numpy(), other.numpy(), 1e-7, 1e-9)


def test_on_a_mesh_it_trains_as_on_one_device_with_its_names(tmp_path: Any) -> None:
    _, expected = trained(hidden_layer())
    model, losses = trained(hidden_layer(), EIGHT)
    np.testing.assert_allclose(losses, expected, 1e-9)
    named = mtf.keras.distribute(model, EIGHT)
    assert named.dimensions["d_ff"].sharded == "model"
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras", safe_mode=False)
    np.testing.assert_allclose(loaded(X), model(X), 1e-9)
    assert list(loaded.layers[1].axis_names.values()) == [["d_ff"], ["d_model", "d_ff"]]
    with pytest.raises(mtf.ArgumentError, match="loaded(.*\n)*.*load_weights"):
        mtf.keras.distribute(loaded, EIGHT)


def test_random_numbers_are_new_in_each_call_and_equal_on_a_mesh() -> None:
    layer = hidden_layer(rate=0.5, seed=3, chunk_size=4)
    x = keras.Input([8])
    step = tf.function(keras.Model(x, layer(x)), input_signature=[x_spec()])
    first, second = (np.asarray(layer(X, training=True)) for _ in range(2))
    assert 0.3 < np.mean(first == 0.0) < 0.7
    assert not np.array_equal(first, second)
    assert not np.any(np.asarray(layer(X)) == 0.0)
    np.testing.assert_array_equal(step(X), layer(X))
    sizes = {"batch_size": 4}
    _, expected = trained(hidden_layer(rate=0.5, seed=3), **sizes)
    _, losses = trained(hidden_layer(rate=0.5, seed=3), EIGHT, **sizes)
    np.testing.assert_allclose(losses, expected, 1e-9)


def x_spec() -> tf.TensorSpec:
    """Returns the spec of a batch of any size."""
    return tf.TensorSpec([None, 8], "float64")


def test_chunks_of_one_batch_draw_different_numbers() -> None:
    layer = hidden_layer(rate=0.5, seed=3, chunk_size=11)

    @tf.function(input_signature=[x_spec()])
    def call(x: tf.Tensor) -> tf.Tensor:
        return layer(x, training=True)

    dropped = call(X).numpy() == 0.0
    assert not np.array_equal(dropped[:11], dropped[11:])


def test_write_back_assigns_to_variables_of_any_mesh() -> None:
    net = Hidden(EIGHT)
    layer = mtf.keras.Layer(net, "batch; d_model")
    before = net.w.numpy()
    trained(layer)
    np.testing.assert_array_equal(net.w.numpy(), before)
    layer.write_back()
    other = Hidden(ONE)
    layer.write_back(other)
    for each in (net, other):
        y = each(mtf.asarray(each.w.mesh, X, "batch; d_model"), False)
        np.testing.assert_allclose(y.numpy(), layer(X), 1e-12)
    with pytest.raises(
        mtf.ArgumentError, match=r"weight 'hidden/b'.*\n +similar +hidden/w"
    ):
        layer.write_back([other.w])


def test_batch_norm_keeps_its_averages() -> None:
    norm = mtf.layers.BatchNorm(ONE, "d_model:8", name="norm")
    layer = mtf.keras.Layer(norm, "batch; d_model")
    x = X.astype("float32")
    y = layer(x, training=True)
    layer.write_back()
    moving = {v.path: v.numpy() for v in norm.variables}
    fresh = mtf.layers.BatchNorm(ONE, "d_model:8", name="norm")
    expected = fresh(mtf.asarray(ONE, x, "batch; d_model"), True)
    np.testing.assert_allclose(y, expected.numpy(), 1e-5, 1e-6)
    for variable in fresh.variables:
        np.testing.assert_allclose(moving[variable.path], variable.numpy(), 1e-5, 1e-6)
    assert len(layer.trainable_weights) == len(layer.non_trainable_weights) == 2


def test_gradients_are_those_of_meshtf() -> None:
    def fn(x: mtf.Tensor) -> mtf.Tensor:
        return x * mtf.stop_gradient(x * SCALE) + mtf.exp(x * SCALE)

    layer = mtf.keras.Layer(fn, "batch; d_model", variables=SCALE)
    x = tf.constant(X)
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = layer(x)
        dx = inner.gradient(y, x)
    named = mtf.asarray(ONE, X, "batch; d_model")
    expected = mtf.gradients([fn(named)], [named, SCALE])
    np.testing.assert_allclose(dx, expected[0].numpy(), 1e-12)
    (scale,) = layer.trainable_weights
    np.testing.assert_allclose(
        outer.gradient(y, scale.value), expected[1].numpy(), 1e-9
    )
    np.testing.assert_allclose(outer.gradient(dx, x), np.exp(X), 1e-9)


def after_shift(x: mtf.Tensor) -> mtf.Tensor:
    """Multiplies by a variable, after a shift."""
    return scaled(x + 1.0)


CONSTRUCTS = {
    "branch": lambda x: mtf.cond(
        mtf.reduce_sum(x) > 0.0, lambda: scaled(x), lambda: x * x
    ),
    "loop": lambda x: mtf.scan(
        lambda c, xs: (mtf.tanh(c + scaled(xs)), c),
        mtf.zeros(x.mesh, "d_model:8", dtype="float64"),
        x,
        "batch",
    )[1],
    "recomputed": lambda x: mtf.exp(mtf.recompute(after_shift)(x)),
    "function": lambda x: mtf.function(after_shift)(x) * x,
    "softmax": lambda x: mtf.softmax(scaled(x), "d_model") * x,
}


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_gradients_of_constructs_are_those_of_meshtf(name: str) -> None:
    fn = CONSTRUCTS[name]
    layer = mtf.keras.Layer(fn, "batch; d_model", variables=SCALE)
    x, named = tf.constant(X), mtf.asarray(ONE, X, "batch; d_model")
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    sources = [x, *(w.value for w in layer.weights)]
    result = fn(named)
    np.testing.assert_allclose(y, result.numpy(), 1e-9)
    expected = mtf.gradients([result], [named, SCALE])
    for dx, dy in zip(tape.gradient(y, sources), expected):
        np.testing.assert_allclose(dx, dy.numpy(), 1e-9, 1e-12)


def test_several_inputs_and_results() -> None:
    def fn(x: mtf.Tensor, weights: mtf.Tensor) -> dict[str, Any]:
        y = scaled(x) * weights
        return {"y": y, "all": (mtf.reduce_sum(y, "d_model"), y > 0.0)}

    names = {"x": "batch; d_model", "weights": "batch"}
    layer = mtf.keras.Layer(fn, names, variables=[SCALE])
    x, weights = keras.Input([8]), keras.Input([])
    model = keras.Model([x, weights], layer(x, weights=weights))
    results = model.predict([X, X[:, 0]], batch_size=5, verbose=0)
    y = X * X[:, :1]
    np.testing.assert_allclose(results["y"], y)
    np.testing.assert_allclose(results["all"][0], y.sum(1))
    np.testing.assert_array_equal(results["all"][1], y > 0)
    assert model.output["all"][0].shape == (None,)


def test_variables_of_a_method_and_types_of_inputs() -> None:
    class Net(mtf.Module):
        def __init__(self) -> None:
            super().__init__("net")
            self.w = mtf.Variable(ONE, "d_model:8", "ones")

        @mtf.function
        def step(self, x: mtf.Tensor) -> mtf.Tensor:
            return x * self.w

        def plain(self, x: mtf.Tensor) -> mtf.Tensor:
            return x * self.w

    net = Net()
    keras.config.set_dtype_policy("mixed_bfloat16")
    for method in (net.step, net.plain):
        layer = mtf.keras.Layer(method, "batch; d_model", trainable=False)
        assert layer(X).dtype == "float32"
        assert (len(layer.weights), layer.trainable_weights) == (1, [])


@mtf.custom_gradient
def clipped(x: mtf.Tensor) -> Any:
    return x, lambda dy: [mtf.clip(dy, -1.0, 1.0)]


def centered(x: mtf.Tensor) -> mtf.Tensor:
    return x - mtf.reduce_mean(x, "batch")


ABSTRACT = mtf.Mesh("data:2", devices="abstract")
NAMES = "batch; d_model"
REFUSED = {
    "type of fn": (mtf.ArgumentError, "takes a function", lambda L: L(3, NAMES)),
    "type of inputs": (
        mtf.ArgumentError,
        "'inputs'|\"inputs\"",
        lambda L: L(scaled, 3),
    ),
    "parameter": (
        mtf.ArgumentError,
        "a parameter 'y'.*\n *parameters *x",
        lambda L: L(scaled, {"y": NAMES}),
    ),
    "type of variables": (
        mtf.ArgumentError,
        "takes a module or a variable",
        lambda L: L(scaled, NAMES, variables=[3]),
    ),
    "no values": (
        mtf.MeshError,
        "abstract",
        lambda L: L(Hidden(ABSTRACT), NAMES),
    ),
    "missing variable": (
        mtf.PlanError,
        "uses the variable 'scale', which is no weight",
        lambda L: L(scaled, NAMES)(X),
    ),
    "rank": (
        mtf.ShapeError,
        "'x' .* has 2 axes, but 3 names",
        lambda L: L(scaled, "batch; length; d_model", variables=SCALE)(X),
    ),
    "unknown size": (
        mtf.ShapeError,
        "'x' .* has no size along 'length'",
        lambda L: L(scaled, "batch; length; d_model", variables=SCALE)(
            keras.Input([None, 8])
        ),
    ),
    "sizes": (
        mtf.ShapeError,
        "'d_model' has the sizes 5 and 8",
        lambda L: L(scaled, NAMES, variables=SCALE)(X[:, :5]),
    ),
    "whole batch": (
        mtf.PlanError,
        r"does not map along 'batch'(.*\n)*.*batch_size=",
        lambda L: L(centered, NAMES)(keras.Input([8])),
    ),
    "writes in chunks": (
        mtf.PlanError,
        "writes the variable 'norm/moving_mean', once for a batch",
        lambda L: L(mtf.layers.BatchNorm(ONE, "d_model:8", name="norm"), NAMES)(
            keras.Input([8]), training=True
        ),
    ),
    "gradient": (
        mtf.PlanError,
        "defines a gradient of its own",
        lambda L: L(lambda x: clipped(x), NAMES)(X),
    ),
    "results": (
        mtf.ArgumentError,
        "returns tensors(.*\n)*.*NoneType",
        lambda L: L(lambda x: (x, None), NAMES)(X),
    ),
    "inputs": (mtf.ArgumentError, "takes x.", lambda L: L(centered, NAMES)(X, X)),
    "seed": (
        mtf.PlanError,
        "needs a seed",
        lambda L: L(Hidden(ONE, 0.5), NAMES)(X, training=True),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_before_it_runs(name: str) -> None:
    error, text, call = REFUSED[name]
    with pytest.raises(error, match=text):
        call(mtf.keras.Layer)


def test_a_fixed_batch_may_be_needed_as_a_whole() -> None:
    layer = mtf.keras.Layer(centered, NAMES)
    start = keras.Input([8], batch_size=4)
    model = keras.Model(start, layer(start))
    model.compile("sgd", "mse")
    model.fit(X[:20], X[:20], **FIT)
    y = model.predict(X[:4], verbose=0)
    np.testing.assert_allclose(y, X[:4] - X[:4].mean(0))


def test_xla_compiles_chunks_and_their_gradients() -> None:
    start = keras.Input([8])
    model = keras.Model(start, hidden_layer(chunk_size=3)(start))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    losses = model.fit(X, np.tanh(X[:, :1] + Y[:, :1]), **FIT).history["loss"]
    assert losses[1] < losses[0]
