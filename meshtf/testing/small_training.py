"""A small training that every layout must carry out alike.

    report = check_training()
    print(report)       # training: 7 cases, 0 refused, 0 left out, 0 failures (seed 0)

The model has what a Transformer has, a block of it: embedding, attention, hidden layer,
a softmax over the vocabulary, and Adam. Losses of all steps and the variables after
them are compared with those of one device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

import meshtf as mtf
from meshtf.mesh import Mesh
from meshtf.testing.conformance.compare import TOLERANCE
from meshtf.testing.conformance.layouts import mesh_on
from meshtf.testing.conformance.report import Report

# Mesh and layout. Those of quick runs come first.
LAYOUTS = (
    ("data:2", "batch:data"),
    ("model:2", "heads:model; d_ff:model; vocab:model"),
    ("data:2;model:2", "batch:data; heads:model; d_ff:model; vocab:model"),
    ("data:4", "batch:data"),
    ("data:2", "length:data"),
    ("model:4", "d_model:model"),
    ("data:2;model:4", "batch:data; key:model; d_ff:model"),
)
QUICK, STEPS = 3, 3


class _Block(mtf.Module):
    """Embedding, attention, a hidden layer, and scores over the vocabulary."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__("block")
        self.mesh = mesh
        with self.scope():
            self.embed = mtf.layers.Embedding(mesh, "vocab:16", "d_model:8")
            self.attend = mtf.layers.MultiHeadAttention(
                mesh, "d_model:8", "heads:4", "key:4"
            )
            self.inner = mtf.layers.Dense(mesh, "d_model:8", "d_ff:16", name="inner")
            self.outer = mtf.layers.Dense(mesh, "d_ff:16", "d_model:8", name="outer")

    def __call__(self, ids: mtf.Tensor, labels: mtf.Tensor) -> mtf.Tensor:
        """Returns the mean loss of a batch."""
        length = ids.shape.only(["length"])
        x = self.embed(ids)
        bias = mtf.layers.causal_bias(
            self.mesh, length, [("memory_length", length.size)]
        )
        x = mtf.normalize_rms(x + self.attend(x, bias=bias), "d_model")
        x = x + self.outer(mtf.dropout(mtf.gelu(self.inner(x)), 0.25))
        return mtf.reduce_mean(mtf.cross_entropy(self.embed.attend(x), labels, "vocab"))


def check_training(
    seed: int = 0,
    layouts: Sequence[tuple[str, str]] = LAYOUTS,
    devices: Sequence[str] = (),
) -> Report:
    """Trains under some layouts, and returns where losses or variables differ from one
    device's.

    Args:
      seed: of the first values, of dropout and of the data.
      layouts: axes of each mesh, and its layout.
      devices: names that positions take in turn; without any, what there is.
    """
    report = Report("training", seed)
    want = _train(mesh_on("", devices=devices), seed)
    for axes, layout in layouts:
        mesh = mesh_on(axes, layout, devices)
        report.cases += 1
        try:
            problems = list(_differences(_train(mesh, seed), want))
        except Exception as error:  # a finding; the next layout is tried
            problems = [f"{type(error).__name__}: {str(error)[:600]}"]
        report.failures += [
            f"training on {mesh!r}, layout {layout}: {p}" for p in problems
        ]
    return report


def _train(mesh: Mesh, seed: int) -> dict[str, np.ndarray]:
    """Returns losses and variables of a few steps."""
    mesh.seed = seed
    model = _Block(mesh)
    variables = model.trainable_variables
    optimizer = mtf.optimizers.Adam(variables, 0.01)

    @mtf.function(mesh=mesh, ids="batch;length", labels="batch;length", step="")
    def train_step(ids: mtf.Tensor, labels: mtf.Tensor, step: mtf.Tensor) -> mtf.Tensor:
        with mtf.seed(seed, step):
            loss = model(ids, labels)
        optimizer.apply(mtf.gradients([loss], variables), variables, step)
        return loss

    ids, labels = np.random.default_rng(seed).integers(0, 16, (2, 8, 4)).astype("int32")
    losses = [float(train_step(ids, labels, np.int32(step))) for step in range(STEPS)]
    return {"losses": np.array(losses, "float32")} | {
        v.name: v.numpy() for v in model.variables
    }


def _differences(
    found: dict[str, np.ndarray], want: dict[str, np.ndarray]
) -> Iterator[str]:
    limit = TOLERANCE["float32"]
    for name, value in want.items():
        if not np.allclose(found[name], value, rtol=limit, atol=limit):
            yield f"{name} is off by up to {np.max(np.abs(found[name] - value)):.1e}"
