"""Nested structures of tensors in loops and branches: tuples, lists, dicts, None.

    carry = {"h": h, "cache": None}
    tensors_of(carry, label="carry")     # [h]
    pack(carry, [new_h])                 # {"h": new_h, "cache": None}

The carry of a loop is the structure of tensors that an iteration passes to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from meshtf.errors import DTypeError, PlanError, ShapeError, explain_error
from meshtf.graph import Body, Source, Spec, Tensor, record_body
from meshtf.graph.control_flow.body import BodyGraph
from meshtf.names import Shape, nested
from meshtf.ops.shapes.reshape import transpose

# The spec of the iteration index, which is the first argument of recorded bodies.
ITERATION = Spec(Shape(), "int32")


def tensors_of(nest: Any, label: str) -> list[Tensor]:
    """Returns the tensors [...] of a nested structure, in order; variables are read.

    Args:
      nest: tensors, variables and None in any nesting.
      label: the name of the structure in errors, such as "carry".

    Raises:
      PlanError: a leaf is no tensor, variable or None.
    """
    tensors = []
    for x in leaves(nest):
        if hasattr(x, "tensor"):
            x = x.tensor()
        if not isinstance(x, Tensor):
            raise PlanError(
                explain_error(
                    f"the {label} of a loop or branch is made of tensors, not of "
                    f"{type(x).__name__}.",
                    source=Source.of_caller(),
                    way_out='Make it one: mtf.full(mesh, "", value, dtype).',
                )
            )
        tensors.append(x)
    return tensors


def record_result(
    fn: Callable[[], Any], graph_type: type[BodyGraph] = BodyGraph
) -> tuple[Body, Any]:
    """Returns the recorded body of a function without arguments, and its result: tensors
    [...] in any nesting.

    Args:
      fn: the function.
      graph_type: the type of the graph that records it.
    """
    result: Any = None

    def record() -> Sequence[Tensor]:
        nonlocal result
        result = fn()
        return tensors_of(result, label="result")

    body = record_body(record, [], graph_type)  # calls `record`, which sets `result`
    return body, result


def leaves(nest: Any) -> list[Any]:
    """Returns the leaves of a nested structure, except for None."""
    return [x for x in flatten(nest) if x is not None]


def flatten(nest: Any) -> list[Any]:
    """Returns all leaves of a nested structure, also None.

    Raises:
      PlanError: the structure has a dict whose keys have no order.
    """
    try:
        flat: list[Any] = nested.flatten(nest)
    except TypeError as error:
        raise PlanError(
            explain_error(
                f"a nested structure of tensors cannot be flattened: {error}.",
                source=Source.of_caller(),
                way_out="Keys of a dict must be of one kind, such as strings.",
            )
        ) from None
    return flat


def pack_next(nest: Any, flat: Iterator[Any]) -> Any:
    """Returns the structure `nest` with the next tensors of `flat` as its leaves.

    Takes as many tensors from the iterator as the structure has leaves that are not None.
    """
    return pack(nest, [next(flat) for _ in leaves(nest)])


def pack(nest: Any, flat: Sequence[Any]) -> Any:
    """Returns the structure `nest` with the tensors `flat` as its leaves. A leaf that is
    None stays None.
    """
    remaining = iter(flat)
    # `map_structure` visits the leaves in the order of `flatten`.
    return nested.map_structure(lambda x: None if x is None else next(remaining), nest)


def next_carry(old: Any, new: Any, specs: Sequence[Spec]) -> Any:
    """Returns the new carry of a loop, with the dimensions of each tensor in the order of
    the initial carry.

    Args:
      old: the carry before the iteration.
      new: the carry that the body returned.
      specs: the specs of the tensors of the initial carry.

    Raises:
      PlanError, ShapeError, DTypeError: the new carry has another structure, or tensors
        of other names, sizes or data types.
    """
    message = "the body of a loop changes the structure, shapes or types of its carry"
    require_same_structure(old, new, message)
    ordered = []
    for spec, x in zip(specs, tensors_of(new, label="carry")):
        has_same_dims = set(x.shape) == set(spec.shape)
        if has_same_dims:
            x = transpose(x, spec.shape)
        require_same_spec(spec, x.spec, message)
        ordered.append(x)
    return pack(old, ordered)


def require_same_spec(old: Spec, new: Spec, message: str) -> None:
    """Raises ShapeError or DTypeError with `message` unless the specs are equal."""
    if old.shape != new.shape:
        way_out = "Names and sizes must stay the same."
        if set(old.shape) == set(new.shape):
            order = ";".join(old.shape.names)
            way_out = f'Restore the order: mtf.transpose(x, "{order}").'
        raise ShapeError(
            explain_error(
                f"{message}.",
                before=repr(old.shape),
                after=repr(new.shape),
                source=Source.of_caller(),
                way_out=way_out,
            )
        )
    if old.dtype != new.dtype:
        raise DTypeError(
            explain_error(
                f"{message}: {old.dtype} is not {new.dtype}.",
                tensor=repr(old.shape),
                source=Source.of_caller(),
                way_out=f'Convert it: mtf.cast(x, "{old.dtype}").',
            )
        )


def require_same_structure(old: Any, new: Any, message: str) -> None:
    """Raises PlanError with `message` unless the nested structures are the same."""
    if not same_structure(old, new):
        raise PlanError(
            explain_error(
                f"{message}: {describe_structure(old)} is not {describe_structure(new)}.",
                source=Source.of_caller(),
                way_out="Return the same nested structure of tensors.",
            )
        )


def same_structure(old: Any, new: Any) -> bool:
    """Returns whether two nested structures are the same: None at the same leaves, the same
    keys of dicts, the same lengths. A list and a tuple count as the same.
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
    # Leaves, or structures that only TensorFlow knows, such as attrs classes.
    try:
        nested.assert_same_structure(old, new)
    except (TypeError, ValueError):
        return False
    return (old is None) == (new is None)


def describe_structure(nest: Any) -> str:
    """Returns a nested structure as a string, with a star for each tensor."""
    return repr(nested.map_structure(lambda x: None if x is None else "*", nest))
