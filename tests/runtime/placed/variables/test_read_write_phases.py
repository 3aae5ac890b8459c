"""The order of steps between segments: what is alike side by side, and nothing before
its time.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers
from meshtf.partition import ReadStep, ReshardStep, WriteStep
from meshtf.runtime.placed.variables.read_write_phases import phases_of

MESH = mtf.Mesh("data:2;model:2", "batch:data;e:model", optimizer_layout="d:data")


def sorted_steps(fn, **layouts):
    """Returns what is between segments of a program, as it was and in phases."""
    step = mtf.function(fn, mesh=MESH, **layouts)
    program = step.lower(np.ones((4, 8), "float32")).program
    steps = [
        s for s in program.steps if isinstance(s, (ReadStep, WriteStep, ReshardStep))
    ]
    return steps, phases_of(steps, MESH)


def variables(count):
    return [
        mtf.Variable(MESH, "d:8;e:4", initializers.ones, f"w{k}") for k in range(count)
    ]


def check(steps, phases):
    """Holds phases to an order in which everything that a step needs is there."""
    order = [s for phase in phases for steps in phase for s in steps]
    assert len(order) == len(steps) and set(map(id, order)) == set(map(id, steps))
    made_here = {v for s in steps for v in s.outputs}
    available = set()
    for s in order:
        assert all(v in available for v in s.dependencies if v in made_here), s
        available.update(s.outputs)
    written = {
        store
        for s in steps
        if isinstance(s, WriteStep)
        for store in s.variables or (None,)
    }
    for store in written:  # None: what tells the world

        def touches(s, store=store):
            return (
                s.store is store
                if isinstance(s, ReadStep)
                else isinstance(s, WriteStep) and store in (s.variables or (None,))
            )

        assert [s for s in steps if touches(s)] == [s for s in order if touches(s)]


def test_a_training_step_reads_cuts_and_writes_side_by_side():
    ws = variables(3)
    adam = optimizers.Adam(ws, 0.1)

    def step(x):
        loss = mtf.reduce_sum(
            mtf.square(sum(mtf.einsum([x, w], "batch;e") for w in ws))
        )
        adam.apply_gradients(
            mtf.gradients([loss], ws), ws, mtf.zeros(MESH, "", "int32")
        )
        return loss

    steps, phases = sorted_steps(step, x="batch;d")
    check(steps, phases)
    assert len(phases) == 2  # the variables' parts are updated, then they
    assert len(phases[0].reads) == len(phases[0].slices) == len(phases[0].writes) == 3
    assert [s.title for s in phases[0].writes] == ["adamupdate"] * 3
    assert [s.title for s in phases[1].writes] == ["write"] * 3


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_reads_and_writes_keeps_its_meaning(seed):
    print("seed", seed)
    rng = np.random.default_rng(seed)
    ws = variables(3)

    def step(x):
        values = [mtf.reduce_sum(x) * 1.0]
        for _ in range(12):
            w = ws[rng.integers(3)]
            if rng.integers(4) == 0:
                mtf.print(w.tensor(), "w")
            elif rng.integers(2):
                w.assign(
                    w.tensor() * 0.5 if rng.integers(2) else mtf.zeros(MESH, w.shape)
                )
            else:
                values.append(mtf.reduce_sum(w.tensor()))
        return values

    check(*sorted_steps(step, x="batch;d"))
