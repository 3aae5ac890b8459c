"""A function that is traced again and again says so, and names the argument that causes
it.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import meshtf as mtf


def warned(run):
    """Returns the warnings of a function that is traced again and again."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in found if w.category is mtf.TraceWarning]


def test_a_python_value_that_changes_is_named():
    mesh = mtf.Mesh("")
    f = mtf.function(lambda x, k, scale: x * k * scale, mesh=mesh, x="batch")

    def run(first, last):
        for step in range(first, last):
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
    free = mtf.function(lambda flag, more: more["x"] * 2.0)
    (text,) = warned(
        lambda: [named(np.ones((2, n), "float32"), n % 2 > 0) for n in range(1, 30)]
    )
    assert "'tokens'" in text and "[batch:2 length:1]" in text and "'flag'" not in text
    assert "pad" in text
    (text,) = warned(
        lambda: [free(True, {"x": mtf.ones(mesh, [("d", n)])}) for n in range(1, 30)]
    )
    assert "'more'" in text and "[d:1]" in text


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
    """Has a function of its own."""

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
