"""A process that saves or restores, and prints how far its memory rose above what it
held: bytes.

Usage:

    python -m tests.checkpoints.memory_worker save FOLDER "one device" 256
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import meshtf as mtf
from tests.checkpoints.models import MESHES


def main(action: str, folder: str, key: str, mebibytes: int) -> None:
    """Makes two variables of so many MiB each, and saves or restores them."""
    mtf.logical_devices(8)
    mesh = mtf.Mesh(**MESHES[key])
    rows = mebibytes * 2**20 // (4 * 1024)

    def init(mesh, shape, name):
        return mtf.asarray(mesh, np.full(shape.sizes, ord(name), "float32"), shape)

    model_state = {
        name: mtf.Variable(mesh, f"d_model:{rows}; d_ff:1024", init, name)
        for name in "ab"
    }
    if action == "save":
        small = {"x": mtf.Variable(mesh, "d_model:16; d_ff:8", init, "x")}
        mtf.checkpoints.restore(
            mtf.checkpoints.save(f"{folder}/first", 1, small), small
        )  # has run once
        rise = rise_of(lambda: mtf.checkpoints.save(folder, 1, model_state))
    else:
        for v in model_state.values():
            for slot in {id(s): s for s in v.slots()}.values():
                slot.variable.assign(
                    slot.variable * 0.0
                )  # each has memory of its own from here on
        rise = rise_of(
            lambda: mtf.checkpoints.restore(f"{folder}/step_00000001", model_state)
        )
        for name, v in model_state.items():
            assert all(float(s.read()[-1, -1]) == ord(name) for s in v.slots())
    print(rise)


def rise_of(work) -> int:
    """Returns the highest resident memory while something runs, above that before.

    TensorFlow keeps what was freed, to use it again; so all of that is used before.
    """
    allocated = []
    for mebibytes in (64, 16, 4, 1):
        before = resident("VmRSS")
        while resident("VmRSS") - before < mebibytes * 2**19:
            allocated.append(tf.ones(mebibytes * 2**18) + len(allocated))
    Path("/proc/self/clear_refs").write_text(
        "5"
    )  # the mark of the highest falls to what is now
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def resident(field: str) -> int:
    """Returns a number of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
