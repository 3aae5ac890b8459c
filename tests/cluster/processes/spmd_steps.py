"""One of several processes with live meshes: what it computes, writes and reads.

    python -m meshtf launch --spmd --workers=2 -- \\
        python -m tests.cluster.processes.spmd_steps FOLDER    # prints its results as JSON

FOLDER has the checkpoint `one` of a single process, of the variables of `trainer_on`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import meshtf as mtf
from meshtf.runtime.spmd import eager_programs
from tests.cluster.processes import steps
from transformer.models.language_model import LanguageModel
from transformer.training.input_batches import batches
from transformer.training.trainer import Trainer

AXES = "data:2;model:2"
LAYOUTS = (
    {"layout": steps.LAYOUT},
    {"layout": "batch:data", "variable_layout": "d_model:data"},
)


def trainer_on(devices: str | None, **kwargs: Any) -> Trainer:
    """Returns a small model with its optimizer."""
    kwargs = {"layout": steps.LAYOUT} | kwargs
    return Trainer(
        LanguageModel(mtf.Mesh(AXES, devices=devices, **kwargs), steps.SMALL)
    )


def losses(trainer: Trainer, count: int = 4) -> list[float]:
    """Returns the losses of the next steps."""
    start = trainer.examples_done
    trainer.examples_done += 8 * count
    return [
        float(trainer.step(batch)[0])
        for batch in batches(trainer.model, steps.text(), 8, start, count)
    ]


def spread_values() -> dict[str, Any]:
    """Returns values that are spread over the processes, read in various ways. Ops outside of
    functions run on the devices, as with much data.
    """
    eager_programs._MIN_BYTES = 0
    mesh = mtf.Mesh(AXES, "batch:data;d:model", devices="spmd:cpu")
    x = np.arange(32, dtype="float32").reshape(8, 4)
    v = mtf.Variable(mesh, "batch:8;d:4", "ones", "v")

    @mtf.function(x="batch;d")
    def f(x: mtf.Tensor) -> mtf.Tensor:
        v.assign_add(x)
        return v * 2.0

    y = f(x)
    v.assign_add(y)  # outside of functions
    z = f(y)  # a tensor of the devices
    return {
        "y": y.numpy().tolist(),
        "v": v.numpy().tolist(),
        "z": (z + y)["batch", 3].numpy().tolist(),
        "total": float(mtf.reduce_sum(z)),
    }


def sections_read() -> list[tuple[int, int]]:
    """Returns the sections (k, n) of batches that this process reads under two layouts."""
    sections = []
    text = steps.text()

    def read(k: int, n: int) -> Any:
        sections.append((k, n))
        return text.batches(8, worker=(k, n))

    for layout in ("batch:data", "batch:model"):
        mesh = mtf.Mesh(AXES, layout, devices="spmd:cpu")
        next(mtf.HostReader(mesh, LanguageModel(mesh, steps.SMALL).features, 8, read))
    return sections


def refusals() -> list[str]:
    """Returns the messages of errors."""
    messages = []
    for axes, devices in (("data:4", None), ("data:2", "spmd:cpu")):
        try:
            mesh = mtf.Mesh(axes, "batch:data", devices=devices)
            mtf.asarray(mesh, np.ones(4, "float32"), "batch")
            mtf.function(lambda x: x, mesh=mesh, x="batch")(np.ones(4, "float32"))
        except mtf.MeshError as error:
            messages.append(str(error))
    table = mtf.Variable(mtf.Mesh(AXES, devices="spmd:cpu"), "vocab:8", "ones", "table")
    look_up = mtf.function(lambda ids: mtf.gather(table, ids, "vocab"), ids="batch")
    try:
        look_up(np.array([1, 9])).numpy()
    except Exception as error:
        messages.append(str(error))
    return messages


def main() -> None:
    """Computes, and prints."""
    folder = sys.argv[1]
    group = mtf.cluster.join_processes()
    trainers = [trainer_on("spmd:cpu", **layout) for layout in LAYOUTS]
    results: dict[str, Any] = {
        "index": group.index,
        "count": group.count,
        "losses": [losses(trainer) for trainer in trainers],
    }
    with mtf.checkpoints.only_run(f"{folder}/two"):
        mtf.checkpoints.check_shared(f"{folder}/two")
        with mtf.checkpoints.Saver(f"{folder}/two", asynchronous=True) as saver:
            trainers[1].save(saver)
            results["beside"] = losses(trainers[1], 2)  # while it is written
    trainers[0].restore(f"{folder}/two")
    results["restored"] = losses(trainers[0], 2)
    trainers[0].restore(f"{folder}/one")
    results["of one"] = losses(trainers[0], 2)
    results["spread"] = spread_values()
    results["sections"] = sections_read()
    results["refusals"] = refusals()
    results["any"] = [
        mtf.cluster.any_process(group.index == k) for k in range(group.count + 1)
    ]
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
