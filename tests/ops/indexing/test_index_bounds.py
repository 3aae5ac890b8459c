"""Indices out of range: refused under every layout, with the op, the line and the index."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

LAYOUTS = ["", "v:model", "b:data", "b:data; v:model"]
TABLE = np.arange(24, dtype="float32").reshape(8, 3) + 1


def mesh_of(layout):
    return mtf.Mesh("data:2; model:2", layout)


def ids_of(mesh, *indices, dtype="int32"):
    return mtf.asarray(mesh, np.array(indices, dtype), "b")


def table_of(ids, dtype="float32"):
    return mtf.cast(mtf.asarray(ids.mesh, TABLE, "v;d"), dtype)


def summed(ids):
    table = table_of(ids)
    return mtf.scan(
        lambda total, i: (total + mtf.reduce_sum(mtf.gather(table, i, "v")), None),
        mtf.zeros(ids.mesh, ""),
        ids,
        "b",
    )[0]


def by_gradient(ids):
    table = table_of(ids)
    return mtf.gradients([mtf.gather(table, ids, "v")], [table])[0]


def in_groups(ids):
    wide = mtf.broadcast(ids, mtf.Shape("b:4;c:2"))
    return mtf.segment_sum(mtf.cast(wide, "float32"), wide, "v:8", batch="b")


def values(ids):
    return mtf.cast(ids, "float32")


# What refuses 8 and more of ids, and what refuses negatives, too.
TOO_LARGE = {
    "zero_negative": lambda ids: mtf.gather(
        table_of(ids), ids, "v", zero_negative=True
    ),
    "segment_sum": lambda ids: mtf.segment_sum(values(ids), ids, "v:8"),
    "in groups": in_groups,
    "segment_max": lambda ids: mtf.math.segment_max(values(ids), ids, "v:8"),
    "segment_mean": lambda ids: mtf.math.segment_mean(values(ids), ids, "v:8"),
    "scatter": lambda ids: mtf.scatter(values(ids), ids, "v:8"),
    "scatter_add": lambda ids: mtf.scatter_add(
        mtf.zeros(ids.mesh, "v:8"), ids, values(ids), "v"
    ),
    "scatter_update": lambda ids: mtf.scatter_update(
        mtf.zeros(ids.mesh, "v:8"), ids, values(ids), "v"
    ),
    "cross_entropy": lambda ids: mtf.cross_entropy(
        mtf.zeros(ids.mesh, "b:4;v:8"), ids, "v"
    ),
}
BOTH = {
    "gather": lambda ids: mtf.gather(table_of(ids), ids, "v"),
    "integers": lambda ids: mtf.gather(table_of(ids, "int32"), ids, "v"),
    "truth": lambda ids: mtf.gather(table_of(ids) > 3.0, ids, "v"),
    "batch": lambda ids: mtf.gather(
        mtf.broadcast(table_of(ids), "v:8;b:4;d:3"), ids, "v"
    ),
    "take_along_axis": lambda ids: mtf.take_along_axis(
        table_of(ids), mtf.rename(ids, "b", "v"), "v"
    ),
    "loop": summed,
    "gradient": by_gradient,
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*TOO_LARGE, *BOTH])
def test_is_refused_by_op_number_and_line(name, layout, recorded):
    mesh, function = mesh_of(layout), {**TOO_LARGE, **BOTH}[name]
    run = mtf.function(function, mesh=mesh) if recorded else function
    for bad in (8, -2) if name in BOTH else (8,):
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            np.asarray(run(ids_of(mesh, 1, bad, 0, 3)).numpy())
        text = error.value.message
        assert "failed: " in text and str(bad) in text and "[0, 8)" in text, text
        assert "test_index_bounds.py:" in text, text
    run(ids_of(mesh, 1, 7, 0, 3))


@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
@pytest.mark.parametrize("axes, layout", [("x:2", "b:x"), ("x:4", "b:x;v:x")])
def test_is_an_error_of_meshtf_with_the_line_on_every_runtime(axes, layout, devices):
    mesh = mtf.Mesh(axes, layout.split(";")[-1], devices=devices)
    table = mtf.Variable(mesh, "v:8;d:3", mtf.layers.initializers.ones, "table")

    def by_gather(ids):
        return mtf.gather(table, ids, "v")

    def after_an_update(ids):
        table.assign(table * 1.0)
        return mtf.reduce_sum(mtf.gather(table, ids, "v"))

    def checked(ids):
        with mtf.check_numerics():
            return mtf.function(by_gather, mesh=mesh)(ids)

    runs = [by_gather, checked]
    runs += [mtf.function(f, mesh=mesh) for f in (by_gather, by_gradient, summed)]
    runs.append(mtf.function(after_an_update, mesh=mesh))
    for run in runs:
        with pytest.raises(mtf.IndexRangeError) as error:
            run(ids_of(mesh, 1, 8, 0, 3)).numpy()
        assert isinstance(error.value, (IndexError, mtf.MeshtfError))
        text = str(error.value)
        assert "8 is not in [0, 8)" in text or "8 is out of range" in text
        assert "test_index_bounds.py:" in text and "of the dimension" in text
        assert ("may be NaN" in text) == (devices is not None and run is runs[-1])
        run(ids_of(mesh, 1, 7, 0, 3)).numpy()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_and_other_types_of_numbers(layout):
    mesh = mesh_of(layout)
    embed = mtf.layers.Embedding(mesh, "v:8", "d:3")
    for dtype in ("int64", "uint8", "int8", "uint32"):
        assert embed(ids_of(mesh, 7, 0, 1, 2, dtype=dtype)).shape == mtf.Shape(
            "b:4;d:3"
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match="gather failed.*"):
            embed(ids_of(mesh, 7, 100, 1, 2, dtype=dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_elements_than_a_small_type_has_numbers_for(layout):
    mesh = mesh_of(layout)
    table = mtf.range(mesh, "v:300", "float32")
    ids = ids_of(mesh, 127, 0, 1, 2, dtype="int8")
    np.testing.assert_array_equal(mtf.gather(table, ids, "v").numpy(), [127, 0, 1, 2])
    with pytest.raises(tf.errors.InvalidArgumentError):
        mtf.gather(table, ids_of(mesh, 127, -1, 1, 2, dtype="int8"), "v")


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_zeros_for_who_wants_them(layout, jit):
    mesh = mesh_of(layout)

    def rows(ids):
        table = table_of(ids)
        y = mtf.gather(table, ids, "v", out_of_range="zeros")
        along = mtf.take_along_axis(
            table, mtf.rename(ids, "b", "v"), "v", out_of_range="zeros"
        )
        hot = mtf.one_hot(ids, "v:8")
        return y, along, hot, mtf.gradients([y * y], [table])[0]

    want = np.stack([TABLE[1], 0 * TABLE[0], 0 * TABLE[0], TABLE[3]])
    for run in (rows, mtf.function(rows, mesh=mesh, jit=jit)):
        y, along, hot, dx = run(ids_of(mesh, 1, 8, -5, 3))
        np.testing.assert_array_equal(y.numpy(), want)
        np.testing.assert_array_equal(along.numpy(), want)
        np.testing.assert_array_equal(hot.numpy(), np.eye(9)[[1, 8, 8, 3], :8])
        np.testing.assert_array_equal(
            dx.numpy(), 2 * TABLE * np.isin(np.arange(8), [1, 3])[:, None]
        )
    with pytest.raises(
        mtf.ArgumentError, match="(?s)'error', 'zeros', not.*test_index_bounds.py"
    ):
        ids = ids_of(mesh, 0, 1, 2, 3)
        mtf.gather(table_of(ids), ids, "v", out_of_range="nan")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_xla_has_nan_and_the_least_integer(layout):
    mesh = mesh_of(layout)

    @mtf.function(mesh=mesh, jit=True)
    def run(ids):
        logits = mtf.one_hot(mtf.range(mesh, "b:4"), "v:8") * 2.0
        loss = mtf.cross_entropy(logits, ids, "v")
        return (
            mtf.gather(table_of(ids), ids, "v"),
            mtf.gather(table_of(ids, "int32"), ids, "v"),
            mtf.gather(table_of(ids), ids, "v", zero_negative=True),
            mtf.segment_sum(values(ids), ids, "v:8"),
            loss,
            mtf.gradients([loss], [logits])[0],
        )

    y, int_y, masked_y, sums, loss, dx = (
        t.numpy() for t in run(ids_of(mesh, 1, 8, -1, 3))
    )
    np.testing.assert_array_equal(y, [TABLE[1], [np.nan] * 3, [np.nan] * 3, TABLE[3]])
    np.testing.assert_array_equal(int_y[1:3], np.iinfo("int32").min)
    np.testing.assert_array_equal(int_y[[0, 3]], TABLE[[1, 3]])
    np.testing.assert_array_equal(masked_y, [TABLE[1], [np.nan] * 3, [0] * 3, TABLE[3]])
    np.testing.assert_array_equal(sums, [0, 1, 0, 3, 0, 0, 0, 0])
    np.testing.assert_array_equal(np.isnan(loss), [False, True, False, False])
    np.testing.assert_array_equal(np.isnan(dx).all(1), [False, True, False, False])
    assert loss[2] == 0 and not dx[2].any() and np.isfinite(dx[[0, 3]]).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_saved_model_refuses_them(layout, tmp_path):
    mesh = mesh_of(layout)
    table = mtf.Variable(
        mesh, "v:8;d:3", mtf.layers.initializers.ones, f"table_{len(layout)}"
    )

    @mtf.function(mesh=mesh, ids="b")
    def rows(ids):
        return mtf.gather(table, ids, "v")

    mtf.export_saved_model(rows, np.zeros(4, "int32")).save(str(tmp_path / "model"))
    call = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    call(ids=tf.constant([0, 7, 1, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        call(ids=tf.constant([0, 8, 1, 2]))
