"""`mtf.check_numerics`: the op, its line and its module, in eager code and inside
functions.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers
from tests.support.refusals import line_of, refuses

MESHES = [
    {"axes": ""},
    {"axes": "data:2;model:2", "layout": "batch:data;d:model"},
    {"axes": "data:4", "layout": "batch:data", "devices": "logical:4"},
]


class Block(mtf.Module):
    """Has a logarithm in a module of its own."""

    def __init__(self, mesh, i):
        super().__init__(f"block_{i}")
        with self.scope():
            self.inner = Inner(mesh)

    def __call__(self, x):
        return self.inner(x) - 1.0


class Inner(mtf.Module):
    """log(x * scale)."""

    def __init__(self, mesh):
        super().__init__("feed_forward")
        with self.scope():
            self.scale = mtf.Variable(mesh, "d:4", initializers.ones, "scale")

    def __call__(self, x):
        return mtf.log(x * self.scale)  # the line


class Stack(mtf.Module):
    """Blocks one after another: log(e**e - 1 ...) gets negative in the third."""

    def __init__(self, mesh, n=3):
        super().__init__("stack")
        with self.scope():
            self.blocks = [Block(mesh, i) for i in range(n)]

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def called(fn, mesh, x, eager):
    """Runs a function of x[batch, d] in eager mode or recorded."""
    if eager:
        return fn(mtf.asarray(mesh, x, "batch;d"))
    return mtf.function(fn, mesh=mesh, x="batch;d")(x)


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_line_and_module_of_the_op_that_made_nan(mesh, eager):
    mesh = mtf.Mesh(**mesh)
    # 2.69, -0.01: NaN
    stack = Stack(mesh)
    x = np.full((4, 4), 40.0, "float32")
    x[2:] = 4000.0  # 7.29, 0.99, -1.01
    with (
        mtf.check_numerics(),
        refuses(
            mtf.NumericsError,
            "^log output NaN",
            "from -0.0",
            r"module +stack/block_2/feed_forward",
            r"test_numerics_check\.py:\d+",
        ) as error,
    ):
        called(lambda x: mtf.relu(stack(x)), mesh, x, eager)
    assert "# the line" in line_of(str(error.value), __file__)
    assert np.isnan(
        called(lambda x: stack(x), mesh, x, eager).numpy()
    ).any()  # unchecked


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
def test_gradients(eager):
    mesh = mtf.Mesh("data:2", "batch:data")

    def gradient(x):
        with mtf.scope("tower"):
            y = mtf.sqrt(x)  # at 0
        return mtf.gradients([mtf.reduce_sum(y)], [x])[0]

    with (
        mtf.check_numerics(),
        refuses(
            mtf.NumericsError,
            "output infinity.* in the gradient of the line below",
            "module +tower",
        ) as error,
    ):
        called(gradient, mesh, np.zeros((4, 4), "float32"), eager)
    assert "# at 0" in line_of(str(error.value), __file__)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_loops_and_branches_in_functions(mesh):
    mesh = mtf.Mesh(**mesh)

    def looped(x):
        def body(carry, index):
            with mtf.scope("cell"):
                positive = mtf.cast(carry > 0.0, "float32")
                return carry * positive * 1e15, carry  # the third is too much

        return mtf.scan(body, x, length=4)[0]

    def branched(x):
        return mtf.cond(mtf.reduce_sum(x) > 0.0, lambda: mtf.log(-x), lambda: x)

    x = np.ones((4, 4), "float32")
    with (
        mtf.check_numerics(),
        refuses(mtf.NumericsError, "multiply output infinity", "module +cell") as error,
    ):
        called(looped, mesh, x, eager=False)
    assert "# the third" in line_of(str(error.value), __file__)
    with mtf.check_numerics(), refuses(mtf.NumericsError, "log output NaN"):
        called(branched, mesh, x, eager=False)
    with mtf.check_numerics():
        np.testing.assert_array_equal(
            called(branched, mesh, -x, eager=False).numpy(), -x
        )


def test_a_repeated_layer_and_a_function_in_a_function():
    mesh = mtf.Mesh("data:2", "batch:data")
    layers = mtf.layers.Repeat(lambda: Inner(mesh), mtf.Dimension("layers", 3))
    inner = mtf.function(lambda x: layers(x), mesh=mesh)
    with (
        mtf.check_numerics(),
        refuses(mtf.NumericsError, "log output NaN", "feed_forward"),
    ):
        called(lambda x: inner(x + 1.0), mesh, np.ones((4, 4), "float32"), eager=False)


@pytest.mark.parametrize("scale, layer", [(1.0, 2), (3.0, 1)])
def test_the_error_names_the_iteration(scale, layer):
    """log(log(2)) is negative, and so is log(0.38), one layer earlier."""
    mesh = mtf.Mesh("data:2", "batch:data")
    layers = mtf.layers.Repeat(lambda: Inner(mesh), mtf.Dimension("layers", 3))
    x = np.full((4, 4), 2.0 / scale**1.5, "float32")
    with mtf.check_numerics():
        with pytest.raises(mtf.NumericsError, match=rf"layers {layer} of 3"):
            called(layers, mesh, x, eager=False)


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
def test_sums_over_positions(eager):
    mesh = mtf.Mesh("data:4", "batch:data")

    def total(x):
        return mtf.reduce_sum(mtf.einsum([x], "d"), "d") * 1.0

    x = np.full((4, 4), 1e38, "float32")
    with (
        mtf.check_numerics(),
        refuses(
            mtf.NumericsError, "(all_reduce over mesh axis 'data'|.*) output infinity"
        ),
    ):
        called(total, mesh, x, eager)


@pytest.mark.parametrize("optimizer_layout", ["", "d:data"])
def test_updates_and_variables_that_hold_nan(optimizer_layout):
    mesh = mtf.Mesh("data:2", optimizer_layout=optimizer_layout)
    v = mtf.Variable(mesh, "d:4", initializers.ones, "w")
    optimizer = optimizers.SGD([v], 1e30, momentum=0.9)

    @mtf.function(mesh=mesh, step="")
    def train(step):
        loss = mtf.reduce_sum(v * 1e30)
        optimizer.apply_gradients(mtf.gradients([loss], [v]), [v], step)
        return loss

    with (
        mtf.check_numerics(),
        refuses(mtf.NumericsError, "momentumupdate.* output infinity"),
    ):
        train(np.int32(0))
    v.assign(np.full(4, np.nan, "float32"))
    with mtf.check_numerics(), refuses(mtf.NumericsError, "variable 'w' has NaN"):
        train(np.int32(0))


@pytest.mark.parametrize("optimizer_layout", ["", "d:data"])
def test_checked_programs_compute_the_same(optimizer_layout):
    losses = []
    for checked in (False, True):
        mesh = mtf.Mesh(
            "data:2;model:2",
            "batch:data" if optimizer_layout else "batch:data;d:model",
            optimizer_layout=optimizer_layout,
        )
        stack = Stack(mesh, 1)
        optimizer = optimizers.Adam(stack.trainable_variables, 0.1)

        @mtf.function(mesh=mesh, x="batch;d", step="")
        def train(x, step, stack=stack, optimizer=optimizer):
            with mtf.seed(3, step):
                y = mtf.dropout(stack(x), 0.5)
            loss = mtf.reduce_mean(
                mtf.scan(lambda c, t: (c * 0.5 + y, None), y, length=3)[0]
            )
            optimizer.apply_gradients(
                mtf.gradients([loss], stack.trainable_variables),
                stack.trainable_variables,
                step,
            )
            return {"loss": loss, "y": y}

        for step in range(3):
            x = np.random.default_rng(step).uniform(1, 2, (4, 4)).astype("float32")
            if checked:
                with mtf.check_numerics():
                    results = train(x, np.int32(step))
            else:
                results = train(x, np.int32(step))
        losses.append(
            [
                results["loss"].numpy(),
                results["y"].numpy(),
                stack.blocks[0].inner.scale.numpy(),
            ]
        )
    for plain, checked in zip(*losses):
        np.testing.assert_allclose(plain, checked, rtol=1e-5)


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
def test_infinity_may_be_meant_and_nan_made_of_it_is_not(eager):
    mesh = mtf.Mesh("data:2", "batch:data")
    x = np.array([[1.0, 0.0], [2.0, 0.0]], "float32")

    def masked(x):
        return mtf.softmax(x + mtf.where(x > 0.0, 0.0, -np.inf), "d")

    with mtf.check_numerics():
        np.testing.assert_array_equal(
            called(masked, mesh, x, eager).numpy(), [[1, 0], [1, 0]]
        )
        with refuses(mtf.NumericsError, "softmax output NaN"):
            called(masked, mesh, x * 0, eager)


def test_inside_a_function_it_is_refused():
    def inner(x):
        with mtf.check_numerics():
            return x * 1.0

    with refuses(
        mtf.PlanError, "check_numerics is used inside a mtf.function", "around the call"
    ):
        called(inner, mtf.Mesh(""), np.ones((2, 2), "float32"), eager=False)


# Meshes of 2 and 4 positions, where 5 rows do not divide; one is live.
DATA_MESHES = [*MESHES, {"axes": "data:2", "layout": "batch:data", "devices": "spmd"}]
DATA = np.ones((5, 8), "float32")
DATA_WITH_NAN = DATA.copy()
DATA_WITH_NAN[1, 2] = np.nan
DATA_WITH_NAN[4, 7] = np.nan
WHERE = "2 of 40, first at batch 1, d 2"


@pytest.mark.parametrize("mesh", DATA_MESHES, ids=str)
def test_nan_in_arguments(mesh):
    mesh = mtf.Mesh(**mesh)
    tensor = mtf.asarray(mesh, DATA_WITH_NAN, "batch;d")
    inner = mtf.function(mtf.log)

    @mtf.function(mesh=mesh, x="batch;d", n="batch;d", parts={"y": "batch;d"})
    def total(x, n, parts, z=None):
        y = inner(parts["y"]) + (x if z is None else z)
        return mtf.reduce_sum(y * mtf.cast(n, "float32"))

    integers = DATA.astype("int32")
    with mtf.check_numerics():
        assert total(DATA, integers, {"y": DATA}).numpy() == 40.0
        with refuses(mtf.NumericsError, f"^argument 'x' has NaN, {WHERE}", "check the"):
            total(DATA_WITH_NAN, integers, {"y": DATA})
        with refuses(mtf.NumericsError, f"^argument 'parts_y' has NaN, {WHERE}"):
            total(DATA, integers, {"y": DATA_WITH_NAN})
        with refuses(mtf.NumericsError, f"^argument 'z' has NaN, {WHERE}"):
            total(DATA, integers, {"y": DATA}, tensor)
        assert np.isnan(tensor.numpy()).sum() == 2  # may be looked at


@pytest.mark.parametrize("mesh", DATA_MESHES, ids=str)
def test_nan_in_captured_tensors_and_arrays(mesh):
    mesh = mtf.Mesh(**mesh)
    tensor = mtf.asarray(mesh, DATA_WITH_NAN, "batch;d")  # made before

    def recorded(fn):
        return mtf.function(fn, mesh=mesh, x="batch;d")(DATA)

    def scaled(carry, index):
        return carry * tensor, None

    before = f"^a tensor that was made before has NaN, {WHERE}"
    with mtf.check_numerics():
        for fn in (lambda x: x * tensor, lambda x: mtf.scan(scaled, x, length=3)[0]):
            with refuses(mtf.NumericsError, before) as error:
                recorded(fn)
            assert "# made before" in line_of(str(error.value), __file__)
        with refuses(mtf.NumericsError, before):
            mtf.log(tensor)
        with refuses(mtf.NumericsError, f"^an array has NaN, {WHERE}"):
            recorded(lambda x: x * mtf.asarray(mesh, DATA_WITH_NAN, "batch;d"))
        with refuses(mtf.NumericsError, f"^an array has NaN, {WHERE}"):
            mtf.asarray(mesh, DATA_WITH_NAN, "batch;d")
        with refuses(mtf.NumericsError, "^fill output NaN, 5 of 5"):
            mtf.full(mesh, "batch:5", float("nan"))


@pytest.mark.parametrize("mesh", DATA_MESHES, ids=str)
def test_nan_in_variables(mesh):
    mesh = mtf.Mesh(**mesh)
    v = mtf.Variable(mesh, "batch:5;d:8", initializers.ones, "w")
    v.assign(DATA_WITH_NAN)

    def looped(x):
        return mtf.scan(lambda carry, i: (carry * v, None), x, length=3)[0]

    with mtf.check_numerics():
        for fn in (lambda x: x * v, looped):
            with refuses(mtf.NumericsError, f"^variable 'w' has NaN, {WHERE}"):
                mtf.function(fn, mesh=mesh, x="batch;d")(DATA)


@pytest.mark.parametrize("mesh", DATA_MESHES, ids=str)
def test_infinity_in_data(mesh):
    mesh = mtf.Mesh(**mesh)
    double = mtf.function(lambda x: x * 2.0, mesh=mesh, x="batch;d")
    for infinity in (np.inf, -np.inf):
        x = DATA.copy()
        x[4, 7] = infinity
        with mtf.check_numerics():
            with refuses(
                mtf.NumericsError,
                "^argument 'x' has infinity, 1 of 40, first at batch 4, d 7",
            ):
                double(x)
    with mtf.check_numerics():
        double(np.where(x < 0.0, x, 0.0))  # a mask
    lowest_loss = mtf.Variable(mesh, "", "zeros", "lowest", trainable=False)
    lowest_loss.assign(np.float32(np.inf))
    with mtf.check_numerics():
        mtf.function(lambda: mtf.minimum(lowest_loss, 1.0), mesh=mesh)()


@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
@pytest.mark.parametrize(
    "size", [7, 5]
)  # shards of 2, 2, 2, 1 and of 2, 2, 1, 0 elements
def test_padding_and_shards_without_elements_are_no_alarm(size, devices):
    mesh = mtf.Mesh("data:4", "d:data", devices=devices)
    x = np.arange(1, 2 * size + 1, dtype="float32").reshape(2, size)

    def statistics(x):
        y = mtf.log(1.0 / x)
        total = mtf.reduce_max(y, "d") + mtf.reduce_min(y, "d")
        total = total + mtf.reduce_logsumexp(y, "d") + mtf.reduce_std(y, "d")
        total = total + mtf.reduce_max(mtf.softmax(y, "d"), "d")
        return [total, *mtf.gradients([total], [x])]

    with mtf.check_numerics():
        for eager in (False, True):
            called(statistics, mesh, x, eager)
