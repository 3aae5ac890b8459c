"""Tokens to the slots of experts and back, by number or by products with ones and
zeros.

    slots = by_index.take(x, routing)                   # [*groups experts_all capacity d_model]
    y = by_index.bring_back(results, routing, x)        # [*groups length d_model]

By number, forward and backward pass look up rows, at a cost of tokens times d_model.
What `take` looks up is added up again in its gradient, which is the sum over choices of
rows by slot; that of `bring_back` takes each slot's one token. So nothing is scattered.
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
    at_rows,
)

_SLOT = "slot"


class Dispatch(NamedTuple):
    """A way to bring tokens to experts, and results back."""

    take: Callable[[mtf.Tensor, Routing], mtf.Tensor]
    bring_back: Callable[[mtf.Tensor, Routing, mtf.Tensor], mtf.Tensor]


def _take(x: mtf.Tensor, routing: Routing) -> mtf.Tensor:
    if routing.choices is None:
        return _rows(x, routing.tokens, TOKENS)
    return _taken(x, routing.tokens, routing.choices.slots)


def _bring_back(results: mtf.Tensor, routing: Routing, x: mtf.Tensor) -> mtf.Tensor:
    if routing.choices is None:
        groups = [n for n in routing.tokens.shape.names if n not in (EXPERTS, CAPACITY)]
        weighted = results * mtf.cast(routing.weights, results.dtype)
        y = mtf.segment_sum(weighted, routing.tokens, x.shape.dim(TOKENS), groups)
    else:
        rows = _brought(results, routing.choices.slots, routing.sources)
        y = mtf.einsum(
            [rows, mtf.cast(routing.choices.gates, rows.dtype)],
            rows.shape.without(CHOICE),
        )
    return mtf.transpose(y, x.shape.names)


@mtf.custom_gradient
def _taken(
    x: mtf.Tensor, tokens: mtf.Tensor, slots: mtf.Tensor
) -> tuple[mtf.Tensor, Callable[..., Any]]:
    def rule(dy: mtf.Tensor) -> list[mtf.Tensor | None]:
        rows = _rows(mtf.merge(dy, [EXPERTS, CAPACITY], _SLOT), slots, _SLOT)
        return [mtf.reduce_sum(rows, CHOICE), None, None]

    return _rows(x, tokens, TOKENS), rule


@mtf.custom_gradient
def _brought(
    results: mtf.Tensor, slots: mtf.Tensor, sources: mtf.Tensor
) -> tuple[mtf.Tensor, Callable[..., Any]]:
    def rule(dy: mtf.Tensor) -> list[mtf.Tensor | None]:
        return [at_rows(dy, sources), None, None]

    return _rows(mtf.merge(results, [EXPERTS, CAPACITY], _SLOT), slots, _SLOT), rule


def _rows(x: mtf.Tensor, numbers: mtf.Tensor, dim: str) -> mtf.Tensor:
    return mtf.gather(x, numbers, dim, zero_negative=True)


def _take_by_product(x: mtf.Tensor, routing: Routing) -> mtf.Tensor:
    there = _ones(x, routing)
    return mtf.einsum(
        [there, x], there.shape.without(TOKENS) + x.shape.without(*there.shape.names)
    )


def _bring_back_by_product(
    results: mtf.Tensor, routing: Routing, x: mtf.Tensor
) -> mtf.Tensor:
    weights = _ones(x, routing) * mtf.cast(routing.weights, x.dtype)
    return mtf.einsum([weights, results], x.shape)


def _ones(x: mtf.Tensor, routing: Routing) -> mtf.Tensor:
    """Returns [*groups, experts_all, capacity, length]: 1 where a slot has a token."""
    return mtf.one_hot(routing.tokens, x.shape.dim(TOKENS), x.dtype)


by_index = Dispatch(_take, _bring_back)
by_product = Dispatch(_take_by_product, _bring_back_by_product)
