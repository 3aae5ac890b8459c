"""Routing of tokens to experts: each expert has a queue of the tokens that chose it.

    queues = ExpertQueues(experts, valid, mtf.Dimension("experts_all", 3))
    queues.positions           # [batch choice length]: from 0, in the queue of the expert
    queues.front(capacity)     # [batch experts_all capacity]: the start of each queue

`experts` and `valid` are [batch choice length]. A token has one or more *choices*: experts
in order of preference. The choices of a group of tokens are one sequence: the first choices
of all tokens, then their second choices, and so on. A stable sort of this sequence by expert
is the queues of all experts, one after the other. For 4 tokens of 2 choices each:

    experts     1 0 1 1 | 0 2 0 0         first choices | second choices
    order       1 4 6 7 | 0 2 3 | 5       queues of experts 0, 1 and 2: indices of the above
    positions   0 0 1 2 | 1 0 2 3         of each choice in the queue of its expert

There are no one-hot tensors, so the cost does not grow with the count of experts.
"""

from __future__ import annotations

import dataclasses
from numbers import Integral
from typing import Any, NamedTuple

import gin

import meshtf as mtf

# Names of dimensions. Logits and gates have the dimension "experts_all", which is not sharded;
# the variables of experts have the dimension "experts", which layouts shard.
EXPERTS = "experts_all"
TOKENS = "length"
CHOICE = "choice"
CAPACITY = "capacity"
_SEQUENCE = "choice_sequence"  # choices and tokens, flattened into one dimension


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Capacity:
    """The count of slots of an expert in a group: factor * choices * tokens / experts. A slot
    is the storage of one token at one expert. Padding is no token: an expert has as many
    slots for a group as if the group had no padding.

    Attributes:
      train: the factor in training. None: an expert has a slot for each token of a group,
        so no token is dropped, at experts / choices times the cost of factor 1.
      evaluate: the factor in evaluation and decoding; None as for `train`.
      minimum: the minimum count of slots.
      multiple: the count of slots is rounded up to a multiple of this.

    Raises:
      ParseError: `minimum` or `multiple` is not an integer, or too small.
    """

    train: float | None = 1.25
    evaluate: float | None = 2.0
    minimum: int = 4
    multiple: int = 1

    def __post_init__(self) -> None:
        check_count("Capacity.minimum", self.minimum, minimum=0)
        check_count("Capacity.multiple", self.multiple, minimum=1)

    def slots(self, choices: int, tokens: int, experts: int, training: bool) -> int:
        """Returns the count of slots of an expert in a group, at most `tokens`.

        Args:
          choices: the count of choices of a token.
          tokens: the count of tokens of a group.
          experts: the count of experts.
          training: whether the factor is `train` or `evaluate`.
        """
        factor = self.train if training else self.evaluate
        if factor is None:
            return tokens
        needed = max(int(choices * tokens * factor / experts), self.minimum, 1)
        num_multiples = -(-needed // self.multiple)  # rounded up
        return min(num_multiples * self.multiple, tokens)

    def tokens_per_slot(
        self, choices: int, tokens: int, experts: int, training: bool
    ) -> list[int]:
        """Returns for each slot of an expert how many tokens that are no padding a group
        must have for the expert to have this slot; arguments as of `slots`.
        """
        thresholds: list[int] = []
        for count in range(1, tokens + 1):
            slots = self.slots(choices, count, experts, training)
            thresholds += [count] * (slots - len(thresholds))
        return thresholds


def check_count(setting: str, value: Any, minimum: int) -> None:
    """Raises ParseError unless a value is an integer that is not below a minimum.

    Args:
      setting: the name of the setting, such as "MixtureOfExperts.experts".
      value: the value of the setting.
      minimum: the minimum value.
    """
    # In Python a bool is an integer, too.
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or value < minimum:
        raise mtf.ParseError(
            f"{setting} is {value!r}: it must be an integer, at least {minimum}."
        )


class Choices(NamedTuple):
    """The choices of tokens; each field is [*groups, choice, length].

    Attributes:
      experts: the index of the chosen expert, int32.
      gates: the weight of the expert's result, float32; 0: the choice is dropped.
      positions: the position in the expert's queue, int32, from 0; -1: not queued.
      has_slot: whether the choice gets a slot, bool.
      slots: the index of the slot among those of all experts, expert * capacity +
        position, int32; -1: the choice is dropped.
    """

    experts: mtf.Tensor
    gates: mtf.Tensor
    positions: mtf.Tensor
    has_slot: mtf.Tensor
    slots: mtf.Tensor


@dataclasses.dataclass(frozen=True)
class Routing:
    """The assignment of tokens to the slots of experts, with losses and statistics.

    Attributes:
      tokens: the index in its group of the token in each slot, int32 [*groups,
        experts_all, capacity]; -1: the slot is empty.
      weights: the weight of each slot's result, float32 [*groups, experts_all, capacity];
        0: the slot is empty.
      choices: the choices of tokens; None: experts choose tokens.
      sources: the choice in each slot, as choice * tokens + token, int32 [*groups,
        experts_all, capacity]; -1: the slot is empty.
      losses: the unweighted auxiliary losses by name, "balance" and "z": scalars.
      load: the fraction of choices of each expert before any is dropped, [experts_all].
      dropped: the fraction of choices without a slot, a scalar.
      entropy: the mean entropy of the router's probabilities in nats, a scalar.
      num_tokens: the count of tokens without padding, over which losses, load, dropped and
        entropy are means: a float32 scalar.
    """

    tokens: mtf.Tensor
    weights: mtf.Tensor
    choices: Choices | None
    sources: mtf.Tensor
    losses: dict[str, mtf.Tensor]
    load: mtf.Tensor
    dropped: mtf.Tensor
    entropy: mtf.Tensor
    num_tokens: mtf.Tensor


class ExpertQueues:
    """The queues of choices at the experts, for each group.

    Args:
      experts: the index of the expert of each choice, int32 [*groups, choice, length].
      valid: whether each choice is queued, bool [*groups, choice, length].
      dim: the dimension of experts, such as `experts_all:8`.

    Attributes:
      groups: the names of the dimensions of groups.
      counts: the length of each expert's queue, int32 [*groups, experts_all].
    """

    def __init__(
        self, experts: mtf.Tensor, valid: mtf.Tensor, dim: mtf.Dimension
    ) -> None:
        self.groups = [
            name for name in experts.shape.names if name not in (CHOICE, TOKENS)
        ]
        self.dim = dim
        self.experts = experts
        self.valid = valid
        # Choices that are not queued get an expert after the last, so they sort last.
        sequence = flatten_choices(mtf.where(valid, experts, dim.size))
        # Indices into `sequence`: all queues, one after the other. `_starts` is where in
        # this order each expert's queue starts.
        self._order = mtf.argsort(sequence, _SEQUENCE)
        self.counts = self.count(experts.shape[CHOICE])
        self._starts = mtf.cumsum(self.counts, dim.name, exclusive=True)

    def count(self, num_counted: int) -> mtf.Tensor:
        """Returns the count of choices of each expert, int32 [*groups, experts_all]; only
        the first `num_counted` choices of a token are counted.
        """
        choice_index = mtf.range(self.experts.mesh, self.experts.shape.dim(CHOICE))
        is_counted = choice_index < num_counted
        ones = mtf.where(self.valid & is_counted, mtf.ones_like(self.experts), 0)
        return mtf.segment_sum(ones, self.experts, dim=self.dim, batch=self.groups)

    @property
    def positions(self) -> mtf.Tensor:
        """The position of each choice in its expert's queue, from 0: [*groups, choice,
        length].
        """
        # Sorting a permutation inverts it: the index of each choice in the sorted sequence.
        rank = mtf.argsort(self._order, _SEQUENCE)
        start = mtf.gather(self._starts, flatten_choices(self.experts), self.dim.name)
        shape = self.experts.shape.only([CHOICE, TOKENS])
        return mtf.unflatten(
            rank - start, _SEQUENCE, [shape.dim(CHOICE), shape.dim(TOKENS)]
        )

    def front(self, capacity: int) -> mtf.Tensor:
        """Returns the first `capacity` entries of each queue, int32 [*groups, experts_all,
        capacity]; -1 after the end of the queue.

        An entry is choice * tokens + token: an index into `flatten_choices`.
        """
        position = mtf.range(self.experts.mesh, mtf.Dimension(CAPACITY, capacity))
        is_in_queue = mtf.outer(self.counts, position, mtf.greater)
        rank = mtf.where(is_in_queue, mtf.outer(self._starts, position, mtf.add), -1)
        entry = mtf.gather(self._order, rank, _SEQUENCE, zero_negative=True)
        return mtf.where(is_in_queue, entry, -1)


def flatten_choices(x: mtf.Tensor) -> mtf.Tensor:
    """Returns x [*groups, choice, length, ...] with choices and tokens flattened into one
    dimension, in which all first choices come first.
    """
    return mtf.flatten(x, [CHOICE, TOKENS], _SEQUENCE)


def gather_choices(x: mtf.Tensor, entries: mtf.Tensor) -> mtf.Tensor:
    """Returns the elements of x [*groups, choice, length, ...] at `entries`, integers choice
    * tokens + token; 0 where an entry is negative.
    """
    return mtf.gather(flatten_choices(x), entries, _SEQUENCE, zero_negative=True)
