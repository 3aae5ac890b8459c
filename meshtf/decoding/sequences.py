"""What sampling and beam search share: sequences that are partly given, and calls of
the step.

Example:

    prompt [batch length]    7 4 9 -1 -1 -1     given where not negative
    filled                   7 4 9  1  1  1     1 ends: what follows an end is the end again
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from meshtf.errors import DTypeError, PlanError, ShapeError, explain_error, near_misses
from meshtf.graph import Source, Tensor
from meshtf.names import Shape, is_floating, is_integer
from meshtf.names.arguments import as_callable, as_dim, as_int
from meshtf.ops.elementwise.arithmetic import equal, less, logical_or, minimum
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.dynamic_slice import dynamic_update
from meshtf.ops.indexing.gather import gather
from meshtf.ops.indexing.gather import range as numbers
from meshtf.ops.shapes.reshape import transpose
from meshtf.ops.variables.fill import full

Step: TypeAlias = Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]]


class Sequences:
    """A prompt, and the step that goes on with it."""

    def __init__(
        self,
        step: Step,
        prompt: Tensor,
        state: Any,
        end: int | Sequence[int] | None,
        vocab: str,
        length: str,
        vocab_size: int | None,
        until: Any,
    ) -> None:
        as_callable("step", step, "a function of (position, ids, state)")
        vocab, length = as_dim("vocab", vocab), as_dim("length", length)
        if vocab_size is not None:
            as_int("vocab_size", vocab_size)
        _check_prompt(prompt, vocab, length)
        self.step = step
        self.vocab = vocab
        self.length = length
        self.vocab_size = vocab_size
        self.prompt = cast(prompt, "int32")
        self.batch = prompt.shape.without(length)
        self.last = _last(prompt.shape[length], until)
        self.ends = _ends(end)
        self.filler = max(self.ends[0], 0) if self.ends else 0
        self.filled = where(less(self.prompt, 0), self.filler, self.prompt)
        self.nest = state
        self.state = _leaves(state)

    def at(self, x: Tensor, position: Tensor) -> Tensor:
        """Returns x[*rest, length] at a position: [*rest]."""
        return gather(x, position, self.length)

    def are_ends(self, ids: Tensor) -> Tensor:
        """Returns which ids end a sequence, of the same shape, bool."""
        if not self.ends:
            return full(ids.mesh, ids.shape, False, "bool")
        return functools.reduce(logical_or, [equal(ids, end) for end in self.ends])

    def put(self, ids: Tensor, position: Tensor, new: Tensor) -> Tensor:
        """Returns ids[*rest, length] with new[*rest] at a position."""
        return dynamic_update(ids, self.length, position, new)

    def follow(
        self, position: Tensor, ids: Tensor, state: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Returns the logits [*ids, vocab] of what follows ids, in float32, and the
        next state.

        Raises:
          PlanError, ShapeError, DTypeError: the step returns something else, or an end
            that is no id.
        """
        made = self.step(position, ids, _packed(self.nest, state))
        if not isinstance(made, tuple) or len(made) != 2:
            raise _refusal(
                PlanError,
                "a step returns two things: logits, and its next state.",
                way_out="Return (logits, None) if it keeps nothing.",
            )
        logits, nest = made
        self._check_logits(logits, ids)
        _check_nest(self.nest, nest)
        logits = cast(transpose(logits, (*ids.shape.names, self.vocab)), "float32")
        if self.vocab_size is not None:
            rows = numbers(logits.mesh, logits.shape.dim(self.vocab))
            logits = where(less(rows, self.vocab_size), logits, -float("inf"))
        return logits, [
            transpose(x, old.shape) if set(x.shape) == set(old.shape) else x
            for x, old in zip(_leaves(nest), self.state)
        ]

    def _check_logits(self, logits: Tensor, ids: Tensor) -> None:
        names = (*ids.shape.names, self.vocab)
        if not isinstance(logits, Tensor) or set(logits.shape.names) != set(names):
            raise _refusal(
                ShapeError,
                f"a step returns logits [{' '.join(names)}].",
                logits=logits,
                way_out="Name the dimension of ids with vocab=, and keep those of its "
                "ids.",
            )
        if not is_floating(logits.dtype):
            raise _refusal(
                DTypeError, f"logits are floats, not {logits.dtype}.", logits=logits
            )
        size = logits.shape[self.vocab]
        if self.vocab_size is not None and not 0 < self.vocab_size <= size:
            raise _refusal(
                ShapeError,
                f'of the {size} ids of "{self.vocab}", vocab_size={self.vocab_size} '
                "cannot be the used ones.",
                logits=logits,
                way_out=f"Give one of 1 to {size}, or leave it out.",
            )
        size = self.vocab_size or size
        for end in self.ends:
            if not 0 <= end < size:
                raise _refusal(
                    ShapeError,
                    f'the end, id {end}, is none of the {size} ids of "{self.vocab}".',
                    logits=logits,
                    way_out=f"Give one of 0 to {size - 1}, or end=None if nothing "
                    "ends.",
                )


def refuse_number(holds: bool, what: str, value: object, way_out: str = "") -> None:
    """Refuses a setting. Raises PlanError."""
    if not holds:
        raise _refusal(PlanError, f"{what}, not {value}.", way_out=way_out)


def check_free(shape: Shape, name: str, what: str) -> None:
    """Refuses a name that a shape has already. Raises ShapeError."""
    if name in shape:
        raise _refusal(
            ShapeError,
            f'"{name}" is to be {what}, but there it is already.',
            tensor=repr(shape),
            way_out="Give it another name.",
        )


def _check_prompt(prompt: Tensor, vocab: str, length: str) -> None:
    if not isinstance(prompt, Tensor):
        raise _refusal(
            PlanError,
            f"a prompt is a tensor, not {type(prompt).__name__}.",
            way_out='Make it one: mtf.asarray(mesh, array, "batch;length").',
        )
    if not is_integer(prompt.dtype):
        raise _refusal(
            DTypeError,
            f"a prompt is made of integers, not of {prompt.dtype}.",
            prompt=prompt,
        )
    if length not in prompt.shape:
        close = near_misses(length, prompt.shape.names)
        raise _refusal(
            ShapeError,
            f'the prompt has no dimension "{length}".',
            prompt=prompt,
            way_out=f'Name it: length="{close or "length"}".',
        )
    if prompt.shape[length] < 1:
        raise _refusal(
            ShapeError,
            "a prompt gives at least the first id.",
            prompt=prompt,
            way_out=f'Make "{length}" as long as the result, negative where ids are '
            "wanted.",
        )
    check_free(prompt.shape, vocab, "the dimension of logits")


def _ends(end: Any) -> tuple[int, ...]:
    """Returns the ids that end a sequence. Raises ArgumentError."""
    if end is None:
        return ()
    if not isinstance(end, (list, tuple)):
        end = (end,)
    return tuple(as_int("end", token) for token in end)


def _last(positions: int, until: Any) -> Any:
    """Returns the position at which a loop ends: a number, or a tensor if `until` is
    one.
    """
    if until is None:
        return positions - 1
    if isinstance(until, Tensor):
        if until.shape.names or until.dtype != "int32":
            raise _refusal(
                ShapeError, "until is a number or a scalar of int32.", until=until
            )
        return minimum(until, positions) - 1
    as_int("until", until)
    refuse_number(
        1 <= until <= positions,
        f"until is a number of 1 to {positions} positions",
        until,
    )
    return until - 1


def _check_nest(old: Any, new: Any) -> None:
    try:
        tf.nest.assert_same_structure(old, new, check_types=False)
        alike = [x is None for x in _flat(old)] == [x is None for x in _flat(new)]
    except (TypeError, ValueError):
        alike = False
    if not alike:
        raise _refusal(
            PlanError,
            "a step returns a state that is nested as the one it is given.",
            given=_outline(old),
            returned=_outline(new),
        )


def _refusal(
    kind: type[Exception], headline: str, way_out: str = "", **facts: Any
) -> Exception:
    shown = {
        k: f"{x.dtype} {x.shape!r}" if isinstance(x, Tensor) else x
        for k, x in facts.items()
    }
    return kind(
        explain_error(headline, way_out, **shown, **{"from": Source.of_caller()})
    )


def _flat(nest: Any) -> list[Any]:
    return list(tf.nest.flatten(nest))


def _leaves(nest: Any) -> list[Tensor]:
    """Returns the tensors of a nest, which may hold None, too; variables are read."""
    leaves = [
        x.tensor() if hasattr(x, "tensor") else x for x in _flat(nest) if x is not None
    ]
    for x in leaves:
        if not isinstance(x, Tensor):
            raise _refusal(
                PlanError,
                f"a state is made of tensors, not of {type(x).__name__}.",
                way_out='Make it one: mtf.full(mesh, "", value, dtype).',
            )
    return leaves


def _packed(nest: Any, leaves: Sequence[Tensor]) -> Any:
    given = iter(leaves)
    return tf.nest.pack_sequence_as(
        nest, [x if x is None else next(given) for x in _flat(nest)]
    )


def _outline(nest: Any) -> str:
    return repr(tf.nest.map_structure(lambda x: x if x is None else "*", nest))
