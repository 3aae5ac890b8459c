"""The tasks into which the steps of a program with pipeline stages are grouped. The host
starts one task after the other.

ReadTask       reads a variable or an argument on some stages
ComputeTask    runs steps on one stage, as one compiled module
TransferTask   copies values from stage to stage
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from meshtf.graph import Store
from meshtf.partition import ReshardStep, Step, Value


class StageValue(NamedTuple):
    """A value of a program on one stage; it is one `jax.Array`."""

    value: Value
    stage: int


@dataclasses.dataclass(frozen=True, eq=False)
class ReadTask:
    """Reads a store (a variable or an argument) as a value, on some stages."""

    store: Store
    out: Value
    stages: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class ComputeTask:
    """Steps that one stage runs as one compiled module, in order: the pass of one
    microbatch through a chunk of the pipeline, or steps before, between or after passes.
    """

    stage: int
    steps: tuple[Step, ...]


class Transfer(NamedTuple):
    """A send or broadcast, and the stages that need its output."""

    step: ReshardStep
    stages: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class TransferTask:
    """Sends and broadcasts between stages, started together."""

    transfers: tuple[Transfer, ...]


Task = ReadTask | ComputeTask | TransferTask
