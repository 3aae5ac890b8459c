"""Moves tokens to the slots of experts and back, by gathers or by one-hot matmuls.

    slots = by_index.take(x, routing)             # [*groups experts_all capacity d_model]
    y = by_index.combine(results, routing, x)     # [*groups length d_model]

A *slot* is the storage of one token at one expert: an element of [experts_all, capacity].
`routing` assigns tokens to slots: see `transformer.experts.routing`.

`by_index` gathers vectors of d_model elements, at a cost of tokens * d_model. If tokens
choose experts, there is no scatter, not even in the backward pass: the gradient of `take`
gathers the slots of each token, and sums over the token's choices; the gradient of
`combine` gathers the token of each slot, since a slot has one token. `by_one_hot`
multiplies by one-hot tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import meshtf as mtf
from transformer.experts.routing import (
    CAPACITY,
    CHOICE,
    EXPERTS,
    TOKENS,
    Routing,
    gather_choices,
)

_SLOT = "slot"  # the dimensions of slots, experts_all and capacity, flattened into one


class Dispatch(NamedTuple):
    """An implementation of dispatch: two functions.

    Attributes:
      take: (x, routing) -> the token in each slot, [*groups, experts_all, capacity,
        d_model]; 0 in empty slots.
      combine: (results, routing, x) -> for each token the weighted sum of the experts'
        results, shaped as x. Only the shape and dtype of x are used.
    """

    take: Callable[[mtf.Tensor, Routing], mtf.Tensor]
    combine: Callable[[mtf.Tensor, Routing, mtf.Tensor], mtf.Tensor]


def _take_by_gather(x: mtf.Tensor, routing: Routing) -> mtf.Tensor:
    """Returns the token in each slot: `Dispatch.take`."""
    if routing.choices is None:
        return _gather(x, routing.tokens, TOKENS)
    return _gather_tokens(x, routing.tokens, routing.choices.slots)


def _combine_by_gather(
    results: mtf.Tensor, routing: Routing, x: mtf.Tensor
) -> mtf.Tensor:
    """Returns the weighted sum of the results of each token: `Dispatch.combine`."""
    if routing.choices is None:
        # Experts chose tokens: any count of slots may have results for a token.
        slot_dims = (EXPERTS, CAPACITY)
        groups = [name for name in routing.tokens.shape.names if name not in slot_dims]
        weighted_results = results * mtf.cast(routing.weights, results.dtype)
        y = mtf.segment_sum(
            weighted_results, routing.tokens, dim=x.shape.dim(TOKENS), batch=groups
        )
    else:
        # [*groups, choice, length, d_model]
        results_of_choices = _gather_results(
            results, routing.choices.slots, routing.sources
        )
        gates = mtf.cast(routing.choices.gates, results_of_choices.dtype)
        y = mtf.einsum(
            [results_of_choices, gates], results_of_choices.shape.without(CHOICE)
        )
    return mtf.transpose(y, x.shape.names)


@mtf.custom_gradient
def _gather_tokens(
    x: mtf.Tensor, tokens: mtf.Tensor, slots: mtf.Tensor
) -> tuple[mtf.Tensor, Callable[..., Any]]:
    """Returns the token of each slot, and the rule for gradients of x.

    Args:
      x: the tokens, [*groups, length, d_model].
      tokens: the index of the token of each slot, int32 [*groups, experts_all, capacity].
      slots: the index of the slot of each choice, int32 [*groups, choice, length].
    """

    def rule(dy: mtf.Tensor) -> list[mtf.Tensor | None]:
        """Returns the gradients of x, tokens and slots; None for integers."""
        dy_slots = mtf.flatten(dy, [EXPERTS, CAPACITY], _SLOT)
        dx_of_choices = _gather(dy_slots, slots, _SLOT)
        return [mtf.reduce_sum(dx_of_choices, CHOICE), None, None]

    return _gather(x, tokens, TOKENS), rule


@mtf.custom_gradient
def _gather_results(
    results: mtf.Tensor, slots: mtf.Tensor, sources: mtf.Tensor
) -> tuple[mtf.Tensor, Callable[..., Any]]:
    """Returns the expert's result for each choice, [*groups, choice, length, d_model], and
    the rule for gradients of results.

    Args:
      results: the results of experts, [*groups, experts_all, capacity, d_model].
      slots: the index of the slot of each choice, int32 [*groups, choice, length].
      sources: the index of the choice in each slot, int32 [*groups, experts_all,
        capacity].
    """

    def rule(dy: mtf.Tensor) -> list[mtf.Tensor | None]:
        """Returns the gradients of results, slots and sources; None for integers."""
        return [gather_choices(dy, sources), None, None]

    result_slots = mtf.flatten(results, [EXPERTS, CAPACITY], _SLOT)
    return _gather(result_slots, slots, _SLOT), rule


def _gather(x: mtf.Tensor, indices: mtf.Tensor, dim: str) -> mtf.Tensor:
    """Returns the elements of x at indices along `dim`; 0 where an index is negative."""
    return mtf.gather(x, indices, dim, zero_negative=True)


def _take_by_matmul(x: mtf.Tensor, routing: Routing) -> mtf.Tensor:
    """Returns the token in each slot: `Dispatch.take`."""
    one_hot = _one_hot(x, routing)
    feature_dims = x.shape.without(*one_hot.shape.names)
    return mtf.einsum([one_hot, x], one_hot.shape.without(TOKENS) + feature_dims)


def _combine_by_matmul(
    results: mtf.Tensor, routing: Routing, x: mtf.Tensor
) -> mtf.Tensor:
    """Returns the weighted sum of the results of each token: `Dispatch.combine`."""
    weights = _one_hot(x, routing) * mtf.cast(routing.weights, x.dtype)
    return mtf.einsum([weights, results], x.shape)


def _one_hot(x: mtf.Tensor, routing: Routing) -> mtf.Tensor:
    """Returns 1 where a slot has this token, else 0: [*groups, experts_all, capacity,
    length].
    """
    return mtf.one_hot(routing.tokens, x.shape.dim(TOKENS), x.dtype)


by_index = Dispatch(take=_take_by_gather, combine=_combine_by_gather)
by_one_hot = Dispatch(take=_take_by_matmul, combine=_combine_by_matmul)
