"""Routing of tokens to experts: each expert has a queue of the tokens that chose it.

    queues = ExpertQueues(experts, valid, mtf.Dimension("experts_all", 3))
    queues.positions           # [batch choice length]: from 0, in the queue of the expert
    queues.heads(capacity)     # [batch experts_all capacity]: the start of each queue

`experts` and `valid` are [batch choice length]. The choices of a group are ordered: the first
choices of all tokens come before all second ones. A stable sort of this sequence by expert
gives the queues:

    experts     1 0 1 1 | 0 2 0 0       first choices | second choices
    order       1 4 6 7   0 2 3   5     the queues of experts 0, 1 and 2
    positions   0 0 1 2 | 1 0 2 3

There are no one-hot tensors, so the cost does not grow with the count of experts.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import gin

import meshtf as mtf

EXPERTS = "experts_all"  # of gates; variables of experts have the dimension "experts"
TOKENS = "length"
CHOICE = "choice"
CAPACITY = "capacity"
_SEQUENCE = "line"  # choices and tokens as one dimension


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Capacity:
    """The count of slots of an expert in each group: choices * tokens / experts, times a
    factor.

    Attributes:
      train: the factor in training. None drops no token: an expert then has a slot for
        each token of a group, at experts / choices times the cost of factor 1.
      evaluate: the factor in evaluation and decoding.
      minimum: the minimum count of slots of an expert.
      multiple: slots are rounded up to a multiple of this.
    """

    train: float | None = 1.25
    evaluate: float | None = 2.0
    minimum: int = 4
    multiple: int = 1

    def slots(self, choices: int, tokens: int, experts: int, training: bool) -> int:
        """Returns the count of slots of an expert in a group, at most the tokens of the
        group.
        """
        factor = self.train if training else self.evaluate
        if factor is None:
            return tokens
        needed = max(int(choices * tokens * factor / experts), self.minimum, 1)
        rounded_up = -(-needed // self.multiple) * self.multiple
        return min(rounded_up, tokens)


class Choices(NamedTuple):
    """The choices of tokens; each field is [*groups, choice, length]."""

    experts: mtf.Tensor  # int32
    gates: mtf.Tensor  # float32: the weight of the expert's result; 0: dropped
    positions: mtf.Tensor  # int32: in the queue of the expert, from 0; -1: padding
    has_slot: mtf.Tensor  # bool: whether the expert takes the choice
    slots: mtf.Tensor  # int32: expert * capacity + position; -1: dropped


@dataclasses.dataclass(frozen=True)
class Routing:
    """The assignment of tokens to the slots of experts, with losses and statistics."""

    tokens: mtf.Tensor  # int32 [*groups, experts_all, capacity]; -1: an empty slot
    weights: mtf.Tensor  # float32, the same shape: weights of results; 0: an empty slot
    choices: Choices | None  # None: experts choose tokens
    sources: mtf.Tensor  # of each slot, choice * tokens + token; -1: an empty slot
    losses: dict[str, mtf.Tensor]  # scalars
    load: mtf.Tensor  # [experts_all]: fractions of the choices before any is dropped
    dropped: mtf.Tensor  # scalar: the fraction of choices without a slot
    entropy: mtf.Tensor  # scalar: mean entropy of the router's probabilities, in nats


class ExpertQueues:
    """The queues of choices at the experts, for each group.

    Args:
      experts: int32 [*groups, choice, length], the expert of each choice.
      valid: bool, the same shape: whether the choice is queued.
      dim: the dimension of the experts.
    """

    def __init__(
        self, experts: mtf.Tensor, valid: mtf.Tensor, dim: mtf.Dimension
    ) -> None:
        self.groups = [n for n in experts.shape.names if n not in (CHOICE, TOKENS)]
        self.dim = dim
        self.experts = experts
        self.valid = valid
        # Choices that are not queued sort after those of the last expert.
        flat = flatten_choices(mtf.where(valid, experts, dim.size))
        self._order = mtf.argsort(flat, _SEQUENCE)
        self.counts = self.count(experts.shape[CHOICE])
        self._starts = mtf.cumsum(self.counts, dim.name, exclusive=True)

    def count(self, choices: int) -> mtf.Tensor:
        """Returns how many of the first `choices` choices of tokens went to each expert:
        int32 [*groups, experts].
        """
        is_counted = (
            mtf.range(self.experts.mesh, self.experts.shape.dim(CHOICE)) < choices
        )
        ones = mtf.where(self.valid & is_counted, mtf.ones_like(self.experts), 0)
        return mtf.segment_sum(ones, self.experts, self.dim, self.groups)

    @property
    def positions(self) -> mtf.Tensor:
        """The position of each choice in its expert's queue, from 0: [*groups, choice,
        length].
        """
        rank = mtf.argsort(self._order, _SEQUENCE)
        start = mtf.gather(self._starts, flatten_choices(self.experts), self.dim.name)
        shape = self.experts.shape.only([CHOICE, TOKENS])
        return mtf.unflatten(
            rank - start, _SEQUENCE, [shape.dim(CHOICE), shape.dim(TOKENS)]
        )

    def heads(self, capacity: int) -> mtf.Tensor:
        """Returns the first `capacity` entries of each queue, [*groups, experts, capacity];
        -1 after its end.

        An entry is choice * tokens + token, its index in `flatten_choices`.
        """
        position = mtf.range(self.experts.mesh, mtf.Dimension(CAPACITY, capacity))
        exists = mtf.outer(self.counts, position, mtf.greater)
        rank = mtf.where(exists, mtf.outer(self._starts, position, mtf.add), -1)
        entry = mtf.gather(self._order, rank, _SEQUENCE, zero_negative=True)
        return mtf.where(exists, entry, -1)


def flatten_choices(x: mtf.Tensor) -> mtf.Tensor:
    """Returns x[*groups, choice, length, ...] with choices and tokens merged into one
    dimension, in which all first choices come first.
    """
    return mtf.flatten(x, [CHOICE, TOKENS], _SEQUENCE)


def gather_choices(x: mtf.Tensor, entries: mtf.Tensor) -> mtf.Tensor:
    """Returns x[*groups, choice, length] at entries choice * tokens + token; 0 where an
    entry is negative.
    """
    return mtf.gather(flatten_choices(x), entries, _SEQUENCE, zero_negative=True)
