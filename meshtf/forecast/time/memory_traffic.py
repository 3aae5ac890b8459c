"""Which values a device writes to memory, and reads back.

XLA fuses an elementwise op with the ops that read its result. Then the result stays in
registers: neither is it written, nor does the op need a kernel of its own.
"""

from __future__ import annotations

from meshtf.forecast.memory.xla_buffers import fuses_inputs
from meshtf.partition import Program, Value


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
        if not fuses_inputs(step):
            result.update(step.needs)
        if not step.is_elementwise:
            result.update(step.outputs)
    return result
