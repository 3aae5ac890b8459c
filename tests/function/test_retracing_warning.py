"""A function that is traced again and again says so, names the argument that causes it,
and drops the programs that were not used for longest.
"""

from __future__ import annotations

import gc
import warnings
import weakref

import numpy as np
import pytest

import meshtf as mtf
from meshtf.function import function
from tests.support.refusals import ones, refuses


def warned(run):
    """Returns the warnings of a function that is traced again and again."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in caught if w.category is mtf.TraceWarning]


def test_a_python_value_that_changes_is_named():
    mesh = mtf.Mesh("")
    f = mtf.function(lambda x, k, scale: x * k * scale, mesh=mesh, x="batch")

    def run(start, stop):
        for step in range(start, stop):
            f(np.ones(2 + step % 2, "float32"), step, 2.0)

    assert warned(lambda: run(0, 18)) == []
    assert f.traces == 18
    (text,) = warned(lambda: run(18, 60))  # once
    assert "20 traces" in text and "'k'" in text and "0, 1, 2" in text
    assert "'scale'" not in text and "'x'" not in text and 'k=""' in text


def test_a_shape_that_changes_is_named():
    mesh = mtf.Mesh("")
    named = mtf.function(
        lambda tokens, flag: tokens * 2.0, mesh=mesh, tokens="batch;length"
    )
    free = mtf.function(lambda flag, extra: extra["x"] * 2.0)
    (text,) = warned(
        lambda: [named(np.ones((2, n), "float32"), n % 2 > 0) for n in range(1, 30)]
    )
    assert "'tokens'" in text and "[batch:2 length:1]" in text and "'flag'" not in text
    assert "pad" in text
    (text,) = warned(
        lambda: [free(True, {"x": mtf.ones(mesh, [("d", n)])}) for n in range(1, 30)]
    )
    assert "'extra'" in text and "[d:1]" in text


def test_a_structure_or_a_region_that_changes_is_named():
    mesh = mtf.Mesh("model:2")
    f = mtf.function(lambda xs: mtf.add_n(xs), mesh=mesh)
    (text,) = warned(lambda: [f([mtf.ones(mesh, "d:2")] * n) for n in range(1, 30)])
    assert "'xs'" in text
    g = mtf.function(lambda x: x + 1.0, mesh=mesh)

    def run():
        for n in range(25):
            with mtf.layout(f"d_{n}:model"):
                g(mtf.ones(mesh, "d:2"))

    (text,) = warned(run)
    assert "mtf.layout" in text


class Layer:
    """Has its own function."""

    def __init__(self, mesh, scale):
        self.scale = mtf.full(mesh, "", scale)

    @mtf.function
    def apply(self, x, k):
        return x * self.scale * k


def test_objects_with_functions_may_be_many():
    mesh = mtf.Mesh("")
    x = mtf.ones(mesh, "d:2")
    layers = [Layer(mesh, float(n)) for n in range(30)]
    assert warned(lambda: [layer.apply(x, 1.0) for layer in layers]) == []
    (text,) = warned(lambda: [layers[0].apply(x, float(k)) for k in range(30)])
    assert "'k'" in text and "'self'" not in text


@pytest.mark.filterwarnings("error::meshtf.TraceWarning")
def test_few_traces_are_quiet():
    mesh = mtf.Mesh("")
    f = mtf.function(lambda x, k: x * k, mesh=mesh, x="batch")
    for _ in range(10):
        for k in range(10):
            f(np.ones(2, "float32"), k)


def scaled(mesh):
    """Returns a function of an array and a Python value, and the list of its traces."""
    bodies = []

    @mtf.function(mesh=mesh, x="batch")
    def f(x, k):
        bodies.append(k)
        return x * k

    return f, bodies


@pytest.mark.filterwarnings("ignore::meshtf.TraceWarning")
def test_a_function_holds_no_more_programs_than_it_says():
    f, bodies = scaled(mtf.Mesh(""))
    many = function.MAX_PROGRAMS + 3
    for k in range(many):
        f.lower(np.ones(2, "float32"), k)
    assert len(f._compiled) == function.MAX_PROGRAMS
    assert f"At most {function.MAX_PROGRAMS} programs" in mtf.function.__doc__
    assert f.traces == len(bodies) == many


def test_the_least_recently_used_program_is_dropped(monkeypatch):
    monkeypatch.setattr(function, "MAX_PROGRAMS", 3)
    f, bodies = scaled(mtf.Mesh("data:2", "batch:data"))
    x = np.arange(4, dtype="float32")
    f(x, 0)
    oldest = weakref.ref(next(iter(f._compiled.values()))[0])
    for k in (1, 2, 1, 2, 3):  # 0 goes
        np.testing.assert_array_equal(f(x, k).numpy(), x * k)
    gc.collect()
    assert oldest() is None  # and what it holds
    f(x, 1)
    assert bodies == [0, 1, 2, 3]
    np.testing.assert_array_equal(f(x, 0).numpy(), x * 0)  # 2 goes, 3 and 1 stay
    np.testing.assert_array_equal(f(x, 1).numpy(), x)
    np.testing.assert_array_equal(f(x, 3).numpy(), x * 3)
    assert bodies == [0, 1, 2, 3, 0]
    np.testing.assert_array_equal(f(x, 2).numpy(), x * 2)
    assert bodies == [0, 1, 2, 3, 0, 2]
    assert (f.traces, len(f._compiled)) == (6, 3)


def test_results_of_a_dropped_program_have_gradients(monkeypatch):
    monkeypatch.setattr(function, "MAX_PROGRAMS", 1)
    mesh = mtf.Mesh("data:2", "batch:data")
    f = mtf.function(lambda x, k: x * x * k)
    x = mtf.asarray(mesh, np.arange(4, dtype="float32"), "batch")
    y = f(x, 3.0)
    f(x, 5.0)
    (dx,) = mtf.gradients([y], [x])
    np.testing.assert_array_equal(dx.numpy(), 6 * np.arange(4))


def test_what_a_dropped_program_wrote_is_still_known(monkeypatch):
    monkeypatch.setattr(function, "MAX_PROGRAMS", 1)
    mesh = mtf.Mesh("")
    v = mtf.Variable(mesh, "d:4", ones, "v")
    square = mtf.function(lambda: v * v, mesh=mesh)
    write = mtf.function(lambda k: v.assign(v + k), mesh=mesh)
    for k in range(4):
        write(float(k))
    y = square()
    write(4.0)
    write.lower(5.0)  # drops what wrote, and does not run
    assert len(v.writers) == 2  # by no function, and by the program that is held
    with refuses(mtf.PlanError, "was written since"):
        mtf.gradients([mtf.reduce_sum(y)], [v])
    np.testing.assert_array_equal(v.numpy(), 1 + 0 + 1 + 2 + 3 + 4)
