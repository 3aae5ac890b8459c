"""Pipelines on live meshes, against the placed runtime and a mesh without stages: numbers,
variables, arguments, checkpoints, refusals.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from meshtf.runtime.devices.processes import Processes
from meshtf.runtime.spmd import initial_values
from meshtf.runtime.spmd.stages import live_program, stage_meshes

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
CASES = {  # axes, stages, schedule, chunks, recompute
    "no axis of stages": ("data:2", 2, "gpipe", 1, False),
    "interleaved": ("stage:2;data:2", 2, "1f1b", 2, False),
    "tensor parallel": ("stage:2;data:2;model:2", 2, "1f1b", 1, True),
    "four stages": ("stage:4", 4, "gpipe", 1, False),
}
LAYOUT = "batch:data;d_ff:model"


class Layer(mtf.Module):
    """A batch norm and two dense layers with dropout; all layers share `tied`."""

    def __init__(self, mesh, k, tied):
        super().__init__(f"layer_{k}")
        self.tied = tied
        with self.scope():
            self.norm = mtf.layers.BatchNorm(mesh, "d:4", momentum=0.9, name="norm")
            self.ff = mtf.layers.FeedForward(mesh, "d:4", "d_ff:8", name="ff")

    def __call__(self, x):
        h = mtf.dropout(self.ff(self.norm(x, training=True)), 0.25)
        return x * self.tied + h


class Training:
    """A pipeline after a layer of all stages, and a training step with clipped gradients."""

    def __init__(self, devices, axes, stages, schedule, chunks, recompute):
        optional = "stage;data;model"
        mesh = mtf.Mesh(axes, LAYOUT, devices=devices, optional_axes=optional)
        self.outer = mtf.Variable(mesh, "d:4", "ones", "outer")
        tied = mtf.Variable(mesh, "d:4", "normal", "tied")
        self.pipe = mtf.pipeline.GPipe(
            [Layer(mesh, k, tied) for k in range(4)],
            stages,
            microbatches=2 * stages,
            schedule=schedule,
            chunks=chunks,
            recompute=recompute,
            cost=[1, 1, 1, 1],
        )
        self.trained_variables = [self.outer, *self.pipe.trainable_variables]
        self.optimizer = mtf.optimizers.Adam(self.trained_variables, 0.01)
        self.variables = {
            v.name: v
            for v in (self.outer, *self.pipe.variables, *self.optimizer.variables)
        }

    @mtf.function(x="batch;d", step="")
    def step(self, x, step):
        with mtf.seed(7, step):
            loss = self.pipe.loss(lambda y: mtf.reduce_mean(y * y), x * self.outer)
        gradients = mtf.gradients([loss], self.trained_variables)
        squares = [mtf.reduce_sum(gradient * gradient) for gradient in gradients]
        norm = mtf.sqrt(functools.reduce(lambda x, y: x + y, squares))
        clipped = [gradient / (1.0 + norm) for gradient in gradients]
        self.optimizer.apply_gradients(clipped, self.trained_variables, step)
        return loss, norm

    def train(self, steps):
        # Four examples in each of eight microbatches. The norm of two is ill-conditioned:
        # with one rounding of the inputs, norms of gradients would differ by 5e-5.
        x = np.random.default_rng(1).normal(size=(32, 4)).astype("float32")
        results = [self.step(x, np.int32(i)) for i in steps]
        return [float(y) for pair in results for y in pair]

    def values(self):
        return {name: v.numpy() for name, v in self.variables.items()}


@functools.cache
def trained(name, devices):
    """Returns a training after four steps, its losses and norms, and its variables."""
    training = Training(devices, *CASES[name])
    losses = training.train(range(4))
    return training, losses, training.values()


@pytest.mark.slow
@pytest.mark.sampled(1, together="stages")
@pytest.mark.parametrize("name", [name for name in CASES if "stage:" in CASES[name][0]])
def test_training_is_that_of_the_placed_runtime(name):
    _, expected, variables = trained(name, None)
    _, losses, live_variables = trained(name, "spmd:cpu")
    if CASES[name][1] == 2:  # with as many microbatches
        _, without_stages, _ = trained("no axis of stages", None)
        np.testing.assert_allclose(losses, without_stages, rtol=5e-5)
    np.testing.assert_allclose(losses, expected, rtol=5e-5)
    assert live_variables.keys() == variables.keys()
    for path, value in variables.items():
        np.testing.assert_allclose(live_variables[path], value, atol=5e-5, err_msg=path)


@pytest.mark.sampled(1, together="stages")
@pytest.mark.slow
def test_checkpoints_go_from_one_runtime_to_the_other(tmp_path):
    live, *_ = trained("interleaved", "spmd:cpu")
    path = mtf.checkpoints.save(str(tmp_path), 4, live.variables)
    other = Training(None, *CASES["no axis of stages"])
    mtf.checkpoints.restore(path, other.variables)
    for name, value in live.values().items():
        np.testing.assert_array_equal(other.values()[name], value, err_msg=name)
    again = mtf.checkpoints.save(str(tmp_path / "again"), 4, other.variables)
    live.train([4])
    mtf.checkpoints.restore(again, live.variables)
    for name, value in other.values().items():
        np.testing.assert_array_equal(live.values()[name], value, err_msg=name)


def live_mesh(axes="stage:2;data:2", devices="spmd:cpu"):
    return mtf.Mesh(axes, "batch:data", devices=devices)


def test_a_schedule_is_compiled_once_for_all_microbatches(monkeypatch):
    modules = []

    class Counted(live_program.StageModule):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            modules.append(self)

    monkeypatch.setattr(live_program, "StageModule", Counted)
    counts = []
    for microbatches in (2, 4):
        mesh = live_mesh("stage:2")
        weights = [mtf.Variable(mesh, "d:4", "ones", name) for name in "vw"]
        layers = [WithVariable(w) for w in weights]
        pipe = mtf.pipeline.GPipe(layers, 2, microbatches, cost=[1, 1])
        assert [w.stage for w in weights] == [0, 1]

        @mtf.function(mesh=mesh, x="batch;d")
        def f(x, pipe=pipe, weights=weights):
            loss = pipe.loss(mtf.reduce_mean, x)
            return [loss, *mtf.gradients([loss], weights)]

        del modules[:]
        loss, dv, dw = f(X)
        assert float(loss) == pytest.approx(X.mean(), rel=1e-5)
        for gradient in (dv, dw):
            np.testing.assert_allclose(gradient.numpy(), X.mean(0) / 4, rtol=1e-5)
        counts.append(len(modules))
    assert counts[0] == counts[1] <= 2 + 1 + 8


class WithVariable(mtf.Module):
    """A layer that multiplies by a variable, or looks it up."""

    def __init__(self, variable):
        super().__init__("layer")
        self.variable = variable

    def __call__(self, x):
        if x.dtype == "int32":
            return mtf.gather(self.variable, x, "vocab")
        return x * self.variable


def versions_and_copies(devices):
    """Returns what functions read before and after writes, on one stage and on all."""
    mesh = live_mesh(devices=devices)
    with mtf.stage(0):
        first = mtf.Variable(mesh, "d:4", "ones", "first")
    with mtf.stage(1):
        second = mtf.Variable(mesh, "d:4", "normal", "second")
    both = mtf.Variable(mesh, "d:4", "ones", "both")

    @mtf.function(mesh=mesh)
    def f(x):
        before = [first.value, both.value]
        y = x * first
        first.assign(first * 2.0)
        with mtf.stage(1):
            total = mtf.reduce_sum(y * second * both)
        mtf.print(total, "total")
        first.assign(first + total)
        both.assign_add(second)
        return [*before, first.value, both.value, second * 2.0, x, y]

    x = mtf.asarray(mesh, X, "batch;d")
    results = f(x)
    results += f(results[-1])  # of one stage, and of the devices
    first.assign(X[0])
    both.assign(both + 1.0)
    results += f(x)
    assert all(isinstance(y.sharded_value.values[:1], list) for y in results)
    return [y.numpy() for y in (*results, first, second, both, results[-1] + x)]


def test_variables_are_read_and_written_in_order(capfd):
    expected = versions_and_copies(None)
    placed_prints = capfd.readouterr().err
    values = versions_and_copies("spmd:cpu")
    assert capfd.readouterr().err.count("total float32") == 3
    assert placed_prints.count("total float32") == 3
    for y, expected_value in zip(values, expected, strict=True):
        np.testing.assert_allclose(y, expected_value, rtol=2e-5, atol=1e-6)


def stage_with_loop(devices):
    """Returns a loss and a gradient through a loop and a branch on one stage."""
    mesh = live_mesh(devices=devices)
    with mtf.stage(1):
        w = mtf.Variable(mesh, "d:4;e:4", "normal", "w")

    def body(h, _):
        with mtf.seed(3):
            h = mtf.dropout(h, 0.25)
        return mtf.rename(mtf.tanh(mtf.einsum([h, w], "batch;e")), "e", "d"), None

    @mtf.function(mesh=mesh, x="batch;d")
    def f(x):
        with mtf.stage(1):
            h, _ = mtf.scan(body, x, None, "t", 3)
            h = mtf.cond(mtf.reduce_sum(h) > 0.0, lambda: h * 2.0, lambda: h - 1.0)
        with mtf.stage(0):
            loss = mtf.reduce_mean(h * h)
        return loss, mtf.gradients([loss], [w])[0]

    loss, gradient = f(X)
    return float(loss), gradient.numpy()


def test_loops_and_branches_of_one_stage():
    loss, gradient = stage_with_loop("spmd:cpu")
    expected_loss, expected_gradient = stage_with_loop(None)
    assert loss == pytest.approx(expected_loss, rel=2e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=2e-6)


def test_a_loop_over_several_stages_is_refused_with_the_line():
    mesh = live_mesh()

    def body(h, _):
        with mtf.stage(1):
            h = h * 2.0
        with mtf.stage(0):
            return h + 1.0, None

    f = mtf.function(
        lambda x: mtf.scan(body, x, None, "t", 3)[0], mesh=mesh, x="batch;d"
    )
    with pytest.raises(
        mtf.PlanError,
        match=r'(?s)loop runs on several.*test_stages.*0, 1.*devices="spmd"',
    ):
        f(X)


def test_an_id_out_of_range_names_the_op_and_the_line():
    mesh = live_mesh()
    table = mtf.Variable(mesh, "vocab:8;d:4", "normal", "table")
    scale = mtf.Variable(mesh, "d:4", "ones", "scale")
    layers = [WithVariable(table), WithVariable(scale)]
    pipe = mtf.pipeline.GPipe(layers, 2, 2, cost=[1, 1])
    f = mtf.function(lambda i: pipe.loss(mtf.reduce_mean, i), mesh=mesh, i="batch")
    loss = f(np.arange(4, dtype="int32"))
    assert float(loss) == pytest.approx(table.numpy()[:4].mean(), rel=1e-5)
    wrong = f(np.array([1, 2, 9, 3], "int32"))
    with pytest.raises(Exception, match=r"(?s)index 9.*test_stages"):
        float(wrong)
    assert np.isfinite(float(f(np.arange(4, dtype="int32"))))


@pytest.mark.parametrize("reads", [False, True])
def test_an_id_out_of_range_is_an_error_once_whatever_stages_noticed_it(reads):
    mesh = live_mesh("stage:4")
    table = mtf.Variable(mesh, "vocab:8;d:4", "normal", "table")
    scales = [mtf.Variable(mesh, "d:4", "ones", f"scale_{i}") for i in range(3)]
    layers = [WithVariable(v) for v in (table, *scales)]
    pipe = mtf.pipeline.GPipe(layers, 4, 2, cost=[1, 1, 1, 1])

    @mtf.function(mesh=mesh, ids="batch")
    def step(ids):
        total = pipe.loss(mtf.reduce_mean, ids)
        for stage in range(1, 4):
            with mtf.stage(stage):
                x = mtf.zeros(mesh, "batch:4;vocab:8")
                total = total + mtf.reduce_mean(mtf.cross_entropy(x, ids, "vocab"))
        (gradient,) = mtf.gradients([total], [table])
        table.assign(table - gradient)
        return total

    right = np.arange(4, dtype="int32")
    value = table.numpy()
    step(right).numpy()
    with pytest.raises(mtf.IndexRangeError, match="may be NaN now. Restore a checkp"):
        loss = step(np.array([1, 9, 9, 9], "int32"))
        if reads:
            loss.numpy()
        table.numpy()
    table.assign(value)
    for _ in range(5):
        assert np.isfinite(step(right).numpy())


def test_numerics_are_checked_op_by_op_on_the_host():
    mesh = live_mesh("stage:2")
    with mtf.stage(1):
        v = mtf.Variable(mesh, "d:4", "zeros", "v")
    f = mtf.function(lambda x: mtf.log(x - v), mesh=mesh, x="batch;d")
    f(np.full([8, 4], 3.0, "float32"))
    with mtf.check_numerics(), pytest.raises(mtf.NumericsError, match="log output NaN"):
        f(np.full([8, 4], -1.0, "float32"))


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(stage_meshes, "processes", lambda: Processes(0, 2))
    mesh = live_mesh("stage:2")
    with pytest.raises(mtf.MeshError, match="(?s)2 processes.*axis 'stage'"):
        mtf.Variable(mesh, "d:4", "ones", "v").numpy()


def test_equal_initial_values_of_a_stage_share_a_program(monkeypatch):
    programs = []

    class Program(initial_values.LiveProgram):
        def __init__(self, recorded, stores, runs_once=False):
            super().__init__(recorded, stores, runs_once)
            programs.append(recorded.name)

    monkeypatch.setattr(initial_values, "LiveProgram", Program)
    monkeypatch.setattr(initial_values, "_MAX_ELEMENTS_ON_HOST", 0)

    def values(devices):
        mesh = mtf.Mesh("stage:2; data:2", devices=devices, seed=3)
        variables = []
        for k in range(7):
            with mtf.stage(k % 2):
                variables.append(mtf.Variable(mesh, "d:4; e:6", "normal", f"v{k}"))
        return [variable.numpy() for variable in variables]

    live = values("spmd:cpu")
    assert programs == ["initial_value", "initial_value"]  # one for each stage
    for a, b in zip(live, values(None), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7)


def test_an_export_with_stages_is_refused():
    mesh = live_mesh("stage:2")

    def f(x):
        with mtf.stage(0):
            return x * 2.0

    with pytest.raises(mtf.PlanError, match="(?s)stage 0 only.*test_stages"):
        mtf.export(mtf.function(f, mesh=mesh, x="batch;d"), X)


@pytest.mark.sampled(3, together="long runs")
def test_too_little_memory_is_an_error_with_the_forecast():
    mesh = live_mesh("stage:2;data:2")

    @mtf.function(mesh=mesh, x="batch")
    def products(x):
        with mtf.stage(1):
            y = mtf.outer(x, mtf.rename(x, "batch", "columns"), mtf.multiply)
            return mtf.reduce_sum(y), y

    with pytest.raises(mtf.DeviceMemoryError, match="(?s)products needs.*TiB on a dev"):
        products(np.ones(1 << 22, "float32"))
    total, _ = products(np.ones(8, "float32"))
    assert float(total) == 64.0
