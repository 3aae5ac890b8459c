"""A small training run whose result must be the same under every layout.

    report = check_training()
    print(report)       # training: 7 cases, 0 refused, 0 left out, 0 failures (seed 0)

Each case is a layout. "refused" would count illegal layouts, and "left out" layouts that were
not drawn, as in the reports of ops; here both are always 0.

The model is one block of a Transformer: embedding, attention, feed-forward layer and a
softmax over the vocabulary, trained with Adam. The losses of all steps and the variables
after them are compared with those of one device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from meshtf.function.function import function
from meshtf.graph import Tensor, gradients
from meshtf.layers import Dense, Embedding, MultiHeadAttention, causal_bias
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.ops.control import seeds
from meshtf.ops.nn.activations import gelu
from meshtf.ops.nn.cross_entropy import cross_entropy
from meshtf.ops.nn.normalization import rms_norm
from meshtf.ops.random.random import dropout
from meshtf.ops.reductions.reduce import reduce_mean
from meshtf.optimizers import Adam
from meshtf.testing.conformance.compare import TOLERANCE
from meshtf.testing.conformance.layouts import mesh_on
from meshtf.testing.conformance.report import Report

STEPS = 3  # the count of training steps


class MeshLayout(NamedTuple):
    """A mesh and a layout to train under.

    Attributes:
      axes: the axes of the mesh, such as "data:2;model:2".
      layout: the mesh axis of each sharded dimension, such as "batch:data".
    """

    axes: str
    layout: str


QUICK_LAYOUTS = (
    MeshLayout("data:2", "batch:data"),
    MeshLayout("model:2", "heads:model; d_ff:model; vocab:model"),
    MeshLayout("data:2;model:2", "batch:data; heads:model; d_ff:model; vocab:model"),
)
LAYOUTS = (
    *QUICK_LAYOUTS,
    MeshLayout("data:4", "batch:data"),
    MeshLayout("data:2", "length:data"),
    MeshLayout("model:4", "d_model:model"),
    MeshLayout("data:2;model:4", "batch:data; key:model; d_ff:model"),
)


class _Block(Module):
    """Embedding, attention, a feed-forward layer, and logits over the vocabulary."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__("block")
        self.mesh = mesh
        with self.scope():
            self.embed = Embedding(mesh, "vocab:16", "d_model:8")
            self.attention = MultiHeadAttention(mesh, "d_model:8", "heads:4", "key:4")
            self.inner = Dense(mesh, "d_model:8", "d_ff:16", name="inner")
            self.outer = Dense(mesh, "d_ff:16", "d_model:8", name="outer")

    def __call__(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean loss of a batch; ids and labels are [batch, length]."""
        length = ids.shape.only(["length"])
        x = self.embed(ids)
        bias = causal_bias(self.mesh, length, [("kv_length", length.size)])
        x = rms_norm(x + self.attention(x, bias=bias), "d_model")
        h = gelu(self.inner(x))
        x = x + self.outer(dropout(h, rate=0.25))
        logits = self.embed.attend(x)
        losses = cross_entropy(logits, labels, "vocab")
        return reduce_mean(losses)


def check_training(
    seed: int = 0,
    layouts: Sequence[MeshLayout] = LAYOUTS,
    devices: str | Sequence[str] = (),
) -> Report:
    """Trains under several layouts, and returns a report whose failures are losses or
    variables that differ from those of one device.

    Args:
      seed: the seed of the initial values, of dropout and of the data.
      layouts: the meshes and layouts.
      devices: names of devices that meshes use round-robin, such as ["CPU:0", "CPU:1"]; or
        a string, such as "spmd:cpu", for live meshes, whose programs jax runs; empty: all
        devices of the local machine.
    """
    report = Report("training", seed)
    expected = _train(mesh_on(axes="", devices=devices), seed)
    for axes, layout in layouts:
        mesh = mesh_on(axes, layout, devices)
        report.cases += 1
        try:
            problems = list(_differences(_train(mesh, seed), expected))
        except Exception as error:  # a failure; the next layout is checked anyway
            problems = [f"{type(error).__name__}: {str(error)[:600]}"]
        for problem in problems:
            report.failures.append(f"training on {mesh}, layout {layout}: {problem}")
    return report


def _train(mesh: Mesh, seed: int) -> dict[str, np.ndarray]:
    """Returns the losses of all steps as "losses" [STEPS], and the final value of each
    variable by name.
    """
    mesh.seed = seed
    model = _Block(mesh)
    variables = model.trainable_variables
    optimizer = Adam(variables, learning_rate=0.01)

    @function(
        mesh=mesh,
        ids="batch;length",
        labels="batch;length",
        step="",
    )
    def train_step(ids: Tensor, labels: Tensor, step: Tensor) -> Tensor:
        """Updates the variables, and returns the loss, a scalar."""
        with seeds.seed(seed, step):
            loss = model(ids, labels)
        optimizer.apply_gradients(gradients([loss], variables), variables, step)
        return loss

    rng = np.random.default_rng(seed)
    # Two arrays of random ids, [batch:8, length:4] each.
    ids, labels = rng.integers(0, 16, size=(2, 8, 4)).astype("int32")
    losses = []
    for step in range(STEPS):
        losses.append(float(train_step(ids, labels, np.int32(step))))
    results = {"losses": np.array(losses, "float32")}
    for variable in model.variables:
        results[variable.name] = variable.numpy()
    return results


def _differences(
    actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]
) -> Iterator[str]:
    """Yields a message for each array of `actual` that differs from the expected one."""
    tolerance = TOLERANCE["float32"]
    for name, value in expected.items():
        if not np.allclose(actual[name], value, rtol=tolerance, atol=tolerance):
            error = np.max(np.abs(actual[name] - value))
            yield f"{name} is off by up to {error:.1e}"
