"""The buffer of a pipeline: its microbatches arrive at the first stage in order, and those of
the last stage make the batch again.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.ops.loops.schedule import Schedule
from meshtf.ops.loops.slots import entry_of, into_slots, out_of_slots, with_entry


def schedule(num_stages, num_microbatches, reverse):
    return Schedule(
        dim=mtf.Dimension("layers", 2 * num_stages),
        axes=("stage",),
        batch=mtf.Dimension("batch", 2 * num_microbatches),
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        reverse=reverse,
    )


@pytest.mark.sampled(8)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("num_microbatches", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_microbatches_pass_all_stages(num_stages, num_microbatches, reverse):
    """Runs the ticks of a pipeline whose stages change nothing, in NumPy."""
    pipeline = schedule(num_stages, num_microbatches, reverse)
    mesh = mtf.Mesh("")
    batch = np.arange(4.0 * num_microbatches).reshape(2, -1)
    buffer = into_slots(mtf.asarray(mesh, batch, "d; batch"), pipeline)
    first, last = (-1, 0) if reverse else (0, -1)
    states = np.full((num_stages, 2, 2), np.nan)
    step = pipeline.direction
    for tick in range(pipeline.num_ticks):
        slot = mtf.asarray(mesh, np.int32(tick % pipeline.num_slots), "")
        entry = entry_of(buffer, slot)
        dims = entry.shape
        assert dims.names == ("layers", "d", "batch")
        values = entry.numpy()
        states = np.roll(states, step, axis=0)
        states[first] = values[first]
        if tick < num_microbatches:
            np.testing.assert_array_equal(
                states[first], batch[:, tick::num_microbatches]
            )
        values = np.roll(values, -step, axis=0)
        values[last] = states[last]
        buffer = with_entry(buffer, slot, mtf.asarray(mesh, values, dims))
    np.testing.assert_array_equal(out_of_slots(buffer, pipeline).numpy(), batch)
