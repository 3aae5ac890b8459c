"""The prompt and the step function of sampling and beam search, with checks of both.

The ids of a sequence before the loop, with eos_id=1:

    prompt [batch, length]         7 4 9 -1 -1 -1    negative: to be generated
    initial_ids [batch, length]    7 4 9  1  1  1    filled with eos_id

A position is an index of `length`. The loop calls the step function for one position after
another; `batch` means any dimensions of the prompt other than `length`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from meshtf.decoding.checks import check_name_is_free, check_setting, error
from meshtf.errors import DTypeError, PlanError, ShapeError, near_misses
from meshtf.graph import Tensor
from meshtf.names import Shape, is_floating, is_integer, nested
from meshtf.names.arguments import as_callable, as_dim, as_int, check_ints
from meshtf.ops.elementwise.arithmetic import (
    equal,
    greater,
    less,
    logical_or,
    minimum,
    outer,
)
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.dynamic_slice import dynamic_update
from meshtf.ops.indexing.gather import gather
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.shapes.reshape import transpose
from meshtf.ops.variables.fill import full

# A function (position [], ids [*batch], state) -> (logits [*batch, vocab], next state).
Step: TypeAlias = Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]]


class Sequences:
    """A prompt, and the step function that returns logits of the next ids.

    The arguments are those of `sample`.

    Attributes:
      step: the step function.
      vocab: the name of the dimension of ids in the logits.
      length: the name of the dimension of positions.
      vocab_size: the count of ids that may be generated; None: all ids.
      prompt: the ids of the prompt, int32 [*batch, length]; negative where ids are to be
        generated.
      batch: the dimensions of the prompt without `length`.
      initial_ids: the prompt with `fill_id` where ids are to be generated.
      fill_id: the id of positions without a generated id: the first of `eos_ids`, or 0.
      last_position: the last position to generate: an integer, int32 [], or int32
        [*batch].
      is_beyond: whether a position comes after the last one of its sequence, bool
        [*batch, length]; None: all sequences have the same last position.
      eos_ids: the ids that end a sequence.
      state_structure: the initial state; each step returns a state nested like it.
      state: the tensors of the initial state, as a flat list.
    """

    def __init__(
        self,
        step: Step,
        prompt: Tensor,
        state: Any,
        eos_id: int | Sequence[int] | None,
        vocab: str,
        length: str,
        vocab_size: int | None,
        max_length: Any,
    ) -> None:
        self.step = as_callable("step", step, "a function of (position, ids, state)")
        if vocab_size is not None:
            check_ints(vocab_size=vocab_size)
        self.vocab = as_dim("vocab", vocab)
        self.length = as_dim("length", length)
        self.vocab_size = vocab_size
        _check_prompt(prompt, self.vocab, self.length)
        self.prompt = cast(prompt, "int32")
        self.batch = prompt.shape.without(self.length)
        self.last_position = self._last_position(max_length)
        self.eos_ids = _eos_ids(eos_id)
        self.fill_id = 0
        if self.eos_ids:
            # A negative eos_id is an error, which `_check_ids` raises once the step has
            # returned logits.
            self.fill_id = max(self.eos_ids[0], 0)
        is_generated = less(self.prompt, 0)
        self.initial_ids = where(is_generated, self.fill_id, self.prompt)
        self.is_beyond = self._is_beyond()
        if self.is_beyond is not None:
            # The loop may go on for other sequences.
            self.prompt = where(self.is_beyond, self.initial_ids, self.prompt)
        self.state_structure = state
        self.state = _state_tensors(state)

    def _last_position(self, max_length: Any) -> Any:
        """Returns the last position to generate, by the argument `max_length` of `sample`.

        Raises:
          ShapeError, PlanError: `max_length` is no count of positions.
        """
        length = self.prompt.shape[self.length]
        if max_length is None:
            return length - 1
        if isinstance(max_length, Tensor):
            is_count = max_length.dtype == "int32"
            if not is_count or max_length.shape not in (Shape(""), self.batch):
                raise error(
                    ShapeError,
                    "max_length is an integer, a scalar of int32, or int32 "
                    f"[{' '.join(self.batch.names)}].",
                    max_length=max_length,
                )
            return minimum(max_length, length) - 1
        check_ints(max_length=max_length)
        check_setting(
            1 <= max_length <= length,
            requirement=f"max_length is 1 to {length}, the positions of the prompt",
            value=max_length,
        )
        return max_length - 1

    def _is_beyond(self) -> Tensor | None:
        """Returns whether a position comes after the last one of its sequence, bool [*batch,
        length]; None: all sequences have the same last position.
        """
        last = self.last_position
        if not isinstance(last, Tensor) or not last.shape.names:
            return None
        positions = index_range(last.mesh, self.prompt.shape.dim(self.length))
        return transpose(outer(positions, last, greater), self.prompt.shape)

    def read(self, x: Tensor, position: Tensor) -> Tensor:
        """Returns the entries of x [*dims, length] at a position: [*dims], which are the
        dimensions of the batch and, in a beam search, of the beams.
        """
        return gather(x, position, self.length)

    def write(self, x: Tensor, position: Tensor, entries: Tensor) -> Tensor:
        """Returns x [*dims, length] with `entries` [*dims] at a position."""
        return dynamic_update(x, self.length, position, entries)

    def is_eos(self, ids: Tensor) -> Tensor:
        """Returns whether each id ends a sequence: bool, of the shape of `ids`."""
        if not self.eos_ids:
            return full(ids.mesh, ids.shape, value=False, dtype="bool")
        matches = [equal(ids, eos_id) for eos_id in self.eos_ids]
        return functools.reduce(logical_or, matches)

    def next_logits(
        self, position: Tensor, ids: Tensor, state: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Calls the step function.

        Args:
          position: the position of `ids`, int32 [].
          ids: the ids at the position, int32 [*dims].
          state: the tensors of the state, as a flat list.

        Returns:
          The logits of the ids at the next position, float32 [*dims, vocab], and the
          tensors of the next state.

        Raises:
          PlanError, ShapeError, DTypeError: the step returns other values than logits and
            a state, or `eos_id` or `vocab_size` are out of the range of the vocabulary.
        """
        outputs = self.step(position, ids, _pack_state(self.state_structure, state))
        if not isinstance(outputs, tuple) or len(outputs) != 2:
            raise error(
                PlanError,
                "a step returns two values: logits, and the next state.",
                way_out="Return (logits, None) if it has no state.",
            )
        logits, next_state = outputs
        self._check_logits(logits, ids)
        _check_structure(self.state_structure, next_state)
        logits = cast(transpose(logits, (*ids.shape.names, self.vocab)), "float32")
        if self.vocab_size is not None:
            vocab_ids = index_range(logits.mesh, logits.shape.dim(self.vocab))
            is_allowed = less(vocab_ids, self.vocab_size)
            logits = where(is_allowed, logits, -float("inf"))
        next_tensors = [
            _transpose_like(x, initial)
            for x, initial in zip(_state_tensors(next_state), self.state)
        ]
        return logits, next_tensors

    def _check_logits(self, logits: Tensor, ids: Tensor) -> None:
        """Checks the logits that the step returned.

        Raises:
          ShapeError: they do not have the dimensions of `ids` and the vocabulary, or
            `vocab_size` or an `eos_id` is out of range.
          DTypeError: they are not floats.
        """
        names = (*ids.shape.names, self.vocab)
        if not isinstance(logits, Tensor) or set(logits.shape.names) != set(names):
            raise error(
                ShapeError,
                f"a step returns logits [{' '.join(names)}].",
                logits=logits,
                way_out="Name the dimension of the vocabulary with vocab=, and keep "
                "the dimensions of the ids.",
            )
        if not is_floating(logits.dtype):
            raise error(
                DTypeError, f"logits are floats, not {logits.dtype}.", logits=logits
            )
        self._check_ids(logits)

    def _check_ids(self, logits: Tensor) -> None:
        """Checks `vocab_size` and `eos_id` against the vocabulary of the logits.

        Raises:
          ShapeError: one of them is out of range.
        """
        size = logits.shape[self.vocab]
        if self.vocab_size is not None and not 0 < self.vocab_size <= size:
            raise error(
                ShapeError,
                f'vocab_size={self.vocab_size}, but "{self.vocab}" has {size} ids.',
                logits=logits,
                way_out=f"Give vocab_size= from 1 to {size}, or leave it out.",
            )
        num_ids = self.vocab_size or size
        for eos_id in self.eos_ids:
            if not 0 <= eos_id < num_ids:
                raise error(
                    ShapeError,
                    f'eos_id={eos_id} is none of the {num_ids} ids of "{self.vocab}".',
                    logits=logits,
                    way_out=f"Give eos_id= from 0 to {num_ids - 1}, or eos_id=None if no "
                    "id ends a sequence.",
                )


def _check_prompt(prompt: Tensor, vocab: str, length: str) -> None:
    """Checks the prompt.

    Raises:
      PlanError: it is not a tensor.
      DTypeError: its ids are not integers.
      ShapeError: it lacks dimension `length`, has no position, or has dimension `vocab`.
    """
    if not isinstance(prompt, Tensor):
        raise error(
            PlanError,
            f"a prompt is a tensor, not {type(prompt).__name__}.",
            way_out='Convert it: mtf.asarray(mesh, array, "batch;length").',
        )
    if not is_integer(prompt.dtype):
        raise error(
            DTypeError,
            f"a prompt has integer ids, not {prompt.dtype}.",
            prompt=prompt,
        )
    if length not in prompt.shape:
        similar_name = near_misses(length, prompt.shape.names)
        raise error(
            ShapeError,
            f'the prompt has no dimension "{length}".',
            prompt=prompt,
            way_out=f'Name it: length="{similar_name or "length"}".',
        )
    if prompt.shape[length] < 1:
        raise error(
            ShapeError,
            f'a prompt has at least one position, but "{length}" has size 0.',
            prompt=prompt,
            way_out=f'Make "{length}" as long as the result, with -1 where ids are to '
            "be generated.",
        )
    check_name_is_free(prompt.shape, vocab, "the dimension of logits")


def _eos_ids(eos_id: Any) -> tuple[int, ...]:
    """Returns the ids that end a sequence.

    Raises:
      ArgumentError: `eos_id` is not an integer, a list of integers or None.
    """
    if eos_id is None:
        return ()
    if isinstance(eos_id, (list, tuple)):
        return tuple(as_int("eos_id", x) for x in eos_id)
    return (as_int("eos_id", eos_id),)


def _check_structure(old: Any, new: Any) -> None:
    """Checks the nesting of the state that a step returned.

    Args:
      old: the previous state.
      new: the next state.

    Raises:
      PlanError: they are nested differently, or have None at different places.
    """
    try:
        nested.assert_same_structure(old, new)
        old_is_none = [x is None for x in nested.flatten(old)]
        new_is_none = [x is None for x in nested.flatten(new)]
        is_same = old_is_none == new_is_none
    except (TypeError, ValueError):  # from assert_same_structure
        is_same = False
    if not is_same:
        raise error(
            PlanError,
            "a step returns a state with the same nested structure as its argument.",
            input=_outline(old),
            output=_outline(new),
        )


def _state_tensors(state: Any) -> list[Tensor]:
    """Returns the tensors of a nested state as a flat list, without None. Variables are
    replaced by their current values.

    Raises:
      PlanError: the state has other values than tensors, variables and None.
    """
    tensors = []
    for leaf in nested.flatten(state):
        if leaf is None:
            continue
        x = leaf.tensor() if hasattr(leaf, "tensor") else leaf
        if not isinstance(x, Tensor):
            raise error(
                PlanError,
                f"a state has tensors, not values of type {type(x).__name__}.",
                way_out='Convert it: mtf.full(mesh, "", value, dtype).',
            )
        tensors.append(x)
    return tensors


def _pack_state(structure: Any, tensors: Sequence[Tensor]) -> Any:
    """Returns the tensors nested like `structure`, with None where `structure` has None."""
    remaining_tensors = iter(tensors)
    leaves = []
    for old_leaf in nested.flatten(structure):
        leaves.append(None if old_leaf is None else next(remaining_tensors))
    return nested.pack_sequence_as(structure, leaves)


def _transpose_like(new: Tensor, old: Tensor) -> Tensor:
    """Returns `new` with its dimensions in the order of `old`."""
    if set(new.shape) != set(old.shape):
        return new  # the loop raises an error that shows both shapes
    return transpose(new, old.shape)


def _outline(state: Any) -> str:
    """Returns the nested structure of a state, with "*" for each tensor."""
    return repr(nested.map_structure(lambda x: x if x is None else "*", state))
