"""The training step of a configuration as a function of a mesh, for `mtf.search`.

result = mtf.search(build, *arguments(), devices=256, hardware="h100")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import numpy as np

import meshtf as mtf
from transformer.training.training_run import Run

# Settings with which a configuration needs no devices, and has no layout.
ABSTRACT_MESH = (
    'Mesh.axes = ""',
    'Mesh.layout = ""',
    'Mesh.variable_layout = ""',
    'Mesh.optimizer_layout = ""',
    "Mesh.microbatches = None",
    "Mesh.within_host = ()",
    'Mesh.devices = "abstract"',
)
# A setting without which blocks cannot be the stages of a pipeline.
SCANNED = "Architecture.scanned = True"


def build(
    mesh: mtf.Mesh, recompute: bool | str | None = None, microbatches: int = 1
) -> Callable[..., Any]:
    """Returns the training step of the configuration on a mesh.

    Args:
      mesh: the mesh.
      recompute: which activations are computed again (Architecture.recompute); None: as the
        configuration says.
      microbatches: the number of microbatches of a batch, whose gradients are accumulated.
    """
    if recompute is not None:
        with gin.unlock_config():
            gin.bind_parameter("Architecture.recompute", recompute)
    return Run(mesh=mesh, microbatches=microbatches).trainer.training_step


def arguments(with_values: bool = False) -> tuple[dict[str, Any], Any]:
    """Returns the arguments of a step: the features of a batch, and the index of the step.

    Args:
      with_values: whether features are arrays of examples, else shapes and dtypes.
    """
    run = Run()
    batch: dict[str, Any] = dict(run.features())
    if with_values:
        examples = next(iter(run.data.batches(run.batch_size, start=0)))
        batch = {name: np.asarray(x) for name, x in examples.items()}
    return batch, np.int32(0)


def all_microbatches() -> list[int]:
    """Returns all powers of two that divide the batch of the configuration."""
    batch_size = Run().batch_size
    powers = [2**i for i in range(batch_size.bit_length())]
    return [count for count in powers if batch_size % count == 0]
