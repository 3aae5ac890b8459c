"""Times training steps of a small perceptron, since work takes longer among other work than
alone in a loop: tensors are in no cache, and threads change from op to op.

steps = measure_steps(hardware, "spmd:cpu:8", 8, clock)      # for `adjust.scale`
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshtf.calibration.adjust import MeasuredStep
from meshtf.calibration.clock import Clock
from meshtf.function.function import function
from meshtf.function.without_running import explain
from meshtf.graph import Tensor, gradients
from meshtf.hardware import Hardware
from meshtf.layers.dense_layer import Dense
from meshtf.mesh import Mesh
from meshtf.ops.nn.activations import gelu
from meshtf.ops.nn.cross_entropy import cross_entropy
from meshtf.ops.nn.normalization import layer_norm
from meshtf.ops.reductions.reduce import reduce_mean
from meshtf.optimizers.adam import Adam

SIZES: Mapping[str, int] = {"batch": 2048, "d": 128, "d_ff": 512, "vocab": 1024}
_LAYOUTS = ("batch:position", "d_ff:position; vocab:position")
_LAYERS = 2
_WARM_UP = 2
_STEPS = 8


def measure_steps(
    hardware: Hardware,
    devices: str | None,
    positions: int,
    clock: Clock,
    sizes: Mapping[str, int] = SIZES,
) -> list[MeasuredStep]:
    """Returns measured steps under data parallelism and tensor parallelism.

    Args:
      hardware: the measured rates, from which the steps are predicted.
      devices: the devices, as `Mesh` takes them.
      positions: their count.
      clock: the clock.
      sizes: the sizes of the perceptron and of its batch.
    """
    result = []
    for layout in _LAYOUTS:
        mesh = Mesh({"position": positions}, layout, devices=devices)
        step, arguments = _step(mesh, sizes)
        seconds = []
        for i in range(_WARM_UP + _STEPS):
            start = clock.now()
            step(*arguments).numpy()
            if i >= _WARM_UP:
                seconds.append(clock.now() - start)
        forecast = explain(step, *arguments, hardware=hardware)
        result.append(MeasuredStep(forecast, statistics.median(seconds)))
    return result


def _step(mesh: Mesh, sizes: Mapping[str, int]) -> tuple[Callable[..., Any], tuple]:
    """Returns a training step, and its arguments."""
    d, d_ff, vocab = (f"{name}:{sizes[name]}" for name in ("d", "d_ff", "vocab"))
    layers = [
        (Dense(mesh, d, d_ff, name=f"up_{i}"), Dense(mesh, d_ff, d, name=f"down_{i}"))
        for i in range(_LAYERS)
    ]
    logits = Dense(mesh, d, vocab, name="logits")
    modules = [*(layer for pair in layers for layer in pair), logits]
    variables = [v for module in modules for v in module.trainable_variables]
    optimizer = Adam(variables, learning_rate=1e-3)

    @function(mesh=mesh, x="batch;d", labels="batch", step="")
    def train(x: Tensor, labels: Tensor, step: Tensor) -> Tensor:
        """Updates the variables, and returns the loss, a scalar."""
        for up, down in layers:
            x = x + down(gelu(up(layer_norm(x, "d"))))
        loss = reduce_mean(cross_entropy(logits(x), labels, "vocab"))
        optimizer.apply_gradients(gradients([loss], variables), variables, step)
        return loss

    rng = np.random.default_rng(0)
    shape = sizes["batch"], sizes["d"]
    x = rng.standard_normal(shape, dtype=np.float32)
    labels = rng.integers(0, sizes["vocab"], sizes["batch"], np.int32)
    return train, (x, labels, np.int32(0))
