"""Objects of all public classes print as a few lines that say what they are."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import meshtf as mtf
from meshtf.testing import check_op
from tests.totality.calls import things
from tests.totality.test_totality import called, public, table

MAX_LINES = 20
MAX_CHARACTERS = 4_000


def is_short(text):
    """Whether a repr is short and no default of Python."""
    lines = text.split("\n")
    return (
        len(lines) <= MAX_LINES and len(text) <= MAX_CHARACTERS and " at 0x" not in text
    )


def constructed():
    """Returns the names of public classes in the tables of calls."""
    classes = {name for name, thing in public() if inspect.isclass(thing)}
    return sorted(classes & table().keys())


@pytest.mark.parametrize("name", constructed())
def test_constructed_objects(name):
    call = table()[name]
    if not call.runs:
        pytest.skip("the table says that the call is not made")
    instance = called(name, call)(*call.args, **call.kwargs)
    assert is_short(repr(instance)), repr(instance)


def step(x):
    """A step with enough ops for a long table."""
    for _ in range(40):
        x = mtf.tanh(x * x)
    return x


def other_objects():
    """Yields objects that functions return."""
    t = things()
    function = mtf.function(step, mesh=t.mesh, x="batch;d")
    array = np.ones((4, 6), "float32")
    yield "Function", function
    yield "lower", function.lower(array)
    yield "Forecast", mtf.explain(function, array)
    yield "Export", mtf.export(function, array)
    yield "SavedModel", mtf.export_saved_model(function, array)
    yield "Tensor", t.x
    yield "Variable", t.v
    yield "Mesh", t.mesh
    yield "Layout", t.mesh.layout
    yield "Shape", t.x.shape
    yield "Dimension", t.x.shape.dim("d")
    yield "Spec", t.x.spec
    yield "Sharded", mtf.Sharded("d")
    yield "Placement", t.x.placement


@pytest.mark.parametrize("kind, thing", list(other_objects()))
def test_objects_of_functions(kind, thing):
    assert is_short(repr(thing)), repr(thing)


def test_functions_say_arguments_and_programs():
    t = things()
    function = mtf.function(lambda x, n: x * n, mesh=t.mesh, x="batch;d")
    assert repr(function) == (
        "<mtf.function <lambda>(x='batch;d', n): 0 programs compiled>"
    )
    function(np.ones((4, 6), "float32"), 2.0)
    assert repr(function).endswith(": 1 program compiled>")


def test_a_forecast_says_how_much_it_leaves_out():
    forecast = mtf.explain(step, things().x)
    assert repr(forecast).split("\n")[-1].endswith("more lines: print it")
    assert "FLOPs" in repr(forecast)
    assert "<pre" in forecast._repr_html_()


def test_reports_of_ops_show_reasons():
    class Wrong(mtf.graph.Op):
        conformance_samples = (mtf.graph.Sample((), ("b:4;d:6",)),)

        def output_specs(self, x):
            return (x,)

        def local(self, context, x):
            return (x + 1.0 if context.num_shards("b") > 1 else x,)

        def gradient(self, dy, y, x):
            return [dy]

    class Empty(Wrong):
        conformance_samples = ()

    report = check_op(Wrong)
    assert not report
    assert report.failures[0].split("\n")[0] in str(report)
    assert is_short(repr(report))
    assert not check_op(Empty)
    assert "Empty has no samples" in str(check_op(Empty))
    # The attribute that the message names is the one that is read.
    assert "conformance_samples = (mtf.graph.Sample(" in str(check_op(Empty))
