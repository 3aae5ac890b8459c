"""The padded lengths of a decoder's arrays. The layout can shard them, and they are few: a
program is traced for each.

    lengths = PaddedLengths(mesh, architecture, max_input_length=64, max_new_tokens=200)
    lengths.of_inputs(37)                    # 64: the next power of two
    lengths.of_cache(64, new_length=201)     # positions of 64 input ids and the new ids
"""

from __future__ import annotations

import math

import meshtf as mtf
from transformer.models.architecture import Architecture

_POSITION_DIMS = ("length", "kv_length")
_MIN_LENGTH = 16


def round_up(size: int, mesh: mtf.Mesh, *dims: str) -> int:
    """Returns the smallest size, at least `size`, that the layout can shard evenly.

    Args:
      size: the minimum size.
      mesh: the mesh with the layout. An axis in the layout that the mesh lacks counts as an
        axis of size 1.
      *dims: the names of dimensions of this size.
    """
    shard_counts = [
        math.prod(mesh.axes.get(axis, 1) for axis in mesh.layout.axes(dim))
        for dim in dims
    ]
    multiple = math.lcm(*shard_counts)
    return -(-size // multiple) * multiple  # rounded up


def round_up_batch(size: int, mesh: mtf.Mesh) -> int:
    """Returns the smallest size of a batch, at least `size`, that the layout can shard evenly, and
    that the microbatches of a pipeline divide.
    """
    multiple = math.lcm(round_up(1, mesh, "batch"), mesh.microbatches or 1)
    return -(-size // multiple) * multiple


class PaddedLengths:
    """The padded lengths of inputs, generated ids and caches.

    Args:
      mesh: the mesh, whose layout shards lengths.
      architecture: the architecture, whose attention may need a multiple of its
        `block_length`.
      max_input_length: the maximum count of ids of an input.
      max_new_tokens: the maximum count of generated ids.

    Attributes:
      generated: the length of a generated sequence: the last id of the prompt, then new
        ids.
      max_cache: the count of positions of the longest prompt and the most new ids.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        architecture: Architecture,
        max_input_length: int,
        max_new_tokens: int,
    ) -> None:
        self._mesh = mesh
        self._architecture = architecture
        self._max_input_length = max_input_length
        self.generated = round_up(1 + max_new_tokens, mesh, *_POSITION_DIMS)
        self.max_cache = round_up(
            max_input_length + max_new_tokens, mesh, *_POSITION_DIMS
        )

    def of_inputs(self, length: int) -> int:
        """Returns the padded length of inputs of up to `length` ids: a power of two, and
        a multiple of the blocks of attention; but not more than the longest input needs.
        """
        architecture = self._architecture
        next_power_of_two = 1 << (length - 1).bit_length()
        padded_length = max(_MIN_LENGTH, next_power_of_two)
        if architecture.attention != "full":
            if length <= architecture.block_length:
                padded_length = min(padded_length, architecture.block_length)
            else:
                num_blocks = -(
                    -padded_length // architecture.block_length
                )  # rounded up
                padded_length = num_blocks * architecture.block_length
        padded_length = min(padded_length, self._max_input_length)
        return round_up(padded_length, self._mesh, "inputs_length", *_POSITION_DIMS)

    def of_cache(self, input_length: int, new_length: int) -> int:
        """Returns the count of positions of a cache.

        Args:
          input_length: the padded length of the prompts.
          new_length: the length of the generated sequence, whose initial id is the last id
            of the prompt.
        """
        # The last id of the prompt is in both lengths.
        num_positions = input_length + new_length - 1
        padded_length = round_up(num_positions, self._mesh, *_POSITION_DIMS)
        return min(padded_length, self.max_cache)
