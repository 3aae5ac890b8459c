"""Printing and summaries: whole values, once, in order, in every run, and nowhere in a
module.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

MESHES = [
    ("x:2;y:2", "b:x;d:y", None),
    ("x:4", "b:x", "separate:4"),
    ("x:2", "k:x", None),
]


@pytest.fixture(params=MESHES, ids=["alias", "separate", "unfinished"])
def x(request):
    axes, layout, devices = request.param
    mesh = mtf.Mesh(axes, layout, devices=devices)
    return mtf.asarray(mesh, np.arange(16, dtype="float32").reshape(4, 4), "b;d")


def printed(capfd):
    """Returns what went to standard error, without breaks within a value."""
    return re.sub(r"\n ", " ", capfd.readouterr().err).splitlines()


def test_the_whole_tensor_is_printed_once(x, capfd):
    y = mtf.print(x, "x", summarize=-1)
    assert y is x
    assert printed(capfd) == [
        "x float32 [b:4 d:4] [[0 1 2 3] [4 5 6 7] [8 9 10 11] [12 13 14 15]]"
    ]
    mtf.print(mtf.reduce_sum(mtf.rename(x, "b", "k")))
    mtf.print(mtf.cast(x, "complex64") * 1j, "z", summarize=1)
    found = printed(capfd)
    assert found[0] == "float32 [] 120" and found[1].startswith(
        "z complex64 [b:4 d:4] [["
    )


@pytest.mark.parametrize("jit", [False, True])
def test_a_program_prints_in_every_run_in_the_order_of_its_lines(x, capfd, jit):
    def step(x):
        y = mtf.print(mtf.square(x), "first")
        mtf.print(mtf.reduce_max(y), "second")  # needs moves, and comes later by itself
        mtf.print(x, "third")
        (dx,) = mtf.gradients([mtf.reduce_sum(mtf.print(x * x, "fourth"))], [x])
        return mtf.print(dx, "fifth")

    run = mtf.function(step, jit=jit)
    for factor in (1.0, 2.0):
        run(x * factor)
        found = printed(capfd)
        assert [
            line.split()[0] for line in found
        ] == "first second third fourth fifth".split()
        assert found[1] == f"second float32 [] {225 * factor**2:g}"


def test_what_only_a_print_needs_is_not_left_out(x, capfd):
    @mtf.function
    def step(x):
        mtf.print(mtf.reduce_sum(mtf.rename(x, "b", "k")), "total")
        return x

    step(x)
    assert printed(capfd) == ["total float32 [] 120"]


def test_it_shows_a_variable_before_and_after_it_changes(capfd):
    w = mtf.Variable(
        mtf.Mesh("x:2", "d:x"),
        "d:2",
        lambda mesh, shape, name: mtf.ones(mesh, shape),
        "w",
    )

    @mtf.function(mesh=w.mesh)
    def step():
        mtf.print(w, "before")
        w.assign(w * 3.0)
        mtf.print(w, "after")

    step()
    assert printed(capfd) == ["before float32 [d:2] [1 1]", "after float32 [d:2] [3 3]"]


def test_recomputation_does_not_print_again(x, capfd):
    @mtf.function
    def step(x):
        y = mtf.recompute(lambda x: mtf.print(mtf.exp(x * 0.0), "once", summarize=1))(x)
        return mtf.gradients([mtf.square(y)], [x])

    step(x)
    assert [line.split()[0] for line in printed(capfd)] == ["once"]


def curve(folder, name):
    """Returns (step, value) of a scalar summary, as TensorBoard finds them."""
    found = []
    for path in sorted(folder.glob("events*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            found += [
                (event.step, float(tf.make_ndarray(v.tensor)))
                for v in event.summary.value
                if v.tag == name and v.metadata.plugin_data.plugin_name == "scalars"
            ]
    return found


def test_scalar_summaries_reach_the_writer(x, tmp_path):
    @mtf.function(step="")
    def train(x, step):
        loss = mtf.reduce_mean(x) * mtf.cast(step, "float32")
        return mtf.scalar_summary("loss", loss, step)

    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        for step in range(3):
            assert float(train(x, np.int32(step))) == 7.5 * step
        mtf.scalar_summary("eager", mtf.reduce_max(x), 7)
        mtf.scalar_summary(
            "eager", mtf.cast(mtf.reduce_max(x), "int32"), mtf.constant(x.mesh, 8)
        )
    assert curve(tmp_path, "loss") == [(0, 0.0), (1, 7.5), (2, 15.0)]
    assert curve(tmp_path, "eager") == [(7, 15.0), (8, 15.0)]


def test_without_a_writer_there_is_a_warning(x):
    with pytest.warns(
        UserWarning, match="(?s)'loss' is not written.*create_file_writer"
    ):
        mtf.scalar_summary("loss", mtf.reduce_mean(x), 0)


def test_what_is_no_number_is_refused(x):
    with pytest.raises(
        mtf.ShapeError, match=r"(?s)'loss' is a \[b:4 d:4\].*mtf.reduce_mean"
    ):
        mtf.scalar_summary("loss", x, 0)
    with pytest.raises(mtf.ShapeError, match="(?s)its step is a"):
        mtf.scalar_summary("loss", mtf.reduce_mean(x), mtf.cast(x, "int32"))
    with pytest.raises(mtf.DTypeError, match="(?s)is complex.*mtf.math.real"):
        mtf.scalar_summary("loss", mtf.cast(mtf.reduce_mean(x), "complex64"), 0)


def test_a_module_does_not_print(x):
    for tell in (lambda y: mtf.print(y, "y"), lambda y: mtf.scalar_summary("y", y, 0)):
        step = mtf.function(lambda x, tell=tell: tell(mtf.reduce_sum(x)))
        with pytest.raises(
            mtf.PlanError,
            match="(?s)effect on the host.*test_print_and_summary.py.*Return the",
        ):
            mtf.export(step, x)


def test_a_forecast_counts_what_printing_gathers():
    mesh = mtf.Mesh("x:4", "b:x", devices="abstract")
    forecast = mtf.explain(
        mtf.function(lambda x: mtf.print(x, "x"), mesh=mesh, x="b"),
        np.zeros(8, "float32"),
    )
    assert forecast.bytes_moved("all_gather") == 6 * 4
