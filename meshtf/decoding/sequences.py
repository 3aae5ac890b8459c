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

from meshtf.errors import DTypeError, PlanError, ShapeError, explain_error, near_misses
from meshtf.graph import Source, Tensor
from meshtf.names import Shape, is_floating, is_integer, nested
from meshtf.names.arguments import as_callable, as_dim, as_int, check_ints
from meshtf.ops.elementwise.arithmetic import equal, less, logical_or, minimum
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
      last_position: the last position to generate: an integer, or int32 [].
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
        self.last_position = _last_position(prompt.shape[self.length], max_length)
        self.eos_ids = _eos_ids(eos_id)
        self.fill_id = 0
        if self.eos_ids:
            # A negative eos_id is an error, which `_check_ids` raises once the step has
            # returned logits.
            self.fill_id = max(self.eos_ids[0], 0)
        is_generated = less(self.prompt, 0)
        self.initial_ids = where(is_generated, self.fill_id, self.prompt)
        self.state_structure = state
        self.state = _state_tensors(state)

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
            raise _error(
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
            raise _error(
                ShapeError,
                f"a step returns logits [{' '.join(names)}].",
                logits=logits,
                way_out="Name the dimension of the vocabulary with vocab=, and keep "
                "the dimensions of the ids.",
            )
        if not is_floating(logits.dtype):
            raise _error(
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
            raise _error(
                ShapeError,
                f'vocab_size={self.vocab_size}, but "{self.vocab}" has {size} ids.',
                logits=logits,
                way_out=f"Give vocab_size= from 1 to {size}, or leave it out.",
            )
        num_ids = self.vocab_size or size
        for eos_id in self.eos_ids:
            if not 0 <= eos_id < num_ids:
                raise _error(
                    ShapeError,
                    f'eos_id={eos_id} is none of the {num_ids} ids of "{self.vocab}".',
                    logits=logits,
                    way_out=f"Give eos_id= from 0 to {num_ids - 1}, or eos_id=None if no "
                    "id ends a sequence.",
                )


def check_setting(
    is_legal: bool, requirement: str, value: object, way_out: str = ""
) -> None:
    """Checks a setting of sampling or beam search.

    Args:
      is_legal: whether the setting is legal.
      requirement: the requirement in words, such as "top_k is at least 1".
      value: the value of the setting.
      way_out: a correction, for the error.

    Raises:
      PlanError: "<requirement>, not <value>.", if the setting is not legal.
    """
    if not is_legal:
        raise _error(PlanError, f"{requirement}, not {value}.", way_out=way_out)


def check_name_is_free(shape: Shape, name: str, purpose: str) -> None:
    """Checks that a shape has no dimension of a name.

    Args:
      shape: the shape.
      name: the name of a dimension that is to be added.
      purpose: the purpose of the dimension, for the error, such as "the dimension of
        beams".

    Raises:
      ShapeError: the shape already has a dimension of this name.
    """
    if name in shape:
        raise _error(
            ShapeError,
            f'"{name}" cannot be {purpose}: the tensor already has this dimension.',
            tensor=repr(shape),
            way_out="Use another name.",
        )


def _check_prompt(prompt: Tensor, vocab: str, length: str) -> None:
    """Checks the prompt.

    Raises:
      PlanError: it is not a tensor.
      DTypeError: its ids are not integers.
      ShapeError: it lacks dimension `length`, has no position, or has dimension `vocab`.
    """
    if not isinstance(prompt, Tensor):
        raise _error(
            PlanError,
            f"a prompt is a tensor, not {type(prompt).__name__}.",
            way_out='Convert it: mtf.asarray(mesh, array, "batch;length").',
        )
    if not is_integer(prompt.dtype):
        raise _error(
            DTypeError,
            f"a prompt has integer ids, not {prompt.dtype}.",
            prompt=prompt,
        )
    if length not in prompt.shape:
        similar_name = near_misses(length, prompt.shape.names)
        raise _error(
            ShapeError,
            f'the prompt has no dimension "{length}".',
            prompt=prompt,
            way_out=f'Name it: length="{similar_name or "length"}".',
        )
    if prompt.shape[length] < 1:
        raise _error(
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


def _last_position(length: int, max_length: Any) -> Any:
    """Returns the last position to generate: an integer, or int32 [] if `max_length` is a
    tensor.
    """
    if max_length is None:
        return length - 1
    if isinstance(max_length, Tensor):
        if max_length.shape.names or max_length.dtype != "int32":
            raise _error(
                ShapeError,
                "max_length is an integer or a scalar of int32.",
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
        raise _error(
            PlanError,
            "a step returns a state with the same nested structure as its argument.",
            input=_outline(old),
            output=_outline(new),
        )


def _error(
    error_class: type[Exception], headline: str, way_out: str = "", **facts: Any
) -> Exception:
    """Returns an error that shows facts about the call, and the user's line.

    Args:
      error_class: the class of the error.
      headline: the first line of the message.
      way_out: a correction.
      **facts: the lines of the message: a text or a tensor by the title of its line. Of a
        tensor, the data type and shape are shown.
    """
    texts: dict[str, Any] = {}
    for name, fact in facts.items():
        if isinstance(fact, Tensor):
            texts[name] = f"{fact.dtype} {fact.shape!r}"
        else:
            texts[name] = fact
    texts["from"] = Source.of_caller()
    return error_class(explain_error(headline, way_out, **texts))


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
            raise _error(
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
