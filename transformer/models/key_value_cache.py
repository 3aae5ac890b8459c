"""The state of a stack of blocks between decoding steps: keys and values of all blocks.

Example:

    cache = stack.init_cache(x, positions=128)
    x, cache = stack.decode_step(x, cache, position)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import meshtf as mtf


class KeyValueCache(NamedTuple):
    """What a stack stores between decoding steps.

    Attributes:
      blocks: the `BlockCache` of each block; of scanned blocks one, with `layers` in
        front of each tensor.
      slots: the indices of the slots of a cache: int32 [kv_length].
      rope: the rotary embedding of all positions, [length, d_kv].
      context_bias: the bias of the scores of cross-attention.
      padding: by how much the position of each example is less than that of the step,
        since its prompt was padded: int32, a scalar or [batch]; None: not at all.
    """

    blocks: Any
    slots: mtf.Tensor
    rope: mtf.layers.RotaryEmbedding | None = None
    context_bias: mtf.Tensor | None = None
    padding: mtf.Tensor | None = None
