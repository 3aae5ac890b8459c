"""The buffer of a pipeline: its microbatches arrive at the first stage in order, and those of
the last stage make the batch again.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.ops.loops.schedule import Schedule
from meshtf.ops.loops.slots import after_tick, entry_of, into_slots, out_of_slots


def schedule(num_stages, num_microbatches, repeats, reverse):
    return Schedule(
        dim=mtf.Dimension("layers", 2 * num_stages * repeats),
        axes=("stage",),
        batch=mtf.Dimension("batch", 2 * num_microbatches),
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        repeats=repeats,
        reverse=reverse,
    )


@pytest.mark.sampled(16)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("repeats", [1, 2, 3])
@pytest.mark.parametrize("num_microbatches", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_microbatches_pass_all_stages(num_stages, num_microbatches, repeats, reverse):
    """Runs the ticks of a pipeline whose last stage adds 100."""
    pipeline = schedule(num_stages, num_microbatches, repeats, reverse)
    mesh = mtf.Mesh("")
    batch = np.arange(4.0 * num_microbatches).reshape(2, -1)
    buffer = into_slots(mtf.asarray(mesh, batch, "d; batch"), pipeline)
    first, last = (-1, 0) if reverse else (0, -1)
    states = np.full((num_stages, 2, 2), np.nan)
    for tick in range(pipeline.num_ticks):
        slot = mtf.asarray(mesh, np.int32(tick % pipeline.num_slots), "")
        entry = entry_of(buffer, slot)
        dims = entry.shape
        assert dims.names == ("layers", "d", "batch")
        states = np.roll(states, pipeline.direction, axis=0)
        states[first] = entry.numpy()[first]
        repeat, microbatch = divmod(tick, pipeline.period)
        if repeat < repeats and microbatch < num_microbatches:
            expected = batch[:, microbatch::num_microbatches] + 100 * repeat
            np.testing.assert_array_equal(states[first], expected)
        states[last] += 100
        state = mtf.asarray(mesh, states, dims)
        index = mtf.asarray(mesh, np.int32(tick), "")
        buffer = after_tick(buffer, entry, state, index, pipeline)
    values = out_of_slots(buffer, pipeline).numpy()
    np.testing.assert_array_equal(values, batch + 100 * repeats)
