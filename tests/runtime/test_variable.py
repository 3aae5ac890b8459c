"""Variables: which slices there are, who shares them, and that each is written once."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.mesh import Placement
from meshtf.ops.variables.read_write import Write


def counting(mesh, shape, name):
    """An initializer whose values differ between rows and between shards."""
    values = np.arange(shape.size, dtype="float32").reshape(shape.sizes)
    return mtf.asarray(mesh, values, shape)


def nodes(compiled, kind):
    """Returns the nodes of a kind in a program's own graph, without those
    in segments.
    """
    return [n for n in compiled.definition.node_def if n.op == kind]


@pytest.mark.parametrize(
    "shape, devices, num_distinct",
    [
        ("d_model:4", None, 1),
        ("d_model:4;d_ff:4", None, 2),
        ("vocab:8;d_ff:4", None, 8),
        ("d_model:4", "logical:8", 8),
        ("vocab:8;d_ff:4", "logical:8", 8),
        ("d_model:4;d_ff:4", ["CPU:0"] * 4 + ["CPU:1"] * 4, 4),
        ("vocab:8", ["CPU:0", "CPU:1"] * 4, 8),
    ],
)
def test_one_slot_for_each_distinct_shard_and_device(shape, devices, num_distinct):
    mesh = mtf.Mesh(
        "data:4;model:2", "d_ff:model", variable_layout="vocab:data", devices=devices
    )
    v = mtf.Variable(mesh, shape, counting, "v")
    assert len(v.slots()) == 8
    assert len({id(s) for s in v.slots()}) == num_distinct
    assert all(isinstance(s.variable, tf.Variable) for s in v.slots())
    assert all(a is b for a, b in zip(v.slots(), v.slots(), strict=True))
    np.testing.assert_array_equal(v.numpy().ravel(), np.arange(v.shape.size))


def test_slices_lie_on_their_devices():
    mesh = mtf.Mesh("model:4", "d_ff:model", devices=[f"CPU:{i}" for i in (1, 2, 3, 4)])
    v = mtf.Variable(mesh, "d_ff:8", counting, "v")
    assert [s.device[-6:] for s in v.slots()] == [
        ":CPU:1",
        ":CPU:2",
        ":CPU:3",
        ":CPU:4",
    ]
    assert [s.read().tolist() for s in v.slots()] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_where_variables_lie():
    mesh = mtf.Mesh("data:2;model:2", "d_ff:model", variable_layout="d_model:data")
    v = mtf.Variable(mesh, "d_model:4;d_ff:4", counting, "v")
    assert v.placement == Placement("d_ff:model;d_model:data")
    assert mtf.Variable(mesh, "d_head:4", counting, "u").placement == Placement()
    assert (v.shape, v.dtype, v.name) == (mtf.Shape("d_model:4;d_ff:4"), "float32", "v")


@pytest.mark.parametrize("devices, writes", [(None, 1), ("logical:8", 8)])
def test_a_replicated_update_runs_once_on_shared_storage(devices, writes):
    mesh = mtf.Mesh("data:8", "batch:data", devices=devices)
    v = mtf.Variable(mesh, "d:4", counting, "v")

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        v.assign(v - mtf.reduce_sum(x, "batch"))

    step(np.ones((8, 4), "float32"))
    assert v.numpy().tolist() == [-8, -7, -6, -5]
    compiled = step.lower(np.ones((8, 4), "float32"))
    assert len(nodes(compiled, "AssignVariableOp")) == writes
    assert step.traces == 1


def test_eager_updates_run_once_too(monkeypatch):
    calls = []
    write = Write.write_in_place
    monkeypatch.setattr(
        Write, "write_in_place", lambda *args: calls.append(1) or write(*args)
    )
    mesh = mtf.Mesh("data:4;model:2", "d_ff:model")
    v = mtf.Variable(mesh, "d_ff:4", counting, "v")
    v.assign(v + 1.0)
    assert len(calls) == 2 and v.numpy().tolist() == [1, 2, 3, 4]


def test_a_variable_is_assigned_to_another():
    mesh = mtf.Mesh("data:2", "d:data")
    source = mtf.Variable(mesh, "d:4;e:2", "normal", "source")
    target = mtf.Variable(mesh, "e:2;d:4", "zeros", "target")
    target.assign(source)
    assert source.numpy().any()
    assert (target.numpy() == source.numpy().T).all()


def test_equal_work_of_positions_is_in_the_graph_once():
    mesh = mtf.Mesh("data:8", "batch:data")
    v = mtf.Variable(mesh, "d:4", counting, "v")
    f = mtf.function(lambda: v.assign(mtf.tanh(v)), mesh=mtf.Mesh("") and mesh)
    with pytest.warns(mtf.LayoutWarning):  # there is no batch here
        f()
    assert (
        len(nodes(f.lower(), "StatelessCase"))
        + len(nodes(f.lower(), "PartitionedCall"))
        == 1
    )


def test_assign_takes_any_order_of_names_and_arrays():
    mesh = mtf.Mesh("data:2;model:2", "a:data;b:model")
    v = mtf.Variable(mesh, "a:2;b:4", counting, "v")
    x = np.arange(8, dtype="float32").reshape(4, 2) * 10
    v.assign(mtf.asarray(mesh, x, "b;a"))
    np.testing.assert_array_equal(v.numpy(), x.T)
    v.assign(np.zeros((2, 4)))  # float64: taken as the variable's type
    assert not v.numpy().any()
    v.assign(mtf.ones(mesh, "a:2;b:4") * v + 3.0)
    assert (v.numpy() == 3).all()


def test_variables_have_operators():
    mesh = mtf.Mesh("data:2", "a:data")
    v = mtf.Variable(mesh, "a:4", counting, "v")
    np.testing.assert_array_equal((2.0 * v - v / 2.0).numpy(), 1.5 * np.arange(4))
    assert (-v).shape == v.shape and (v > 1.0).numpy().tolist() == [
        False,
        False,
        True,
        True,
    ]


def test_first_values_do_not_depend_on_the_mesh():
    def init(mesh, shape, name):
        return mtf.random_normal(mesh, shape, seed=mesh.seed, name=name)

    values = [
        mtf.Variable(
            mtf.Mesh(axes, "a:data;b:model", devices=devices, seed=5),
            "a:4;b:6",
            init,
            "w",
        ).numpy()
        for axes, devices in (
            ("", None),
            ("data:4;model:2", None),
            ("model:2", "logical:2"),
        )
    ]
    np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_array_equal(values[0], values[2])
    assert len(np.unique(values[0])) == 24


def test_variables_of_other_types():
    mesh = mtf.Mesh("data:2", "a:data")
    v = mtf.Variable(
        mesh,
        "a:4",
        lambda mesh, s, name: mtf.range(mesh, "a:4", "int32"),
        "n",
        "int32",
        trainable=False,
    )
    v.assign(v + 1)
    assert v.numpy().tolist() == [1, 2, 3, 4] and v.numpy().dtype == np.int32
    half_variable = mtf.Variable(
        mesh,
        "",
        lambda mesh, s, name: mtf.full(mesh, s, 1.5, "bfloat16"),
        "h",
        "bfloat16",
    )
    assert float(half_variable.numpy()) == 1.5


def test_a_function_of_tensorflow_knows_the_shape_of_a_slice():
    v = mtf.Variable(
        mtf.Mesh("x:2", "d:x", devices=["CPU:0", "CPU:1"]), "d:4;e:3", counting, "v"
    )
    for slot in v.slots():
        read = tf.function(lambda x=slot.variable: x + 1.0).get_concrete_function()
        assert read.outputs[0].shape == [2, 3]
    with pytest.raises(ValueError, match="shape"):
        v.slots()[0].assign(np.zeros([4, 3], "float32"))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "initializer", ["ones", "normal", mtf.layers.initializers.glorot("a")]
)
def test_initial_values_are_converted_between_floats(dtype, initializer):
    mesh = mtf.Mesh("x:2", "a:x", seed=3)
    v = mtf.Variable(mesh, "a:4;b:2", initializer, "v", dtype=dtype)
    w = mtf.Variable(mesh, "a:4;b:2", initializer, "v")
    assert v.dtype == dtype
    np.testing.assert_array_equal(v.numpy(), tf.cast(w.numpy(), dtype).numpy())


@pytest.mark.parametrize("axes", ["", "x:2"])
@pytest.mark.parametrize(
    "initializer, dtype, expected",
    [
        ("ones", "int32", 1),
        ("zeros", "int64", 0),
        ("ones", "uint8", 1),
        ("zeros", "bool", False),
        (mtf.layers.initializers.constant(7.0), "int8", 7),
        (mtf.layers.initializers.shared("ones"), "int32", 1),
    ],
)
def test_integers_start_with_what_is_exact(initializer, dtype, expected, axes):
    mesh = mtf.Mesh(axes, "a:x", optional_axes="x")
    v = mtf.Variable(mesh, "a:4", initializer, "v", dtype=dtype, trainable=False)
    assert v.dtype == dtype and v.numpy().tolist() == [expected] * 4


@pytest.mark.parametrize(
    "initializer, dtype",
    [
        ("normal", "int32"),
        ("uniform", "int64"),
        (mtf.layers.initializers.constant(0.5), "int32"),
        (mtf.layers.initializers.constant(2.0), "bool"),
    ],
)
def test_other_floats_are_no_initial_values_of_integers(initializer, dtype):
    with pytest.raises(
        mtf.DTypeError, match=f"(?s)'v' returned float32, .* is {dtype}.*mtf.full"
    ):
        mtf.Variable(mtf.Mesh(""), "a:4", initializer, "v", dtype=dtype)


@pytest.mark.parametrize("layout", ["", "d:x", "d:y;e:x"])
def test_values_and_updates_by_a_term(layout):
    mesh = mtf.Mesh("x:2;y:2", variable_layout=layout)
    v = mtf.Variable(mesh, "d:4;e:2", counting, "v")
    start = v.numpy()
    np.testing.assert_array_equal(v.value.numpy(), start)
    assert isinstance(v.value, mtf.Tensor)
    np.testing.assert_array_equal(np.asarray(v), start)
    assert np.asarray(v, "int32").dtype == np.int32

    v.assign_add(1.0)
    v.assign_sub(mtf.ones(mesh, "e:2;d:4") * 3.0)
    v.assign_add(np.full((4, 2), 0.5, "float32"))
    np.testing.assert_array_equal(v.numpy(), start - 1.5)

    @mtf.function(mesh=mesh)
    def update():
        v.assign_add(v.value)
        return v["d", 1]

    np.testing.assert_array_equal(update().numpy(), 2 * (start - 1.5)[1])
    np.testing.assert_array_equal(v.numpy(), 2 * (start - 1.5))


def test_a_variable_knows_its_stack():
    mesh = mtf.Mesh("")

    def make():
        return mtf.layers.Dense(mesh, "a:4", "b:3", expert_dims="e:2", name="dense")

    inner = mtf.layers.Repeat(
        lambda: mtf.layers.Repeat(make, "rows:5", name="inner"), "layers:6", name="net"
    )
    bias, kernel = inner.variables
    for variable, entry in ((kernel, "a:4;b:3"), (bias, "b:3")):
        assert [dim.name for dim in variable.stack] == ["layers", "rows", "e"]
        assert variable.shape == mtf.Shape("layers:6;rows:5;e:2") + mtf.Shape(entry)
        assert variable.entry_shape == mtf.Shape(entry)
    plain = mtf.Variable(mesh, "a:4", "zeros", "plain")
    assert plain.stack == () and plain.entry_shape == plain.shape
    with pytest.raises(mtf.ShapeError, match="layers"):
        mtf.Variable(mesh, "a:4", "zeros", "w", stacked_dims="layers")


@pytest.mark.parametrize("devices", [None, "logical:8", "spmd:cpu"])
@pytest.mark.parametrize("duplicated", [copy.copy, copy.deepcopy])
def test_a_copy_has_storage_of_its_own(devices, duplicated):
    mesh = mtf.Mesh("data:4;model:2", "vocab:data", devices=devices)
    variable = mtf.Variable(mesh, "vocab:6;d:2", counting, name="v", trainable=False)
    duplicate = duplicated(variable)
    assert duplicate.mesh is mesh
    assert not duplicate.trainable
    assert repr(duplicate) == repr(variable)
    before = variable.numpy()
    variable.assign(variable + 1.0)
    np.testing.assert_equal(duplicate.numpy(), before)
    duplicate.assign_sub(2.0)
    np.testing.assert_equal(variable.numpy(), before + 1)
    np.testing.assert_equal(duplicate.numpy(), before - 2)


def test_copies_of_a_container_share_what_the_originals_share():
    mesh = mtf.Mesh("data:2")
    variable = mtf.Variable(mesh, "d:2", "ones", name="v")
    first, second = copy.deepcopy([variable, {"v": variable}])
    assert first is second["v"]
    assert first is not variable


def test_a_variable_of_an_abstract_mesh_is_copied_without_a_value():
    mesh = mtf.Mesh("data:2", devices="abstract")
    variable = mtf.Variable(mesh, "d:2", "ones", name="v")
    assert copy.deepcopy(variable).mesh is mesh
