"""Routing: which tokens an expert works on, and how the choices of tokens queue up at
experts.

    line = Line(experts, there, mtf.Dimension("experts_all", 3))     # [batch choice length], twice
    line.positions             # [batch choice length]: from 0, in each queue
    line.heads(capacity)       # [batch experts_all capacity]: who comes first

All choices of a group stand in one line, the first choices of all tokens before all
second ones. A stable sort by expert makes a queue of each expert's part of the line:

    experts     1 0 1 1 | 0 2 0 0       first choices | second choices
    order       1 4 6 7   0 2 3   5     the queues of experts 0, 1 and 2
    positions   0 0 1 2 | 1 0 2 3

Nothing is counted in one-hot tensors, so the cost does not grow with the number of
experts.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import gin

import meshtf as mtf

EXPERTS = "experts_all"  # of gates: what lies with experts is cut along another name
TOKENS, CHOICE, CAPACITY = "length", "choice", "capacity"
_LINE = "line"


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Capacity:
    """How many tokens of a group an expert takes: choices * tokens / experts, times a
    factor.

    Attributes:
      train: the factor in training; None drops no token: an expert then has a slot for
        each token of a group, which is experts / choices times the work of a factor of
        1.
      evaluate: the factor otherwise.
      minimum: of slots of an expert.
      multiple: slots are rounded up to a multiple of this.
    """

    train: float | None = 1.25
    evaluate: float | None = 2.0
    minimum: int = 4
    multiple: int = 1

    def slots(self, choices: int, tokens: int, experts: int, training: bool) -> int:
        """Returns the slots of an expert in a group; never more than the group has
        tokens.
        """
        factor = self.train if training else self.evaluate
        if factor is None:
            return tokens
        wanted = max(int(choices * tokens * factor / experts), self.minimum, 1)
        return min(-(-wanted // self.multiple) * self.multiple, tokens)


class Choices(NamedTuple):
    """What tokens chose, each [*groups, choice, length]."""

    experts: mtf.Tensor  # int32
    gates: mtf.Tensor  # float32: what the expert's result is multiplied by; 0: dropped
    positions: mtf.Tensor  # int32: in the queue of the expert, from 0; -1: padding
    kept: mtf.Tensor  # bool
    slots: mtf.Tensor  # int32: expert * capacity + position; -1: dropped


@dataclasses.dataclass(frozen=True)
class Routing:
    """Who works on what, what a loss should know of it, and what a person might."""

    tokens: mtf.Tensor  # int32 [*groups, experts_all, capacity]; -1: an empty slot
    weights: mtf.Tensor  # float32, the same shape: of results; 0: an empty slot
    choices: Choices | None  # None: tokens choose nothing
    sources: mtf.Tensor  # `tokens` as rows of [choice length] together; -1: empty
    losses: dict[str, mtf.Tensor]  # scalars
    load: mtf.Tensor  # [experts_all]: shares of choices before any is dropped
    dropped: mtf.Tensor  # scalar: the share of choices that no expert works on
    entropy: mtf.Tensor  # scalar: of the probabilities of a token, the mean, in nats


class Line:
    """A line of choices for each group.

    Args:
      experts: int32 [*groups, choice, length], what each token chose.
      there: bool, the same shape: which of them stand in the line.
      dim: the experts that there are.
    """

    def __init__(
        self, experts: mtf.Tensor, there: mtf.Tensor, dim: mtf.Dimension
    ) -> None:
        self.groups = [n for n in experts.shape.names if n not in (CHOICE, TOKENS)]
        self.dim, self.experts, self.there = dim, experts, there
        flat = in_line(mtf.where(there, experts, dim.size))
        self._order = mtf.argsort(flat, _LINE)
        self.counts = self.count(experts.shape[CHOICE])
        self._starts = mtf.cumsum(self.counts, dim.name, exclusive=True)

    def count(self, choices: int) -> mtf.Tensor:
        """Returns how many of the first so many choices each expert got: int32
        [*groups, experts].
        """
        early = mtf.range(self.experts.mesh, self.experts.shape.dim(CHOICE)) < choices
        ones = mtf.where(self.there & early, mtf.ones_like(self.experts), 0)
        return mtf.segment_sum(ones, self.experts, self.dim, self.groups)

    @property
    def positions(self) -> mtf.Tensor:
        """The place of each choice in its expert's queue, from 0: [*groups, choice,
        length].
        """
        place = mtf.argsort(self._order, _LINE)
        first = mtf.gather(self._starts, in_line(self.experts), self.dim.name)
        shape = self.experts.shape.only([CHOICE, TOKENS])
        return mtf.split_dim(
            place - first, _LINE, [shape.dim(CHOICE), shape.dim(TOKENS)]
        )

    def heads(self, capacity: int) -> mtf.Tensor:
        """Returns the first of each queue, [*groups, experts, capacity]; -1 where
        nobody is left.

        They are numbered choice * tokens + token, as in `in_line`.
        """
        place = mtf.range(self.experts.mesh, mtf.Dimension(CAPACITY, capacity))
        there = mtf.outer(self.counts, place, mtf.greater)
        row = mtf.where(there, mtf.outer(self._starts, place, mtf.add), -1)
        return mtf.where(
            there, mtf.gather(self._order, row, _LINE, zero_negative=True), -1
        )


def in_line(x: mtf.Tensor) -> mtf.Tensor:
    """Returns [*groups, choice, length, ...] with the two as one, first
    choices first.
    """
    return mtf.merge(x, [CHOICE, TOKENS], _LINE)


def at_rows(x: mtf.Tensor, rows: mtf.Tensor) -> mtf.Tensor:
    """Returns x[*groups, choice, length] at rows of the line; 0 where they are
    negative.
    """
    return mtf.gather(in_line(x), rows, _LINE, zero_negative=True)
