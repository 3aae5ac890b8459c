"""Ids out of range on live meshes: no op of XLA raises an error, so the host does, with the
op and the line, when it reads something, or at a later call.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

LAYOUTS = {
    "one device": ("", ""),
    "sharded ids": ("data:4", "batch:data"),
    "sharded table": ("data:2;model:2", "batch:data;vocab:model"),
}
TABLE = np.arange(32, dtype="float32").reshape(8, 4)
IDS = np.array([1, 5, 7, 0])
WRONG = np.array([1, 5, 8, 0])
MESSAGE = r'(?s)the index 8 is not in \[0, 8\) of "vocab".*from .*test_run_checks.py'


def made_mesh(name="sharded table"):
    axes, layout = LAYOUTS[name]
    return mtf.Mesh(axes, layout, devices="spmd:cpu")


def table_on(mesh, shape="vocab:8;d:4", name="table"):
    table = mtf.Variable(mesh, shape, "zeros", name)
    table.assign(TABLE[: table.shape.sizes[0]])
    return table


def lookup_on(mesh):
    table = table_on(mesh)
    return mtf.function(lambda ids: mtf.gather(table, ids, "vocab"), ids="batch")


def summed_over_steps(mesh):
    """A lookup in a loop, of which only the last iteration's ids may be wrong."""
    table = table_on(mesh)

    @mtf.function(ids="batch", mesh=mesh)
    def f(ids):
        def body(ids, _):
            return ids + 1, mtf.gather(table, ids, "vocab")

        _, looked_up = mtf.scan(body, ids - 2, None, "t", 3)
        return mtf.reduce_sum(looked_up, "t")

    return f


def in_a_branch(mesh):
    table = table_on(mesh)

    @mtf.function(ids="batch", mesh=mesh)
    def f(ids):
        return mtf.cond(
            mtf.reduce_max(ids) > 6,
            lambda: mtf.gather(table, ids, "vocab"),
            lambda: mtf.zeros(mesh, "batch:4;d:4"),
        )

    return f


def cross_entropy(mesh):
    logits = mtf.Variable(mesh, "batch:4;vocab:8", "ones", "logits")
    return mtf.function(
        lambda ids: mtf.cross_entropy(logits, ids, "vocab"), ids="batch"
    )


@pytest.mark.sampled(4, each="name make")
@pytest.mark.parametrize("make", [lookup_on, in_a_branch, cross_entropy])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_reader_of_a_result_gets_the_error(name, make):
    f = make(made_mesh(name))
    f(IDS.astype("int32")).numpy()
    y = f(WRONG.astype("int32"))
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=MESSAGE):
            y.numpy()
    f(IDS.astype("int32")).numpy()


def test_the_next_call_or_the_next_read_of_a_variable_raises_it_once():
    mesh = made_mesh()
    v = mtf.Variable(mesh, "batch:4", "zeros", "v")
    f = lookup_on(mesh)
    f(WRONG)
    with pytest.raises(tf.errors.InvalidArgumentError, match=MESSAGE):
        v.numpy()
    np.testing.assert_array_equal(v.numpy(), np.zeros(4))
    f(WRONG)
    with pytest.raises(tf.errors.InvalidArgumentError, match=MESSAGE):
        for _ in range(1000):
            f(IDS)
    np.testing.assert_array_equal(f(IDS).numpy(), TABLE[IDS])


def test_a_later_result_is_not_nan_in_silence():
    mesh = made_mesh()
    table = table_on(mesh)

    @mtf.function(ids="batch", mesh=mesh)
    def step(ids):
        y = mtf.gather(table, ids, "vocab")
        (gradient,) = mtf.gradients([mtf.reduce_sum(y * y)], [table])
        table.assign(table - gradient * mtf.reduce_sum(y))
        return mtf.reduce_sum(y)

    total = mtf.function(lambda: mtf.reduce_sum(table), mesh=mesh)  # checks nothing
    assert np.isfinite(step(IDS).numpy()) and np.isfinite(total().numpy())
    table.assign(TABLE)
    with pytest.raises(mtf.IndexRangeError, match="may be NaN now"):
        step(WRONG)
        total().numpy()
    table.assign(TABLE)
    assert total().numpy() == TABLE.sum() and np.isfinite(step(IDS).numpy())


def test_the_first_failure_of_a_program_is_reported():
    mesh = made_mesh()
    first = table_on(mesh)
    second = table_on(mesh, "classes:2;d:4", "second")

    @mtf.function(ids="batch", mesh=mesh)
    def f(ids):
        x = mtf.gather(first, ids, "vocab")
        return x + mtf.gather(second, ids, "classes")

    with pytest.raises(tf.errors.InvalidArgumentError, match='not in .*"vocab"'):
        f(np.array([0, -1, 3, 1])).numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match='5 is not .*"classes"'):
        f(np.array([0, 1, 5, 1])).numpy()


def test_loops():
    f = summed_over_steps(made_mesh())
    assert f(np.array([2, 5, 6, 3])).numpy().shape == (4, 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the index 8 is not in"):
        f(np.array([2, 5, 8, 3])).numpy()


def test_other_policies_are_no_errors():
    mesh = made_mesh()
    table = table_on(mesh)

    @mtf.function(ids="batch", mesh=mesh)
    def f(ids):
        return mtf.gather(table, ids, "vocab", out_of_range="zeros")

    np.testing.assert_array_equal(f(WRONG).numpy()[2], np.zeros(4))


def test_no_run_is_kept_once_it_was_looked_at():
    from meshtf.runtime.spmd.live import run_checks

    mesh = made_mesh()
    f = lookup_on(mesh)
    for _ in range(20):
        f(IDS).numpy()
    f(IDS).numpy()
    assert len(run_checks._runs[mesh]) <= 2
    del f, mesh
    gc.collect()


def test_exported_modules_have_no_record(tmp_path):
    mesh = mtf.Mesh("data:2;model:2", "batch:data;vocab:model")
    table = table_on(mesh)
    f = mtf.function(lambda ids: mtf.gather(table, ids, "vocab"), ids="batch")
    exported = mtf.export(f, IDS)
    assert [port.name for port in exported.inputs] == ["table", "ids"]
