"""Sections of a program that take and return nested structures of tensors.

results = in_section(program, run, {"x": x, "carries": [a, None]})
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from meshtf.runtime.placed.program.program_writer import ProgramWriter
from meshtf.runtime.storage.sharding import distinct


def in_section(program: ProgramWriter, run: Callable[[Any], Any], inputs: Any) -> Any:
    """Returns run(inputs), traced by TensorFlow as a section of a program.

    Args:
      program: the program.
      run: a function from one nested structure of tensors to another one; a tensor may
        occur several times in both.
      inputs: the structure of its inputs, tensors of the program or None.
    """
    tensors, input_index = distinct(tf.nest.flatten(inputs))
    output_structure: list[Any] = []  # the structure of the results, of output indices

    def body(symbols: list[Any]) -> list[Any]:
        flat = [None if k < 0 else symbols[k] for k in input_index]
        results = run(tf.nest.pack_sequence_as(inputs, flat))
        outputs, output_index = distinct(tf.nest.flatten(results))
        output_structure.append(tf.nest.pack_sequence_as(results, output_index))
        return outputs

    outputs = program.section(body, tensors)
    return tf.nest.map_structure(
        lambda k: None if k < 0 else outputs[k], output_structure[0]
    )
