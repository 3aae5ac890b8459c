"""meshtf.runtime.tf_internals.switches: one table of private uses, and steps without
them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers
from meshtf.runtime import tf_internals
from meshtf.runtime.placed.program import function_calls
from meshtf.runtime.tf_internals.switches import PRIVATE, VARIABLE, private

FOLDER = Path(tf_internals.__file__).parent
WITHOUT_PRIVATE_USE = {"private_module.py", "__init__.py", "switches.py"}
SWITCHES = [name for name, row in PRIVATE.items() if row.public is not None]


def test_each_file_is_in_the_table():
    files = {path.name for path in FOLDER.glob("*.py")} - WITHOUT_PRIVATE_USE
    assert files == {file for row in PRIVATE.values() for file in row.files}


def test_switches_turn_off_what_has_a_public_way(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert all(map(private, PRIVATE))
    monkeypatch.setenv(VARIABLE, "1")
    assert [name for name in PRIVATE if private(name)] == [
        name for name, row in PRIVATE.items() if row.public is None
    ]
    monkeypatch.setenv(VARIABLE, "onednn,packed_handles")
    assert not private("onednn") and not private("packed_handles")
    assert private("bare_handles")


def steps(devices):
    """Returns three losses, the variables after them, and devices of the last result."""
    mesh = mtf.Mesh(
        "data:4", "batch:data", optimizer_layout="d:data", devices=devices, seed=0
    )
    ws = [
        mtf.Variable(mesh, shape, initializers.normal(0.5), f"w{k}")
        for k, shape in enumerate(("d:8;e:4", "e:4;d:8", "d:8"))
    ]
    adam = optimizers.AdamW(ws, 0.25, weight_decay=0.5)

    @mtf.function(mesh=mesh, x="batch;d", step="")
    def train(x, step):
        h = mtf.softmax(mtf.einsum([x, ws[0]], "batch;e"), "e")
        y = mtf.einsum([h, ws[1]], "batch;d") + ws[2]
        loss = mtf.reduce_mean(mtf.square(y))
        adam.apply_gradients(mtf.gradients([loss], ws), ws, step)
        return loss

    x = np.random.default_rng(0).standard_normal((8, 8), "float32")
    losses = [float(train(x, np.int32(step)).numpy()) for step in range(3)]
    return losses, [w.numpy() for w in ws]


@pytest.mark.parametrize("devices", [None, "logical:4"])
@pytest.mark.parametrize("off", ["1", *SWITCHES])
def test_steps_are_the_same_without_private_uses(devices, off, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    expected = steps(devices)
    monkeypatch.setenv(VARIABLE, off)
    got = steps(devices)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4)
    for a, b in zip(got[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_nothing_of_tensorflow_is_replaced_while_a_program_is_traced(monkeypatch):
    func_graph = type(tf.function(lambda: 1).get_concrete_function().graph)
    ops = sys.modules[tf.Graph.__module__]
    op_def_library = sys.modules[f"{ops.__name__.rpartition('.')[0]}.op_def_library"]
    watched = op_def_library, ops, tf.Graph, func_graph
    before = [dict(vars(x)) for x in watched]
    changed: set[str] = set()
    graphs = 0
    definition_of = function_calls.definition_of

    def looking(function):
        nonlocal graphs
        graphs += 1
        for x, attributes in zip(watched, before, strict=True):
            changed.update(k for k, v in vars(x).items() if attributes.get(k) is not v)
        for name in ("_create_op_internal", "capture", "create_op"):
            method = getattr(function.graph, name).__func__
            if method is not getattr(func_graph, name):
                changed.add(name)
        return definition_of(function)

    monkeypatch.setattr(function_calls, "definition_of", looking)
    mtf.function(lambda x: x * x + 1.0)(mtf.ones(mtf.Mesh("a:2", "b:a"), "b:4"))
    assert graphs == 1 and not changed
