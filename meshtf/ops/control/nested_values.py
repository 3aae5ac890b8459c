"""Nests of tensors that go through the bodies of loops and branches: tuples, lists,
dicts, None.

Example:

    tensors_of({"h": h, "cache": None}, "state")       # [h]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, PlanError, ShapeError, explain_error
from meshtf.graph import Source, Spec, Tensor
from meshtf.names import Shape
from meshtf.ops.shapes.reshape import transpose

ITERATION = Spec(Shape(), "int32")  # the number of an iteration, which bodies are given


def tensors_of(nest: Any, what: str) -> list[Tensor]:
    """Returns the tensors of a nest; variables are read. Raises PlanError
    for others.
    """
    found = []
    for x in leaves(nest):
        x = x.tensor() if hasattr(x, "tensor") else x
        if not isinstance(x, Tensor):
            raise PlanError(
                explain_error(
                    f"the {what} of a loop or branch is made of tensors, not of "
                    f"{type(x).__name__}.",
                    **{"from": Source.of_caller()},
                    way_out='Make it one: mtf.full(mesh, "", value, dtype).',
                )
            )
        found.append(x)
    return found


def leaves(nest: Any) -> list[Any]:
    """Returns what a nest holds, without None."""
    return [x for x in flatten(nest) if x is not None]


def flatten(nest: Any) -> list[Any]:
    """Returns all leaves of a nest. Raises PlanError if it has a dict whose keys have
    no order.
    """
    try:
        found: list[Any] = tf.nest.flatten(nest)
    except TypeError as error:
        raise PlanError(
            explain_error(
                f"a nesting of tensors cannot be taken apart: {error}.",
                **{"from": Source.of_caller()},
                way_out="Keys of a dict must be of one kind, such as strings.",
            )
        ) from None
    return found


def pack_next(nest: Any, flat: Iterator[Any]) -> Any:
    """Returns the nest with as many of the next tensors as it has."""
    return pack(nest, [next(flat) for _ in leaves(nest)])


def pack(nest: Any, flat: Sequence[Any]) -> Any:
    """Returns the nest with these tensors."""
    given = iter(flat)
    return tf.nest.map_structure(lambda x: None if x is None else next(given), nest)


def next_carry(old: Any, new: Any, specs: Sequence[Spec]) -> Any:
    """Returns the carry that a body made, each tensor with its dimensions in the order
    of the first.

    Args:
      old: the carry before, in its nesting.
      new: what the body returned.
      specs: those of the first carry's tensors.

    Raises:
      PlanError, ShapeError, DTypeError: the new carry has another nesting, or tensors
        of other names, sizes or data types.
    """
    what = "the body of a loop changes what its state is"
    require_same_structure(old, new, what)
    ordered = []
    for spec, x in zip(specs, tensors_of(new, "state")):
        if set(x.shape) == set(spec.shape):
            x = transpose(x, spec.shape)
        require_same_spec(spec, x.spec, what)
        ordered.append(x)
    return pack(old, ordered)


def require_same_spec(old: Spec, new: Spec, what: str) -> None:
    """Refuses a tensor of another shape or data type. Raises ShapeError, DTypeError."""
    if old.shape != new.shape:
        raise ShapeError(
            explain_error(
                f"{what}.",
                before=repr(old.shape),
                after=repr(new.shape),
                **{"from": Source.of_caller()},
                way_out="Bring it back: mtf.transpose(x, "
                f'"{";".join(old.shape.names)}").'
                if set(old.shape) == set(new.shape)
                else "Names and sizes must stay.",
            )
        )
    if old.dtype != new.dtype:
        raise DTypeError(
            explain_error(
                f"{what}: {old.dtype} is not {new.dtype}.",
                tensor=repr(old.shape),
                **{"from": Source.of_caller()},
                way_out=f'Convert it: mtf.cast(x, "{old.dtype}").',
            )
        )


def require_same_structure(old: Any, new: Any, what: str) -> None:
    """Refuses another nesting; a list may stand for a tuple. Raises PlanError."""
    if not same_structure(old, new):
        raise PlanError(
            explain_error(
                f"{what}: {describe_structure(old)} is not {describe_structure(new)}.",
                **{"from": Source.of_caller()},
                way_out="Return the same nesting of tensors.",
            )
        )


def same_structure(old: Any, new: Any) -> bool:
    """Returns whether two nestings are the same, keys included; a list may stand for a
    tuple.
    """
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        return (
            isinstance(old, Mapping)
            and isinstance(new, Mapping)
            and old.keys() == new.keys()
            and all(same_structure(old[key], new[key]) for key in old)
        )
    if isinstance(old, (list, tuple)) or isinstance(new, (list, tuple)):
        return (
            isinstance(old, (list, tuple))
            and isinstance(new, (list, tuple))
            and len(old) == len(new)
            and all(map(same_structure, old, new))
        )
    try:
        tf.nest.assert_same_structure(old, new, check_types=False)
    except (TypeError, ValueError):
        return False
    return (old is None) == (new is None)


def describe_structure(nest: Any) -> str:
    """Returns a nesting in words, with a star for each tensor."""
    return repr(tf.nest.map_structure(lambda x: None if x is None else "*", nest))
