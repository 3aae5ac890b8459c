"""The memory of a program that jax compiled, by XLA's plan of its buffers.

compiled = jax.jit(step).lower(*arguments).compile()
buffer_bytes(compiled)
"""

from __future__ import annotations

from typing import Any


def buffer_bytes(compiled: Any) -> int:
    """Returns the bytes of the buffers of a device in one call: arguments, temporary buffers, and
    outputs that are not in the memory of arguments.

    On CPUs, XLA's own peak (`peak_memory_in_bytes`) leaves temporary buffers out.
    """
    memory = compiled.memory_analysis()
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes)
