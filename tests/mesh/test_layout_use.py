"""What is said of a program's layout belongs to the program: a mesh remembers nothing of
it, and each warning is given once.
"""

from __future__ import annotations

import gc
import warnings
import weakref

import numpy as np
import pytest
from absl import logging

import meshtf as mtf
from meshtf.graph import Graph, executing
from meshtf.graph.apply import apply_unchecked
from meshtf.graph.used_layouts import layout_use, recorded_layout_use
from meshtf.mesh import mesh as mesh_module
from meshtf.mesh import once_per_mesh
from meshtf.partition import build
from tests.support.refusals import ones, refuses

X = np.ones((4, 4), "float32")
CACHES = {"_layouts", "_placements", "_groups", "coords", "axis_index", "notes"}


def writer(mesh, dims="batch;d"):
    """Returns a program that writes a variable."""
    w = mtf.Variable(mesh, "d:4", ones, "w")
    return mtf.function(
        lambda x: w.assign(w + mtf.reduce_sum(x, dims.split(";")[0])), mesh=mesh, x=dims
    )


def warned(run):
    """Returns the texts of all layout warnings of a run."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in caught if w.category is mtf.LayoutWarning]


def test_a_mesh_does_not_change():
    mesh = mtf.Mesh("data:2;model:2", "bach:data")

    def attributes():
        return {k: repr(v) for k, v in vars(mesh).items() if k not in CACHES}

    before = attributes()
    step = writer(mesh)

    def run():
        step(X)
        with mtf.layout("e:modle"):
            step.explain(X)
            mtf.ones(mesh, "e:3")

    # Of bach and of modle; the forecast, whose layout is that of the region, of e and model.
    assert len(warned(run)) == 4
    assert attributes() == before


def clashing(mesh):
    """Returns a function one of whose tensors does not fit the layout, in a branch."""
    x = mtf.ones(mesh, "batch:4;d:4")
    w = mtf.ones(mesh, "e:4")

    def outer():
        with mtf.layout("d:"):
            op = mtf.einsum([x, w], "batch;d;e").node.op
        return mtf.reduce_sum(apply_unchecked(op, x, w)[0])

    return lambda p: mtf.cond(p, outer, lambda: mtf.reduce_sum(x))


def test_notes_of_the_planner_are_the_programs(monkeypatch):
    lines = []
    monkeypatch.setattr(logging, "info", lambda form, text: lines.append(text))
    mesh = mtf.Mesh("data:2;model:2", "batch:data;d:model;e:model")
    f = clashing(mesh)
    p = mtf.ones(mesh, "", "bool")
    for _ in range(2):
        (note,) = mtf.explain(f, p).notes
        assert "[batch:4 d:4 e:4]" in note
        assert "keeps e replicated: model already shards d." in note
    assert lines == [note]  # once
    graph = Graph(mesh)
    with executing(graph):
        y = f(p)
    assert build(graph.nodes, [y], mesh).notes == (note,)
    plain = mtf.explain(lambda a, b: (a, b), mtf.ones(mesh, "batch:4;d:4"), 1)
    assert not any("keeps" in text for text in plain.notes)


def test_a_forecast_does_not_depend_on_what_ran_before():
    mesh = mtf.Mesh("data:2;model:2", "batch:data;d_ff:model;dff:model")
    step = writer(mesh)
    with pytest.warns(mtf.LayoutWarning):
        before = step.explain(X)
    assert [n.partition(":")[0] for n in before.notes] == [
        "layout rule d_ff",
        "layout rule dff",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step(X)
        mtf.ones(mesh, "d_ff:4")
        with mtf.layout("e:modle"):
            mtf.ones(mesh, "e:4")
        writer(mesh, "dff;d")(X)
    assert str(step.explain(X)) == str(before)


def test_a_forecast_tells_of_regions():
    mesh = mtf.Mesh("data:2", "batch:data", optional_axes="dat")

    def f(x):
        with mtf.layout("d:dat; e:data"):
            return x * 1.0

    notes = mtf.explain(f, mtf.ones(mesh, "batch:4;d:4")).notes
    assert [n.partition(":")[0] for n in notes] == ["layout rule d", "layout rule e"]
    assert "layout rule d:dat" in notes[0] and "counts as size 1" in notes[0]
    assert "no dimension of this program" in notes[1]


def test_no_warning_of_what_other_programs_have():
    rules = "batch:data;d_ff:data;vocab:data;heads:data"
    mesh = mtf.Mesh("data:2", rules)
    mtf.ones(mesh, "vocab:4")  # eagerly
    mtf.Variable(mesh, "d_ff:4", ones, "v")
    mtf.function(lambda x: x * 1.0, mesh=mesh, x="heads")(np.ones(4, "float32"))
    step = writer(mesh)
    assert warned(lambda: step(X)) == []
    fresh = writer(mtf.Mesh("data:2", rules))
    assert len(warned(lambda: fresh(X))) == 3


def test_a_rule_is_warned_of_once_for_all_programs_of_a_mesh():
    mesh = mtf.Mesh("data:2", "batch:data;vocab:data")
    steps = [writer(mesh) for _ in range(3)]

    def run():
        for size in (4, 8):
            for step in steps:
                step(np.ones((size, 4), "float32"))

    (text,) = warned(run)
    assert '"vocab"' in text
    other = writer(mtf.Mesh("data:2", "batch:data;vocab:data"))
    assert len(warned(lambda: other(X))) == 1  # of each mesh


def test_an_axis_of_regions_is_warned_of_once(monkeypatch):
    monkeypatch.setattr(mesh_module, "MAX_CACHED", 2)
    mesh = mtf.Mesh("data:2", "batch:data")

    def run():
        for name in "abcabc":
            with mtf.layout(f"{name}:dat"):
                mtf.ones(mesh, "batch:4")

    (text,) = warned(run)
    assert "no axis 'dat'" in text
    assert len(mesh._layouts) <= 2
    strict = mtf.Mesh("data:2", "batch:data", strict=True)
    for _ in range(2):  # asking again does not help
        with refuses(mtf.LayoutError, "no axis 'dat'"), mtf.layout("a:dat"):
            mtf.ones(strict, "batch:4")


def test_what_was_said_is_bounded_and_goes_with_its_mesh(monkeypatch):
    monkeypatch.setattr(once_per_mesh, "MAX_MESSAGES", 3)
    meshes = [mtf.Mesh("data:2", "batch:data")]
    mtf.ones(meshes[0], "batch:4")

    def run():
        for name in "abcdefabcdef":
            once_per_mesh.warn_once(meshes[0], name, name)

    assert warned(run) == ["a", "b", "c"]
    gone = weakref.ref(meshes.pop())
    gc.collect()
    assert gone() is None


def test_the_use_of_a_program():
    mesh = mtf.Mesh("data:2;model:2", "batch:data")
    with mtf.layout("d:model"):
        w = mtf.Variable(mesh, "d:4", ones, "w")
    graph = Graph(mesh)
    with executing(graph):
        x = mtf.ones(mesh, "batch:4")

        y = mtf.cond(
            mtf.reduce_sum(x) > 1.0,
            lambda: x + mtf.reduce_sum(mtf.ones(mesh, "inner:2")),
            lambda: x,
        )
        _ = mtf.reduce_sum(y) + mtf.reduce_sum(w.tensor())
    use = layout_use(graph.nodes)
    assert use.dims == {"batch", "inner", "d"}
    assert use.rules == {("d", ("model",))}
    assert recorded_layout_use(mesh).dims == {"d"}  # of the variable
