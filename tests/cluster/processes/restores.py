"""Saves and restores on workers; what comes of it is printed as JSON.

    python -m tests.cluster.processes.restores FOLDER --cluster=...

It reads `one_0`, `one_1` and so on in the folder, and writes `two_0` and so on, one for
each mesh.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import meshtf as mtf
from meshtf.runtime.devices.names import host_of
from tests.checkpoints.models import bits, variables_on

TENSOR = "d_ff:model; vocab:model"
MESHES: dict[str, dict[str, Any]] = {
    "fsdp": {"axes": "data:4", "variable_layout": "d_model:data"},
    "tensor parallel within hosts": {"axes": "data:2; model:2", "layout": TENSOR},
    "tensor parallel over hosts": {"axes": "model:4", "layout": TENSOR},
    "both, zero 1": {
        "axes": "model:2; data:2",
        "layout": TENSOR,
        "within_host": "model",
        "optimizer_layout": "d_model:data",
    },
}


def saved(folder: str, step: int) -> str:
    """Returns the path of a checkpoint."""
    return os.path.join(folder, f"step_{step:08d}")


def restored(path: str, seed: int) -> list[bool]:
    """Returns for each mesh whether a checkpoint is restored there, bit for bit."""
    expected = bits(variables_on(mtf.Mesh(""), seed))
    results = []
    for settings in MESHES.values():
        state = variables_on(mtf.Mesh(**settings), seed=99)
        mtf.checkpoints.restore(path, state)
        results.append(bits(state) == expected)
    return results


def hosts(folder: str, seed: int) -> list[int]:
    """Saves from each mesh; returns on how many hosts the variables lay."""
    results = []
    for k, settings in enumerate(MESHES.values()):
        state = variables_on(mtf.Mesh(**settings), seed)
        mtf.checkpoints.save(os.path.join(folder, f"two_{k}"), 3, state)
        results.append(
            len({host_of(s.device) for v in state.values() for s in v.slots()})
        )
    return results


def unshared() -> str:
    """Returns what is said of a folder that is another one on the workers."""
    mtf.checkpoints.check_shared(".")
    try:
        mtf.checkpoints.check_shared("/proc/self/cwd")
    except mtf.CheckpointError as error:
        return str(error)
    return ""


def main() -> None:
    """Connects, goes where the workers are not, saves, restores, prints."""
    mtf.connect(sys.argv[-1].removeprefix("--cluster="))
    os.chdir(sys.argv[1])
    ones = sorted(name for name in os.listdir(".") if name.startswith("one_"))
    print(
        json.dumps(
            {
                "one to two": [restored(saved(name, 3), seed=1) for name in ones],
                "hosts": hosts(".", seed=2),
                "two to two": [
                    restored(saved(f"two_{k}", 3), seed=2) for k in range(len(MESHES))
                ],
                "unshared": unshared(),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
