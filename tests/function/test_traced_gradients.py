"""Gradients through functions that were called: judged by TensorFlow's tape."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

pytestmark = pytest.mark.filterwarnings("ignore::meshtf.errors.LayoutWarning")
MESHES = [
    ("", "", ""),
    ("data:2;model:2", "batch:data;d:model", ""),
    ("data:2;model:2", "batch:data;e:model", "d:data"),
]


@pytest.fixture(params=MESHES, ids=["one device", "sharded", "sharded variables"])
def mesh(request):
    axes, layout, variables = request.param
    return mtf.Mesh(axes, layout, variable_layout=variables)


def variable(mesh, shape, value, name="v"):
    result = mtf.Variable(mesh, shape, mtf.layers.initializers.zeros, name)
    result.assign(np.broadcast_to(np.asarray(value, "float32"), result.shape.sizes))
    return result


def random_array(*sizes, seed=0):
    return np.random.default_rng(seed).normal(size=sizes).astype("float32")


def same(got, expected):
    for g, w in zip(got, expected, strict=True):
        assert g is not None
        np.testing.assert_allclose(g.numpy(), np.asarray(w), 1e-4, 1e-5)


def test_a_variable_inside_and_outside(mesh):
    v = variable(mesh, "", 1.0)
    triple = mtf.function(lambda: v * 3.0, mesh=mesh)
    same(mtf.gradients([triple() * v], [v]), [6.0])
    same(mtf.gradients([triple()], [v]), [3.0])
    same(mtf.gradients([triple() + triple() * 2.0], [v]), [9.0])


def test_arguments_captures_and_variables(mesh):
    w = variable(mesh, "d:4;e:6", random_array(4, 6))
    x = mtf.asarray(mesh, random_array(8, 4, seed=1), "batch;d")
    scale = mtf.asarray(mesh, random_array(8, seed=2), "batch")
    gate = mtf.tanh(scale)

    @mtf.function(mesh=mesh, c="e")
    def layer(x, c, k):
        h = mtf.tanh(mtf.einsum([x, w], "batch;e")) * gate
        return {
            "h": h * c * k,
            "square": mtf.square(h),
            "rows": mtf.argmax(h, "e"),
            "x": x,
        }

    c = random_array(6, seed=3)
    result = layer(mtf.sin(x), c, 2.0)
    loss = mtf.reduce_sum(mtf.sin(result["h"])) + mtf.reduce_sum(
        result["square"] * result["h"]
    )
    loss = loss + mtf.reduce_sum(result["x"] * result["x"])
    got = mtf.gradients([loss], [x, scale, w])
    tx, ts, tw = (tf.constant(t.numpy()) for t in (x, scale, w))
    with tf.GradientTape() as tape:
        tape.watch([tx, ts, tw])
        h = tf.tanh(tf.sin(tx) @ tw) * tf.tanh(ts)[:, None]
        expected = (
            tf.reduce_sum(tf.sin(h * c * 2.0))
            + tf.reduce_sum(tf.square(h) * h * c * 2.0)
            + tf.reduce_sum(tf.sin(tx) ** 2)
        )
    same(got, tape.gradient(expected, [tx, ts, tw]))
    assert layer.traces == 1


def test_gradients_of_gradients_and_functions_of_functions(mesh):
    v = variable(mesh, "d:4", random_array(4))
    x = mtf.asarray(mesh, random_array(4, seed=1), "d")
    cube = mtf.function(lambda x: mtf.sin(x) * v * v * v, mesh=mesh)
    total = mtf.function(lambda y, z: mtf.reduce_sum(mtf.square(y) * z), mesh=mesh)
    loss = total(cube(x), x)
    dx, dv = mtf.gradients([loss], [x, v])
    mixed = mtf.reduce_sum(mtf.sin(dx)) + mtf.reduce_sum(dv * dv)
    got = [dx, dv, *mtf.gradients([mixed], [x, v])]
    tx = tf.constant(x.numpy())
    tv = tf.constant(v.numpy())
    with tf.GradientTape() as outer:
        outer.watch([tx, tv])
        with tf.GradientTape() as tape:
            tape.watch([tx, tv])
            expected = tf.reduce_sum(tf.square(tf.sin(tx) * tv**3) * tx)
        first = tape.gradient(expected, [tx, tv])
        second = tf.reduce_sum(tf.sin(first[0])) + tf.reduce_sum(first[1] ** 2)
    same(got, [*first, *outer.gradient(second, [tx, tv])])


def test_loops_recomputation_random_ops_and_rules_inside(mesh):
    w = variable(mesh, "d:4", random_array(4))

    @mtf.custom_gradient
    def doubled(x):
        return x * 1.0, lambda dy: [dy * 2.0]

    def body(x):
        with mtf.seed(3):
            x = mtf.dropout(x, 0.5)
        x, _ = mtf.scan(
            lambda h, _: (mtf.recompute(lambda h: mtf.tanh(h * w))(h), None),
            x,
            length=3,
        )
        return doubled(mtf.recompute(lambda x: mtf.sin(x * w))(x))

    x = mtf.asarray(mesh, random_array(8, 4, seed=1), "batch;d")
    called = mtf.function(body, mesh=mesh)
    expected = mtf.function(lambda x: mtf.gradients([body(x)], [x, w]), mesh=mesh)(x)
    same(mtf.gradients([called(x)], [x, w]), expected)
    same(mtf.gradients([body(x)], [x, w]), expected)


def test_the_backward_function_is_recorded_once(mesh):
    v = variable(mesh, "d:4", random_array(4))
    calls = []

    @mtf.custom_gradient
    def watched(x):
        return x * 2.0, lambda dy: [calls.append(1) or dy * 2.0]

    f = mtf.function(lambda x: watched(x * v), mesh=mesh)
    for k in range(3):
        x = mtf.asarray(mesh, random_array(4, seed=k), "d")
        same(
            mtf.gradients([mtf.sin(f(x))], [v]),
            [np.cos(2 * x.numpy() * v.numpy()) * 2 * x.numpy()],
        )
    assert len(calls) == 1 and f.traces == 1


def test_a_variable_that_was_changed_since_is_refused(mesh, tmp_path):
    v = variable(mesh, "d:4", 1.0)
    w = variable(mesh, "d:4", 2.0, "w")
    f = mtf.function(lambda x: mtf.square(v) * x, mesh=mesh)
    write = mtf.function(lambda x: v.assign(v + x), mesh=mesh)
    x = mtf.ones(mesh, "d:4")
    saved = mtf.checkpoints.save(str(tmp_path), 0, {"v": v})
    for change in (
        lambda: v.assign(v * 2.0),
        lambda: write(x),
        lambda: v.load(lambda index: np.full([4], 7.0, "float32")[index]),
        lambda: mtf.checkpoints.restore(saved, {"v": v}),
    ):
        y = f(x)
        w.assign(w * 2.0)
        same(mtf.gradients([y], [v, x]), [2 * v.numpy(), v.numpy() ** 2])
        change()
        with pytest.raises(mtf.PlanError, match="'v'"):
            mtf.gradients([y], [v])
    linear = mtf.function(lambda x: v + x, mesh=mesh)
    y = linear(x)
    v.assign(v * 2.0)  # its gradient needs no value of v
    same(mtf.gradients([y], [v]), [np.ones(4)])


def test_a_function_that_writes_is_refused_on_the_way_of_a_gradient(mesh):
    v = variable(mesh, "d:4", 1.0)
    w = variable(mesh, "d:4", 2.0, "w")

    @mtf.function(mesh=mesh)
    def train(x):
        loss = mtf.reduce_sum(v * x)
        v.assign(v * 0.5)
        return loss

    x = mtf.ones(mesh, "d:4")
    loss = train(x)
    same(mtf.gradients([loss * w], [w]), [np.full(4, 4.0)])  # is but a factor
    for target in (v, x):
        with pytest.raises(mtf.PlanError, match="train"):
            mtf.gradients([loss], [target])
    loss = train(x * w)  # the argument is gone, and who knows what it was made of
    with pytest.raises(mtf.PlanError, match=r"train.*\n(.*\n)*.*stop_gradient"):
        mtf.gradients([loss], [w])
    same(mtf.gradients([mtf.stop_gradient(loss) * w], [w]), [np.full(4, float(loss))])


def test_an_optimizer_outside_of_functions(mesh):
    def trained(wrap):
        v = variable(mesh, "d:4", random_array(4))
        optimizer = mtf.optimizers.SGD([v], 0.1)
        loss_of = wrap(lambda x: mtf.reduce_mean(mtf.square(x * v - 1.0)))
        for step in range(3):
            loss = loss_of(mtf.asarray(mesh, random_array(8, 4, seed=step), "batch;d"))
            optimizer.apply_gradients(
                mtf.gradients([loss], [v]), [v], mtf.constant(mesh, step, dtype="int32")
            )
        return v.numpy()

    expected = random_array(4)
    for step in range(3):
        x = random_array(8, 4, seed=step)
        expected = expected - 0.1 * 2 * ((x * expected - 1) * x).sum(0) / 32
    for wrap in (lambda f: f, lambda f: mtf.function(f, mesh=mesh)):
        np.testing.assert_allclose(trained(wrap), expected, 1e-4, 1e-6)


def test_a_result_may_be_a_target_and_be_returned_twice(mesh):
    x = mtf.asarray(mesh, random_array(4), "d")
    y, again, same_x = mtf.function(lambda x: (x * 3.0, x * 3.0, x), mesh=mesh)(x)
    z = y * y + again * same_x
    same(mtf.gradients([z], [y, x]), [2 * y.numpy(), (18 + 6) * x.numpy()])
    same(
        mtf.gradients([y, same_x], [x], [mtf.ones(mesh, "d:4") * 2.0, None]),
        [np.full(4, 7.0)],
    )


def test_what_prints_prints_once(mesh, capfd):
    v = variable(mesh, "d:2", 3.0)
    f = mtf.function(lambda: mtf.print(v * v, "told"), mesh=mesh)
    same(mtf.gradients([f()], [v]), [np.full(2, 6.0)])
    assert capfd.readouterr().err.count("told") == 1


def test_a_custom_gradient_around_a_called_function_must_not_miss_a_variable(mesh):
    v = variable(mesh, "d:2", 3.0)
    f = mtf.function(lambda x: v * x, mesh=mesh)

    @mtf.custom_gradient
    def own(x):
        return f(x), lambda dy: [dy]

    with pytest.raises(mtf.PlanError, match="own gradient"):
        mtf.gradients([own(mtf.ones(mesh, "d:2"))], [v])


def test_rules_of_several_results_read_one_variable(mesh):
    v = variable(mesh, "d:4", [1.0, 2.0, 3.0, 4.0])

    def scaled(factor):
        return mtf.custom_gradient(lambda x: (mtf.sin(x), lambda dy: dy * v * factor))

    f = mtf.function(lambda x: (scaled(1.0)(x), scaled(2.0)(x)), mesh=mesh)
    x = mtf.ones(mesh, "d:4")
    y, z = f(x)
    for results, factor in (([y], 1.0), ([z], 2.0), ([y, z], 3.0)):
        (dx,) = mtf.gradients(results, [x])
        same([dx, *mtf.gradients([dx], [v])], [factor * v.numpy(), np.full(4, factor)])


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "jit"])
def test_functions_of_two_stages(jit):
    mesh = mtf.Mesh("stage:2;data:2", "batch:data")
    with mtf.stage(0):
        v = variable(mesh, "d:4", random_array(4))
    with mtf.stage(1):
        w = variable(mesh, "d:4", random_array(4, seed=1), "w")

    @mtf.function(mesh=mesh, x="batch;d", jit=jit)
    def f(x):
        with mtf.stage(0):
            h = mtf.sin(x * v)
        with mtf.stage(1):
            return h * w, mtf.square(w)

    x = random_array(8, 4, seed=2)
    y, square = f(x)
    got = mtf.gradients([y * y, square], [v, w])
    sin = np.sin(x * v.numpy())
    cos = np.cos(x * v.numpy())
    w_ = w.numpy()
    same(got, [(2 * sin * w_**2 * cos * x).sum(0), (2 * sin**2 * w_).sum(0) + 2 * w_])
    assert (
        got[0].sharded_value.placement == v.placement
        and got[1].sharded_value.placement == w.placement
    )


@pytest.mark.sampled(1)
def test_results_let_go_of_what_they_do_not_need(mesh):
    v = variable(mesh, "d:4", 1.0)

    @mtf.function(mesh=mesh)
    def train(x):
        v.assign(v + x)
        return mtf.reduce_sum(x)

    rounded = mtf.function(lambda x: mtf.argmax(x * v, "d"), mesh=mesh)
    scaled = mtf.function(lambda x: x * v, mesh=mesh)
    gc.collect()
    gc.disable()
    try:
        for f, detached in (
            (train, lambda y: y),
            (rounded, lambda y: y),
            (scaled, mtf.stop_gradient),
        ):
            x = (
                f(mtf.ones(mesh, "d:4")) * 0.0 + mtf.ones(mesh, "d:4")
                if f is train
                else (scaled(mtf.ones(mesh, "d:4")))
            )
            y = detached(f(x))
            watch = weakref.ref(x)
            del x
            gc.collect()
            assert watch() is None, f
            assert y is not None
    finally:
        gc.enable()
