"""Moves tokens to the slots of experts and back, by gathers or by one-hot matmuls.

    slots = by_index.take(x, routing)                   # [*groups experts_all capacity d_model]
    y = by_index.combine(results, routing, x)        # [*groups length d_model]

With `by_index`, forward and backward pass are gathers of d_model vectors, at a cost of
tokens * d_model. The gradient of `take` is a gather by slot, summed over the choices of a
token; that of `combine` is a gather by token, as each slot holds one token. So there is
no scatter.
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

_SLOT = "slot"


class Dispatch(NamedTuple):
    """An implementation of dispatch.

    Attributes:
      take: (x, routing) -> the tokens in the slots [*groups, experts_all, capacity,
        d_model].
      combine: (results, routing, x) -> the weighted sums of results, shaped as x.
    """

    take: Callable[[mtf.Tensor, Routing], mtf.Tensor]
    combine: Callable[[mtf.Tensor, Routing, mtf.Tensor], mtf.Tensor]


def _take_by_gather(x: mtf.Tensor, routing: Routing) -> mtf.Tensor:
    if routing.choices is None:
        return _gather(x, routing.tokens, TOKENS)
    return _gather_tokens(x, routing.tokens, routing.choices.slots)


def _combine_by_gather(
    results: mtf.Tensor, routing: Routing, x: mtf.Tensor
) -> mtf.Tensor:
    if routing.choices is None:
        groups = [n for n in routing.tokens.shape.names if n not in (EXPERTS, CAPACITY)]
        weighted = results * mtf.cast(routing.weights, results.dtype)
        y = mtf.segment_sum(weighted, routing.tokens, x.shape.dim(TOKENS), groups)
    else:
        # [*groups, choice, length, d_model]
        chosen = _gather_results(results, routing.choices.slots, routing.sources)
        gates = mtf.cast(routing.choices.gates, chosen.dtype)
        y = mtf.einsum([chosen, gates], chosen.shape.without(CHOICE))
    return mtf.transpose(y, x.shape.names)


@mtf.custom_gradient
def _gather_tokens(
    x: mtf.Tensor, tokens: mtf.Tensor, slots: mtf.Tensor
) -> tuple[mtf.Tensor, Callable[..., Any]]:
    def rule(dy: mtf.Tensor) -> list[mtf.Tensor | None]:
        dy_slots = mtf.flatten(dy, [EXPERTS, CAPACITY], _SLOT)
        dx = _gather(dy_slots, slots, _SLOT)  # [*groups, choice, length, d_model]
        return [mtf.reduce_sum(dx, CHOICE), None, None]

    return _gather(x, tokens, TOKENS), rule


@mtf.custom_gradient
def _gather_results(
    results: mtf.Tensor, slots: mtf.Tensor, sources: mtf.Tensor
) -> tuple[mtf.Tensor, Callable[..., Any]]:
    def rule(dy: mtf.Tensor) -> list[mtf.Tensor | None]:
        return [gather_choices(dy, sources), None, None]

    result_slots = mtf.flatten(results, [EXPERTS, CAPACITY], _SLOT)
    return _gather(result_slots, slots, _SLOT), rule


def _gather(x: mtf.Tensor, indices: mtf.Tensor, dim: str) -> mtf.Tensor:
    """Returns x at indices of a dimension; zero where an index is negative."""
    return mtf.gather(x, indices, dim, zero_negative=True)


def _take_by_matmul(x: mtf.Tensor, routing: Routing) -> mtf.Tensor:
    one_hot = _one_hot(x, routing)
    features = x.shape.without(*one_hot.shape.names)
    return mtf.einsum([one_hot, x], one_hot.shape.without(TOKENS) + features)


def _combine_by_matmul(
    results: mtf.Tensor, routing: Routing, x: mtf.Tensor
) -> mtf.Tensor:
    weights = _one_hot(x, routing) * mtf.cast(routing.weights, x.dtype)
    return mtf.einsum([weights, results], x.shape)


def _one_hot(x: mtf.Tensor, routing: Routing) -> mtf.Tensor:
    """Returns [*groups, experts_all, capacity, length]: 1 where a slot has a token."""
    return mtf.one_hot(routing.tokens, x.shape.dim(TOKENS), x.dtype)


by_index = Dispatch(_take_by_gather, _combine_by_gather)
by_one_hot = Dispatch(_take_by_matmul, _combine_by_matmul)
