"""The cache of a stack of blocks between decoding steps: keys and values of all blocks.

Example:

    cache = stack.init_cache(x, num_positions=128)       # x [batch, d_model]
    x, cache = stack.decode_step(x, cache, position)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import meshtf as mtf


class KeyValueCache(NamedTuple):
    """The tensors that a stack stores between decoding steps.

    Attributes:
      blocks: a list with the `BlockCache` of each block: its keys and values. For scanned
        blocks, one `BlockCache` whose tensors are stacked along `layers`.
      slots: the indices of the slots of a block's cache, int32 [kv_length]. A slot stores
        the keys and values of one position.
      rope: the rotary embedding of all positions, [length, d_kv]; None: the architecture
        has no rotary positions.
      context_bias: the bias of cross-attention scores, [batch, kv_length]; None: no
        encoder, or an encoder's output without padding.
      padding: the count of padding tokens of each example's prompt, int32, a scalar or
        [batch]; None: no prompt was padded. All examples are decoded at the same step;
        the true position of an example is the position of the step minus its padding.
    """

    blocks: Any
    slots: mtf.Tensor
    rope: mtf.layers.RotaryEmbedding | None = None
    context_bias: mtf.Tensor | None = None
    padding: mtf.Tensor | None = None
