"""Which values a device writes to memory, and reads back.

XLA fuses an elementwise op with the ops that read its result. Then the result stays in
registers: neither is it written, nor does the op need a kernel of its own.
"""

from __future__ import annotations

from meshtf.forecast.memory.xla_buffers import is_elementwise
from meshtf.partition import Compute, Program, Value
from meshtf.partition.steps import inputs_of, outputs_of


def values_in_memory(program: Program, fuses: bool) -> set[Value] | None:
    """Returns the values of a program that are written to memory, those of bodies left out;
    None: all of them, since nothing is fused.

    Args:
      program: the program, or the body of a loop, branch or call.
      fuses: whether elementwise ops are fused with the ops that read their results.
    """
    if not fuses:
        return None
    result = set(program.results)
    for step in program.steps:
        if isinstance(step, Compute) and _fuses_inputs(step):
            continue
        result.update(inputs_of(step))
    for step in program.steps:
        if not isinstance(step, Compute) or not is_elementwise(step):
            result.update(outputs_of(step))
    return result


def _fuses_inputs(step: Compute) -> bool:
    """Returns whether a step can compute its inputs itself: elementwise ops and reductions."""
    return is_elementwise(step) or len(step.ins) == 1
