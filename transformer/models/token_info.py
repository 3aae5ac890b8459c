"""Positions, segments and prefixes of tokens, and their order along the sequence.

token_info = TokenInfo.of(tokens)                    # tokens [batch, length]
context = token_info.as_context()                    # tensors [..., kv_length]
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import meshtf as mtf
from transformer.models.architecture import Architecture

LENGTH = "length"
KV_LENGTH = "kv_length"


class TokenInfo(NamedTuple):
    """Positions, segments and prefixes of tokens.

    Attributes:
      positions: the position of each token in its segment, integers [length] or [batch,
        length].
      segments: the segment of each token, integers [batch, length]; 0 is padding. Tokens
        attend within their segment. None: one segment without padding.
      prefix: bool [batch, length], True for tokens that earlier tokens attend to, too;
        None: there are no such tokens.
      zigzag: the zigzag order that the tokens are in, for causal ring attention; None: the
        order of the text.
    """

    positions: mtf.Tensor
    segments: mtf.Tensor | None = None
    prefix: mtf.Tensor | None = None
    zigzag: mtf.layers.ZigzagOrder | None = None

    @classmethod
    def of(
        cls,
        tokens: mtf.Tensor,
        positions: mtf.Tensor | None = None,
        segments: mtf.Tensor | None = None,
        prefix: mtf.Tensor | None = None,
    ) -> TokenInfo:
        """Returns the information about tokens.

        Args:
          tokens: the token ids, integers [batch, length].
          positions: the attribute `positions`; None: from 0 on in each example.
          segments: the attribute `segments`; None: each example is one segment without
            padding.
          prefix: the attribute `prefix`, as integers or bool.
        """
        if positions is None:
            positions = mtf.range(tokens.mesh, tokens.shape.dim(LENGTH))
        if prefix is not None:
            prefix = mtf.cast(prefix, "bool")
        return cls(positions=positions, segments=segments, prefix=prefix)

    def in_order(self, order: mtf.layers.ZigzagOrder) -> TokenInfo:
        """Returns the information about the same tokens in zigzag order."""
        segments = None if self.segments is None else order.apply(self.segments)
        return TokenInfo(order.apply(self.positions), segments=segments, zigzag=order)

    def random_numbers(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which dropout has the masks of tokens in the order of the
        text.
        """
        if self.zigzag is None:
            return contextlib.nullcontext()
        return self.zigzag.random_numbers()

    def as_context(self) -> TokenInfo:
        """Returns the same tensors with `length` renamed to `kv_length`."""

        def rename(x: mtf.Tensor | None) -> mtf.Tensor | None:
            """Returns x with the dimension renamed; None for an absent attribute."""
            return None if x is None else mtf.rename(x, LENGTH, KV_LENGTH)

        return TokenInfo(
            positions=mtf.rename(self.positions, LENGTH, KV_LENGTH),
            segments=rename(self.segments),
            prefix=rename(self.prefix),
        )

    @property
    def nonpadding(self) -> mtf.Tensor | None:
        """Bool [batch, length], False at padding; None: no token is padding."""
        return None if self.segments is None else self.segments > 0


def zigzag_order(
    architecture: Architecture, token_info: TokenInfo, tokens: mtf.Tensor
) -> mtf.layers.ZigzagOrder | None:
    """Returns the order in which every chunk of causal ring attention has the same work;
    None: the order of the text, for other attention, or with a prefix that earlier tokens
    attend to.

    Args:
      architecture: the architecture of a causal stack.
      token_info: the information about the tokens.
      tokens: the token ids, integers [batch, length].

    Raises:
      ShapeError: the tokens cannot be split into chunks of two halves.
    """
    dim = tokens.shape.dim(LENGTH)
    if token_info.prefix is not None or not architecture.may_use_ring:
        return None
    if dim.size <= architecture.block_length:
        return None
    if dim.size % architecture.block_length:
        raise mtf.ShapeError(
            f"{dim!r} cannot be split into chunks of {architecture.block_length} for "
            "ring attention.\n  Take an Architecture.block_length that divides it, or "
            "texts of another length."
        )
    return mtf.layers.ZigzagOrder(dim, dim.size // architecture.block_length)
