"""Sections of a program (see `ProgramWriter.section`) that take and return nested
structures of tensors.

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
      inputs: a nested structure of tensors of the program, or None.
    """
    # A section takes and returns distinct tensors. The index of a tensor among the
    # distinct ones is -1 for None.
    tensors, input_indices = distinct(tf.nest.flatten(inputs))
    # Filled when TensorFlow traces the body: the results, with the index of each tensor
    # among `outputs` in place of the tensor.
    index_structures: list[Any] = []

    def body(arguments: list[Any]) -> list[Any]:
        flat_inputs = [None if k < 0 else arguments[k] for k in input_indices]
        results = run(tf.nest.pack_sequence_as(inputs, flat_inputs))
        outputs, output_indices = distinct(tf.nest.flatten(results))
        index_structures.append(tf.nest.pack_sequence_as(results, output_indices))
        return outputs

    outputs = program.section(body, tensors)
    return tf.nest.map_structure(
        lambda k: None if k < 0 else outputs[k], index_structures[0]
    )
