"""Programs for devices that communicate while they compute: the same numbers by other schedules.

    program = with_overlap(program, "cuda")

Each rewrite is a file with its idea, such as `late_sums`.
"""

from __future__ import annotations

from meshtf.partition.steps.halves import with_halves
from meshtf.partition.steps.late_sums import with_late_sums
from meshtf.partition.steps.step import Program

# The platforms whose compiler runs collectives beside computations. Not TPUs: theirs leaves an
# all_reduce where it is. CPUs have nothing to spare.
PLATFORMS = frozenset({"cuda"})


def with_overlap(program: Program, platform: str) -> Program:
    """Returns a program with the collectives of its loops where computations hide them.

    Args:
      program: the program.
      platform: the devices: "cpu", "cuda", "tpu"; "": any.
    """
    if platform not in PLATFORMS:
        return program
    if program.mesh.two_batch_overlap:
        program = with_halves(program)
    return with_late_sums(program)
