"""Functions called in eager mode where the context has layers, microbatches or stages:
the context is no constant of a trace. Judged by NumPy and by the same model
without them."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

pytestmark = pytest.mark.filterwarnings("ignore::meshtf.errors.LayoutWarning")
MESHES = [("", ""), ("data:2;model:2", "batch:data;d:model")]

BATCH = np.arange(8, dtype="float32").reshape(4, 2)


@pytest.fixture(params=MESHES, ids=["one device", "four positions"])
def mesh(request):
    return mtf.Mesh(*request.param)


def random_array(*sizes, seed=0):
    return np.random.default_rng(seed).normal(size=sizes).astype("float32")


class Scaled(mtf.Module):
    """x * w + bias, in its own function."""

    def __init__(self, mesh, rate=0.0, name="scaled"):
        super().__init__(name)
        with self.scope():
            self.w = mtf.Variable(mesh, "d:4", mtf.layers.initializers.ones, "w")
        self.rate = rate
        self.apply = mtf.function(self.body, mesh=mesh, bias="d")

    def body(self, x, bias=None):
        with mtf.seed(7):
            x = mtf.dropout(x, self.rate)
        x = x * self.w * mtf.full(None, "", 2.0)
        return x if bias is None else x + bias

    def __call__(self, x):
        return self.apply(x, np.ones(4, "float32"))


def test_layers_of_a_repeat_have_weights_of_their_own(mesh):
    net = mtf.layers.Repeat(lambda: Scaled(mesh), "layers:3")
    w = random_array(3, 4)
    net.layer.w.assign(w)
    x = mtf.asarray(mesh, random_array(8, 4, seed=1), "batch;d")
    expected = x.numpy()
    dw = np.ones([8, 4], "float32")
    for row in w:
        expected = expected * row * 2 + 1
    for run in (net, net, mtf.function(net)):
        np.testing.assert_allclose(run(x).numpy(), expected, 1e-5, 1e-5)
    got = mtf.gradients([net(x)], [x, net.layer.w])
    h = [x.numpy()]
    for row in w:
        h.append(h[-1] * row * 2 + 1)
    grads = []
    for k in (2, 1, 0):
        grads.insert(0, (dw * h[k] * 2).sum(0))
        dw = dw * w[k] * 2
    np.testing.assert_allclose(got[0].numpy(), dw, 1e-4, 1e-5)
    np.testing.assert_allclose(got[1].numpy(), grads, 1e-4, 1e-4)


def test_a_trace_of_before_is_not_taken_in_a_repeat_nor_the_other_way_round(mesh):
    net = mtf.layers.Repeat(lambda: Scaled(mesh), "layers:2")
    unrelated = Scaled(mesh)
    f = mtf.function(lambda x: x * unrelated.w, mesh=mesh)
    x = mtf.ones(mesh, "batch:4;d:4")
    assert f(x).numpy().sum() == 16
    each = []

    def body(layer, h, _):
        each.append(f.lower(h).collectives)
        return f(layer(h)), None

    np.testing.assert_allclose(net.each(body, x)[0].numpy(), 7 * np.ones((4, 4)))
    np.testing.assert_allclose(f(x).numpy(), np.ones((4, 4)))
    assert len(each) == 2 and f.traces == 1


def test_stages_have_traces_of_their_own():
    mesh = mtf.Mesh("stage:2")
    f = mtf.function(lambda x: x * 2.0, mesh=mesh)
    x = mtf.ones(mesh, "d:4")
    placements = []
    for stage in (0, 1, 0, 1):
        with mtf.stage(stage):
            placements.append(f(x).sharded_value.placement)
    assert [placement.stage for placement in placements] == [0, 1] * 2
    assert f.traces == 2


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_masks_and_averages_of_microbatches_are_those_of_the_batch(
    mesh, microbatches, seed
):
    x = mtf.asarray(mesh, random_array(8, 4, seed=seed) + 1.0, "batch;d")

    def run(eager, count):
        norm = mtf.layers.BatchNorm(mesh, "d:4", momentum=0.5)
        layer = Scaled(mesh, 0.5)
        normed = mtf.function(lambda x: norm(x, training=True), mesh=mesh)

        def loss_of(x):
            normed(x)
            return mtf.reduce_mean(mtf.square(layer(x)))

        def step(x):
            return mtf.optimizers.accumulate_gradients(
                loss_of, [layer.w], x, "batch", count
            )

        loss, (dw,) = (step if eager else mtf.function(step))(x)
        return [y.numpy() for y in (loss, dw, norm.moving_mean, norm.moving_variance)]

    expected_values = run(False, 1)
    np.testing.assert_allclose(expected_values[2], x.numpy().mean(0) / 2, 1e-4)
    for eager in (False, True):
        for y, expected in zip(run(eager, microbatches), expected_values, strict=True):
            np.testing.assert_allclose(y, expected, 1e-4, 1e-5)


def test_pipelines_of_functions(seed):
    x = random_array(8, 4, seed=seed)

    def run(axes, eager, count):
        mesh = mtf.Mesh(axes)
        layers = [Scaled(mesh, 0.5, f"layer_{k}") for k in range(2)]
        pipe = mtf.pipeline.GPipe(layers, 2, count)

        def step(x):
            loss = pipe.loss(lambda y: mtf.reduce_mean(mtf.square(y)), x)
            return [pipe(x), loss, *mtf.gradients([loss], pipe.trainable_variables)]

        results = (step if eager else mtf.function(step))(
            mtf.asarray(mesh, x, "batch;d")
        )
        return [y.numpy() for y in results]

    expected_values = run("", True, 1)
    assert (expected_values[0] == 1).sum() > 4  # dropped
    for axes in ("", "stage:2"):
        for eager in (False, True):
            for y, expected in zip(run(axes, eager, 4), expected_values, strict=True):
                np.testing.assert_allclose(y, expected, 1e-4, 1e-5)


def test_eager_pipelines_drop_what_recorded_ones_do(seed):
    mesh = mtf.Mesh("")
    drop = mtf.layers.Dropout(0.5, name="drop")
    layers = [lambda x: drop(x, training=True), lambda x: x * 2.0]
    x = mtf.asarray(mesh, random_array(8, 4, seed=seed), "batch;d")

    def per_microbatch(x):
        with mtf.seed(seed):
            return [layers[1](layers[0](x))]

    def piped(x):
        with mtf.seed(seed):
            y = mtf.pipeline.GPipe(layers, 2, 4)(x)
        with mtf.seed(seed):
            loss = mtf.pipeline.GPipe(layers, 2, 4).loss(
                lambda y: mtf.reduce_mean(mtf.dropout(y, 0.5, name="more")), x
            )
        return [y, loss, *mtf.gradients([y, loss], [x])]

    def per_batch(x):
        (y,) = per_microbatch(x)
        with mtf.seed(seed):
            loss = mtf.reduce_mean(mtf.dropout(y, 0.5, name="more"))
        return [y, loss, *mtf.gradients([y, loss], [x])]

    expected_values = per_batch(x)
    assert 4 < (expected_values[0].numpy() == 0).sum() < 28
    for run in (piped, mtf.function(piped)):
        for y, expected in zip(run(x), expected_values, strict=True):
            np.testing.assert_allclose(y.numpy(), expected.numpy(), 1e-5, 1e-6)


def test_numbers_are_checked_inside_of_functions(mesh):
    v = mtf.Variable(mesh, "d:4", mtf.layers.initializers.ones, "v")
    f = mtf.function(lambda x: mtf.log(x * v) + 1.0, mesh=mesh)
    x = mtf.ones(mesh, "d:4") * -1.0
    assert np.isnan(f(x).numpy()).all()
    with mtf.check_numerics():
        with pytest.raises(
            mtf.NumericsError, match=r"log output NaN(.|\n)*test_functions_in_context"
        ):
            f(x)
        (dv,) = mtf.gradients([f(x * -2.0)], [v])
    np.testing.assert_allclose(dv.numpy(), np.ones(4), 1e-6)


def test_a_path_of_modules_counts_where_random_numbers_are_drawn(mesh):
    @mtf.function(mesh=mesh)
    def drop(x):
        with mtf.seed(3):
            return mtf.dropout(x, 0.5)

    plain = mtf.function(lambda x: x * 2.0, mesh=mesh)

    def masks(x):
        results = [drop(x)]
        for name in ("one", "other", "one"):
            with mtf.scope(name):
                results.append(drop(plain(x)))
        return results

    x = mtf.ones(mesh, "batch:8;d:4")
    eager, recorded = (
        [y.numpy() for y in run(x)] for run in (masks, mtf.function(masks))
    )
    for y, expected in zip(eager, recorded, strict=True):
        np.testing.assert_array_equal(y, expected)
    assert (eager[1] == eager[3]).all() and (eager[1] != eager[2]).any()
    assert plain.traces == 1 and drop.traces == 3


@pytest.mark.parametrize("layout", ["", "b:x", "d:x"])
def test_functions_that_run_eagerly_have_values(layout):
    mesh = mtf.Mesh("x:2", layout)
    v = mtf.Variable(mesh, "d:2", "ones", "v")
    seen = []

    @mtf.function(mesh=mesh, x="b;d")
    def step(x):
        y = (x * v).sum("d")
        seen.append(y)
        v.assign_add(mtf.gradients([y.sum()], [v])[0])
        return {"y": y}

    with mtf.run_functions_eagerly():
        eager = step(BATCH)
    assert (step.traces, v.numpy().tolist()) == (0, [13.0, 17.0])
    np.testing.assert_array_equal(seen[0].numpy(), BATCH.sum(1))
    np.testing.assert_array_equal(eager["y"].numpy(), BATCH.sum(1))

    v.assign(np.ones(2, "float32"))
    traced = step(BATCH)
    assert (step.traces, v.numpy().tolist()) == (1, [13.0, 17.0])
    np.testing.assert_array_equal(traced["y"].numpy(), eager["y"].numpy())
    with pytest.raises(mtf.PlanError, match="no value yet"):
        seen[1].numpy()


def test_random_numbers_of_functions_that_run_eagerly():
    mesh = mtf.Mesh("x:2", "b:x")

    @mtf.function
    def inner(x):
        return mtf.dropout(x, 0.5)

    @mtf.function(mesh=mesh, x="b;d")
    def outer(x):
        with mtf.seed(1):
            return inner(x) + 1.0

    with mtf.run_functions_eagerly():
        eager = outer(BATCH).numpy()
    np.testing.assert_array_equal(outer(BATCH).numpy(), eager)
