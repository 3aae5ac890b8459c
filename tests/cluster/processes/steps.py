"""Some steps of a language model, on whatever devices a mesh has: what tests compare.

Usage:

    python -m tests.cluster.processes.steps --cluster=...       # prints what it found, as JSON
"""

from __future__ import annotations

import collections
import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

import meshtf as mtf
from meshtf.runtime.devices.names import host_of
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.tf_internals.run_records import graph_of
from transformer.data import ByteText, Corpus
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.input_batches import batches
from transformer.training.trainer import Trainer

SMALL = Architecture(d_model=16, d_ff=32, heads=2, d_kv=8, blocks=1, dropout=0.1)
LAYOUT = "batch:data; heads:model; d_ff:model; vocab:model"
MESHES = (
    {"axes": "data:2;model:2"},
    {"axes": "data:4"},
    {"axes": "data:4;model:2"},
    {"axes": "model:2;data:2", "within_host": "model"},
    {"axes": "data:4", "variable_layout": "d_model:data"},
)


def text() -> ByteText:
    """Returns bytes to learn from."""
    letters = np.random.default_rng(0).integers(97, 123, 3000).astype(np.uint8)
    return ByteText(
        lambda: Corpus("letters", letters[:-400], letters[-400:], ("a",), ("b",)), 16
    )


def losses(mesh: mtf.Mesh, steps: int = 4, batch: int = 8) -> list[float]:
    """Returns the losses of the first steps."""
    trainer = Trainer(LanguageModel(mesh, SMALL))
    return [
        float(trainer.step(batch_of_step)[0])
        for batch_of_step in batches(trainer.model, text(), batch, 0, steps)
    ]


def crossed(fn: Any, *args: Any) -> dict[str, int]:
    """Returns the bytes that go from host to host in a call, for each kind of move,
    from the graph.

    A tensor that several ops of one device read is sent there once.
    """
    compiled = fn.lower(*args)
    fn(*args)
    sent = set()
    for op in graph_of(compiled.definition).get_operations():
        kind = op.name.split("/")[1] if op.name.startswith("move/") else "others"
        sent |= {
            (kind, x.name, op.device, x.shape.num_elements() * x.dtype.size)
            for x in op.inputs
            if x.op.device and op.device and host_of(x.op.device) != host_of(op.device)
        }
    results: collections.Counter[str] = collections.Counter()
    for kind, _, _, size in sent:
        results[kind] += size
    return dict(results)


def reductions() -> dict[str, dict[str, int]]:
    """Returns what crosses in reductions of 1,000 numbers over all positions."""
    results = {}
    for axes in ("data:4", "data:8"):
        mesh = mtf.Mesh(axes, "batch:data")

        @mtf.function(mesh=mesh, x="batch;d_model")
        def total(x: mtf.Tensor) -> mtf.Tensor:
            return mtf.reduce_sum(x, "batch")

        x = mtf.asarray(mesh, np.ones((8, 1000), "f"), "batch;d_model")
        results[axes] = crossed(total, x)
    return results


def chatty(batch: int = 64) -> dict[str, int]:
    """Returns what crosses in all moves of a step, by the axis that stays within a
    host.
    """
    results = {}
    for axis in ("data", "model"):
        mesh = mtf.Mesh("model:2;data:2", layout=LAYOUT, within_host=axis)
        trainer = Trainer(LanguageModel(mesh, SMALL))
        rows = {
            name: x.numpy() for name, x in next(iter(text().batches(batch))).items()
        }
        results[axis] = sum(crossed(trainer._step, rows, np.int32(0)).values())
    return results


def read_by_hosts() -> dict[str, Any]:
    """Returns whether rows that hosts read are those of the driver, and where
    they lie.
    """
    data = text()
    rows = 8
    mesh = mtf.Mesh("data:4", LAYOUT)
    model = LanguageModel(mesh, SMALL)
    own = next(iter(data.batches(rows, 16)))
    far = next(iter(batches(model, data, rows, 16, 1)))
    floats = next(
        mtf.HostReader(
            mesh,
            {"x": "batch"},
            rows,
            lambda w, n: tf.data.Dataset.from_tensors({"x": tf.zeros([rows // n])}),
        )
    )
    return {
        "equal": all(
            bool((far[name].numpy() == own[name].numpy()).all()) for name in own
        ),
        "hosts": [host_of(x.device)[-6:] for x in far["tokens"].sharded_value.values],
        "devices": [
            x.device == d
            for x, d in zip(floats["x"].sharded_value.values, devices_of(mesh))
        ],
    }


def main() -> None:
    """Connects, computes, prints."""
    devices = mtf.connect(sys.argv[-1].removeprefix("--cluster="))
    results = [losses(mtf.Mesh(layout=LAYOUT, **mesh)) for mesh in MESHES]
    print(
        json.dumps(
            {
                "devices": devices,
                "losses": results,
                "reductions": reductions(),
                "chatty": chatty(),
                "read": read_by_hosts(),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
