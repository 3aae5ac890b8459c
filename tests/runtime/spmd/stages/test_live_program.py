"""Programs on live meshes, against the placed runtime: numbers, variables, arguments,
results, checkpoints, refusals.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.runtime.spmd.live import jax_module

LAYOUTS = {
    "one device": ("", "", ""),
    "data": ("data:4", "batch:data", ""),
    "data and tensor": ("data:2;model:2", "batch:data;d_ff:model", ""),
    "FSDP": ("data:4", "batch:data", "d:data"),
    "reduced dimension": ("model:2;data:2", "d:model;batch:data", ""),
}
X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")


class Model(mtf.Module):
    """Two layers with dropout."""

    def __init__(self, mesh):
        super().__init__()
        self.hidden = mtf.layers.Dense(mesh, "d:4", "d_ff:8")
        self.out = mtf.layers.Dense(mesh, "d_ff:8", "classes:6")

    def __call__(self, x, step):
        with mtf.seed(7, step):
            h = mtf.dropout(mtf.gelu(self.hidden(x)), 0.25)
        return self.out(h)


class Training:
    """A model and its training step."""

    def __init__(self, mesh):
        self.model = Model(mesh)
        self.variables = self.model.trainable_variables
        self.optimizer = mtf.optimizers.Adam(self.variables, 0.1)

    @mtf.function(x="batch;d", step="")
    def step(self, x, step):
        y = self.model(x, step)
        loss = mtf.reduce_mean(y * y)
        gradients = mtf.gradients([loss], self.variables)
        self.optimizer.apply_gradients(gradients, self.variables, step)
        return {"loss": loss, "y": y}


def trained(name, devices, steps=3):
    axes, layout, variable_layout = LAYOUTS[name]
    mesh = mtf.Mesh(axes, layout, variable_layout=variable_layout, devices=devices)
    training = Training(mesh)
    results = [training.step(X, step) for step in range(steps)]
    return training, results


def by_name(training):
    variables = [*training.variables, *training.optimizer.variables]
    return {v.name: v for v in variables}


def values(training):
    return {name: v.numpy() for name, v in by_name(training).items()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LAYOUTS)
def test_training_is_that_of_the_placed_runtime(name):
    placed, expected = trained(name, None)
    live, results = trained(name, "spmd:cpu")
    for x, y in zip(results, expected, strict=True):
        np.testing.assert_allclose(float(x["loss"]), float(y["loss"]), rtol=2e-6)
        np.testing.assert_allclose(x["y"].numpy(), y["y"].numpy(), atol=2e-6)
    for path, value in values(placed).items():
        np.testing.assert_allclose(values(live)[path], value, atol=5e-6, err_msg=path)


def live_mesh(axes="data:2;model:2", layout="batch:data;d:model", **kwargs):
    return mtf.Mesh(axes, layout, devices="spmd:cpu", **kwargs)


def test_several_functions_and_single_ops_see_the_same_variables():
    mesh = live_mesh()
    v = mtf.Variable(mesh, "batch:2;d:4", "ones", "v")
    double = mtf.function(lambda: v.assign(v * 2.0), mesh=mesh)
    add = mtf.function(lambda: v.assign_add(1.0), mesh=mesh)
    double()
    add()
    np.testing.assert_array_equal(v.numpy(), np.full([2, 4], 3.0))
    v.assign(X[:2])  # outside of functions
    double()
    np.testing.assert_array_equal(v.numpy(), X[:2] * 2)
    np.testing.assert_allclose(float(mtf.reduce_sum(v)), X[:2].sum() * 2, rtol=1e-6)
    add()
    np.testing.assert_array_equal(v.numpy(), X[:2] * 2 + 1)


def test_a_mesh_without_stages_runs_one_module_that_reads_what_it_wrote():
    mesh = live_mesh("data:4", "batch:data")
    v = mtf.Variable(mesh, "d:4", "ones", "v")

    @mtf.function(mesh=mesh, x="batch;d")
    def f(x):
        v.assign_add(1.0)
        y = mtf.reduce_sum(x * v)
        v.assign_add(y)
        return y, v * 1.0, v

    results = f(np.ones((8, 4), "float32"))
    expected = [64.0, [66.0] * 4, [66.0] * 4]
    for result, value in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.numpy(), value)
    program = f.lower(np.ones((8, 4), "float32")).live_executable
    assert len(program._modules) == 1
    assert program.peak_memory > 0
    f(np.ones((8, 4), "float32"))  # overwrites the variable, not the result
    np.testing.assert_array_equal(results[2].numpy(), [66.0] * 4)
    np.testing.assert_array_equal(v.numpy(), [67.0 + 67.0 * 32] * 4)


def test_tensors_are_passed_captured_and_returned_where_they_are():
    mesh = live_mesh()
    x = mtf.asarray(mesh, X, "batch;d")
    double = mtf.function(lambda x: x * 2.0)
    y = double(double(x))
    np.testing.assert_array_equal(y.numpy(), X * 4)
    assert not isinstance(y.sharded_value.values, list)  # it stays on the devices
    assert y.placement == mesh.place(y.shape)[0]
    captured = mtf.function(lambda: y + x, mesh=mesh)
    np.testing.assert_array_equal(captured().numpy(), X * 5)
    np.testing.assert_array_equal(y["batch", 1:3].numpy(), X[1:3] * 4)
    assert double.traces == 2  # of a tensor of the host, and of one of the devices


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int64", "bool", "uint8"])
def test_data_types(dtype):
    mesh = live_mesh()
    x = mtf.asarray(mesh, np.arange(16).reshape(4, 4) % 2, "batch;d", dtype=dtype)
    same = mtf.function(lambda x: mtf.where(mtf.equal(x, x), x, x))
    y = same(x)
    assert y.dtype == dtype
    np.testing.assert_array_equal(
        y.numpy().astype("float32"), np.arange(16).reshape(4, 4) % 2
    )


def test_results_have_gradients_outside():
    mesh = live_mesh()
    v = mtf.Variable(mesh, "d:4", "ones", "v")
    triple = mtf.function(lambda x: mtf.reduce_sum(v * x * 3.0))
    x = mtf.asarray(mesh, X, "batch;d")
    dv, dx = mtf.gradients([triple(x)], [v, x])
    np.testing.assert_allclose(dv.numpy(), 3 * X.sum(0), atol=1e-5)
    np.testing.assert_array_equal(dx.numpy(), np.full([8, 4], 3.0))


def test_a_result_that_is_an_argument_has_a_gradient():
    mesh = live_mesh()
    v = mtf.Variable(mesh, "d:4", "ones", "v")
    double = mtf.function(lambda x: v * x * 2.0, mesh=mesh)
    x = mtf.asarray(mesh, X, "batch;d")
    y = double(x)
    z = double(y)  # 4 v² x
    dy, dv, dx = mtf.gradients([z], [y, v, x])
    np.testing.assert_array_equal(dy.numpy(), np.full([8, 4], 2.0))
    np.testing.assert_allclose(dv.numpy(), 8 * X.sum(0), atol=1e-5)
    np.testing.assert_array_equal(dx.numpy(), np.full([8, 4], 4.0))


def test_loops_branches_and_recomputation():
    def program(devices):
        mesh = mtf.Mesh("data:2;model:2", "batch:data;d:model", devices=devices)
        w = mtf.Variable(mesh, "d:4;e:4", "normal", "w")

        def body(h, _):
            with mtf.seed(3):
                h = mtf.dropout(h, 0.25)
            h = mtf.recompute(lambda h: mtf.tanh(mtf.einsum([h, w], "batch;e")))(h)
            return mtf.rename(h, "e", "d"), None

        @mtf.function(mesh=mesh, x="batch;d")
        def f(x):
            h, _ = mtf.scan(body, x, None, "t", 3)
            h = mtf.cond(mtf.reduce_sum(h) > 0.0, lambda: h * 2.0, lambda: h - 1.0)
            loss = mtf.reduce_mean(h * h)
            return loss, mtf.gradients([loss], [w])[0]

        loss, gradient = f(X)
        return float(loss), gradient.numpy()

    loss, gradient = program("spmd:cpu")
    expected_loss, expected_gradient = program(None)
    assert loss == pytest.approx(expected_loss, rel=2e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=2e-6)


@pytest.mark.parametrize("to, back", [("spmd:cpu", None), (None, "spmd:cpu")])
def test_checkpoints_go_from_one_runtime_to_the_other(tmp_path, to, back):
    first, _ = trained("data and tensor", back)
    path = mtf.checkpoints.save(str(tmp_path), 3, by_name(first))
    other, _ = trained("FSDP", to, steps=1)
    mtf.checkpoints.restore(path, by_name(other))
    for path, value in values(first).items():
        np.testing.assert_array_equal(values(other)[path], value, err_msg=path)
    losses = [float(x.step(X, 3)["loss"]) for x in (first, other)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-6)


def test_a_checkpoint_beside_steps_has_the_values_of_its_step(tmp_path):
    training, _ = trained("FSDP", "spmd:cpu", steps=1)
    before = values(training)
    variables = by_name(training).values()
    snapshots = [slot.snapshot() for v in variables for _, slot in v.regions()]
    shards = [slot.read() for v in variables for _, slot in v.regions()]
    for step in range(1, 3):
        training.step(X, step)
    for snapshot, shard in zip(snapshots, shards, strict=True):
        np.testing.assert_array_equal(snapshot().numpy(), shard)
    assert any((values(training)[path] != before[path]).any() for path in before)


@pytest.mark.parametrize("layout", ["", "d:model", "d:data; e:model"])
@pytest.mark.parametrize(
    "initializer, dtype",
    [
        (mtf.layers.initializers.normal(0.5), "float32"),
        (mtf.layers.initializers.variance_scaling("d"), "bfloat16"),
        ("zeros", "int32"),
        (lambda mesh, shape, name: mtf.full(mesh, shape, 7, "int32"), "int32"),
    ],
)
def test_initial_values_are_those_of_the_placed_runtime(layout, initializer, dtype):
    values = []
    for devices in (None, "spmd:cpu"):
        mesh = mtf.Mesh(
            "data:2;model:2", variable_layout=layout, devices=devices, seed=3
        )
        first = mtf.Variable(mesh, "d:4;e:6", initializer, "first", dtype=dtype)
        mtf.Variable(mesh, "d:4", "ones", "dropped")
        second = mtf.Variable(mesh, "e:6;d:4", initializer, "second", dtype=dtype)
        values.append([v.numpy().astype("float32") for v in (first, second)])
    rounding = 8e-3 if dtype == "bfloat16" else 2e-6
    for placed, live in zip(*values, strict=True):
        np.testing.assert_allclose(live, placed, rtol=rounding, atol=1e-7)


def test_a_wrong_initializer_is_refused_where_the_variable_is_made():
    with pytest.raises(mtf.ShapeError, match="'v' returned float32 .*e:2"):
        mtf.Variable(live_mesh(), "d:4", lambda mesh, *_: mtf.zeros(mesh, "e:2"), "v")


def test_prints_and_summaries_come_from_the_host_in_order(capfd, tmp_path):
    mesh = live_mesh()

    @mtf.function(mesh=mesh, x="batch;d")
    def f(x):
        y = mtf.print(x * 2.0, "doubled", summarize=2)
        mtf.scalar_summary("total", mtf.reduce_sum(y), step=3)
        return mtf.print(mtf.reduce_max(y), "largest")

    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        largest = f(np.arange(32, dtype="float32").reshape(8, 4))
    assert float(largest) == 62.0
    printed = capfd.readouterr().err
    assert printed.index("doubled") < printed.index("largest float32 [] 62")
    (file,) = tmp_path.iterdir()
    events = tf.compat.v1.train.summary_iterator(str(file))
    totals = [tf.make_ndarray(v.tensor) for e in events for v in e.summary.value]
    assert totals == [992.0]


def test_numerics_are_checked_op_by_op_on_the_host():
    mesh = live_mesh()
    v = mtf.Variable(mesh, "d:4", "zeros", "v")

    @mtf.function(mesh=mesh, x="batch;d")
    def f(x):
        v.assign(v + 1.0)
        return mtf.log(x - v)

    f(np.full([8, 4], 3.0, "float32"))
    with mtf.check_numerics(), pytest.raises(mtf.NumericsError, match="log output NaN"):
        f(np.zeros([8, 4], "float32"))
    f(np.full([8, 4], 9.0, "float32"))
    np.testing.assert_array_equal(v.numpy(), [3.0] * 4)


def test_the_placed_runtime_is_refused():
    mesh = live_mesh()
    f = mtf.function(lambda x: x, mesh=mesh, x="batch;d", runtime="placed")
    with pytest.raises(mtf.PlanError, match=r"(?s)this mesh is live.*check_numerics"):
        f(X)


def test_a_second_start_compiles_nothing(tmp_path):
    jax = jax_module.load_jax()
    from jax.experimental.compilation_cache import compilation_cache

    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
    settings = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # it looks at its settings once
    try:
        for _ in range(2):
            jax.clear_caches()
            mesh = live_mesh()
            f = mtf.function(lambda x: mtf.reduce_sum(x), mesh=mesh, x="batch;d")
            assert float(f(X)) == pytest.approx(X.sum(), rel=1e-5)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert list(tmp_path.iterdir())
    assert "/jax/compilation_cache/cache_hits" in hits


def test_a_variable_that_has_no_value_says_so_each_time():
    mesh = mtf.Mesh("data:2", "", devices="spmd:tpu")
    v = mtf.Variable(mesh, "d:4", "ones", "v")
    for _ in range(2):
        with pytest.raises(mtf.MeshError, match="no devices of the platform 'tpu'"):
            v.numpy()


@pytest.mark.sampled(3, together="long runs")
def test_too_little_memory_is_an_error_with_the_forecast():
    mesh = mtf.Mesh("data:2; model:2", "rows:data", devices="spmd:cpu")

    @mtf.function(mesh=mesh, x="rows")
    def products(x):
        return mtf.outer(x, mtf.rename(x, "rows", "columns"), mtf.multiply)

    x = np.ones(1 << 22, "float32")
    for _ in range(2):
        with pytest.raises(MemoryError) as caught:
            products(x)
        message = str(caught.value)
        assert isinstance(caught.value, mtf.DeviceMemoryError)
        assert message.startswith("products needs more memory than a device has.")
        assert "Out of memory allocating" in message
        assert "on a device at the peak" in message
    assert products(x[:8]).numpy().shape == (8, 8)


def test_a_failed_call_that_nobody_waited_for_is_an_error_when_its_result_is_read():
    mesh = mtf.Mesh("data:2", "rows:data", devices="spmd:cpu")

    @mtf.function(mesh=mesh, x="rows")
    def total(x):
        y = mtf.outer(x, mtf.rename(x, "rows", "columns"), mtf.multiply)
        return mtf.reduce_sum(y), y

    x = np.ones(1 << 22, "float32")
    with pytest.raises(mtf.DeviceMemoryError):
        total(x)  # the first call waits
    program = total.lower(x).live_executable
    program._has_run = True  # as if it had fitted once
    result, _ = total(x)
    for _ in range(2):
        with pytest.raises(mtf.DeviceMemoryError, match="computed this value needs"):
            result.numpy()


@pytest.mark.sampled(3, together="long runs")
def test_variables_that_do_not_fit_are_named():
    mesh = live_mesh(layout="")
    largest = mtf.Variable(mesh, f"a:{1 << 22};b:{1 << 22}", "ones", "largest")
    small = mtf.Variable(mesh, "a:4", "ones", "small")
    read = mtf.function(lambda: mtf.reduce_sum(small), mesh=mesh)
    with pytest.raises(
        mtf.DeviceMemoryError, match="(?s)^the initial value of largest, small needs"
    ) as caught:
        read()
    assert "forecast" not in str(caught.value)  # that of `read` would mislead
    del largest
    assert float(read()) == 4.0
