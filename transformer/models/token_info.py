"""Positions, segments, prefixes and padding of tokens, and their order along the sequence.

    token_info = TokenInfo.of(tokens)                    # tokens [batch, length]
    context = token_info.as_context()                    # tensors [..., kv_length]

What is padding is decided here, for routers: padding goes through no expert, takes no capacity,
and counts in no loss or statistic of a router. It is

- a token of segment 0, where there are segments: packed texts, BERT and encoders (id 0);
- without segments, in a causal model, a token after which no target of its example counts: no
  loss depends on it. A weight of 0 before a target that counts is no padding but context, such
  as a prompt whose own tokens are not learned;
- each token of an example whose count is 0, which only pads the last batch.

A target counts if its weight is not 0 and its id is not negative, as in the loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

import meshtf as mtf
from transformer.models.architecture import Architecture

LENGTH = "length"
KV_LENGTH = "kv_length"


class TokenInfo(NamedTuple):
    """Positions, segments, prefixes and padding of tokens.

    Attributes:
      positions: the position of each token in its segment, integers [length] or [batch,
        length].
      segments: the segment of each token, integers [batch, length]; 0 is padding. Tokens
        attend within their segment. None: one segment without padding.
      prefix: bool [batch, length], True for tokens that earlier tokens attend to, too;
        None: there are no such tokens.
      zigzag: the zigzag order that the tokens are in, for causal ring attention; None: the
        order of the text.
      nonpadding: bool [batch, length], False at padding; None: no token is padding.
      from_zero: True: positions count the tokens of each example, from 0; None: they may not.
    """

    positions: mtf.Tensor
    segments: mtf.Tensor | None = None
    prefix: mtf.Tensor | None = None
    zigzag: mtf.layers.ZigzagOrder | None = None
    nonpadding: mtf.Tensor | None = None
    from_zero: bool | None = None

    @classmethod
    def of(
        cls,
        tokens: mtf.Tensor,
        positions: mtf.Tensor | None = None,
        segments: mtf.Tensor | None = None,
        prefix: mtf.Tensor | None = None,
        counted: mtf.Tensor | None = None,
        counts: mtf.Tensor | None = None,
    ) -> TokenInfo:
        """Returns the information about tokens.

        Args:
          tokens: the token ids, integers [batch, length].
          positions: the attribute `positions`; None: from 0 on in each example.
          segments: the attribute `segments`; None: each example is one segment without
            padding.
          prefix: the attribute `prefix`, as integers or bool.
          counted: in a causal model, whether the target of each token counts, bool [batch,
            length]: see `counted_targets`. None: all count.
          counts: for each example 1, or 0 if it is padding, [batch]; None: none is.
        """
        from_zero = True if positions is None else None
        if positions is None:
            positions = mtf.range(tokens.mesh, tokens.shape.dim(LENGTH))
        if prefix is not None:
            prefix = mtf.cast(prefix, "bool")
        nonpadding = None
        if segments is not None:
            nonpadding = segments > 0
        elif counted is not None:
            nonpadding = _may_affect_targets(counted, prefix)
        if counts is not None:
            if nonpadding is None:
                nonpadding = mtf.ones(tokens.mesh, tokens.shape, "bool")
            nonpadding = nonpadding & (counts > 0)
        return cls(
            positions=positions,
            segments=segments,
            prefix=prefix,
            nonpadding=nonpadding,
            from_zero=from_zero,
        )

    @property
    def is_plain(self) -> bool:
        """Whether each example is one text without prefix, from its first token on."""
        return bool(self.from_zero) and self.segments is None and self.prefix is None

    def in_order(self, order: mtf.layers.ZigzagOrder) -> TokenInfo:
        """Returns the information about the same tokens in zigzag order."""
        nonpadding = None
        if self.nonpadding is not None:
            nonpadding = order.apply(self.nonpadding)
        segments = None if self.segments is None else order.apply(self.segments)
        return TokenInfo(
            order.apply(self.positions),
            segments=segments,
            zigzag=order,
            nonpadding=nonpadding,
        )

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
            from_zero=self.from_zero,
        )


def counted_targets(batch: Mapping[str, mtf.Tensor]) -> mtf.Tensor | None:
    """Returns whether each target of a batch counts in the loss, bool [batch, length]; None:
    the batch has no targets.
    """
    if "targets" not in batch:
        return None
    counted = batch["targets"] >= 0
    if "weights" in batch:
        counted = counted & (batch["weights"] != 0)
    return counted


def _may_affect_targets(counted: mtf.Tensor, prefix: mtf.Tensor | None) -> mtf.Tensor:
    """Returns whether the loss of a causal model may depend on each token, bool [batch,
    length]: whether the target of the token, or of a later one, counts. On a token of the
    prefix, all targets of the example may depend.

    Args:
      counted: whether the target of each token counts, bool [batch, length].
      prefix: bool [batch, length], True for tokens that earlier tokens attend to; None:
        there are none.
    """
    index = mtf.range(counted.mesh, counted.shape.dim(LENGTH))
    # The index of the last target that counts; -1: none does.
    last = mtf.reduce_max(mtf.where(counted, index, -1), LENGTH)
    may_affect = mtf.outer(last, index, mtf.greater_equal)
    if prefix is None:
        return may_affect
    return may_affect | (prefix & (last >= 0))


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
