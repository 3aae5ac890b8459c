"""The tasks of a program with pipeline stages, each of which is started by the host.

ReadTask     the present array of a variable, an argument
Piece        steps that one stage runs as one compiled module
MoveTask     values that are copied from stage to stage
"""

from __future__ import annotations

import dataclasses

from meshtf.partition import ReadStep, ReshardStep, Step


@dataclasses.dataclass(frozen=True, eq=False)
class ReadTask:
    """Reads a store on some stages."""

    step: ReadStep
    stages: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """Steps that one stage runs as one module, in order."""

    stage: int
    steps: tuple[Step, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class MoveTask:
    """Sends and broadcasts, with the stages that need each value."""

    steps: tuple[tuple[ReshardStep, tuple[int, ...]], ...]


Task = ReadTask | Piece | MoveTask
