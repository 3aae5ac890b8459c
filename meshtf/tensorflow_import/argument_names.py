"""Names and sizes of the axes of a TensorFlow function's arguments, as users give them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import ArgumentError, ShapeError, explain_error, near_misses
from meshtf.names.parse import parse_pairs


@dataclasses.dataclass(frozen=True)
class Argument:
    """A tensor among a function's arguments.

    Attributes:
        label: What errors call it: "x", "batch['tokens']".
        spec: Its TensorFlow spec.
        names: The names that the user gave its axes; None: none.
        sizes: Of its axes.
    """

    label: str
    spec: tf.TensorSpec
    names: tuple[str, ...] | None
    sizes: tuple[int, ...]


def arguments_of(
    structure: Mapping[str, Any], inputs: Mapping[str, Any]
) -> list[Argument]:
    """Returns the tensors among a function's arguments, with names and sizes of their axes.

    Args:
        structure: By parameter, a nesting of specs and Python values.
        inputs: By parameter, a nesting of strings such as "batch:8; length", or of None; it
            may lack parameters.

    Raises:
        ArgumentError: `inputs` names an argument that does not exist.
        ShapeError: Names or sizes do not fit an argument, or a size is unknown.
    """
    texts = _with_texts(dict(structure), inputs, "")
    arguments = [_argument(label, spec, text) for label, spec, text in texts]
    by_name = _sizes_by_name(arguments)
    for k, argument in enumerate(arguments):
        names = argument.names or [""] * len(argument.sizes)
        sizes = [by_name.get(name, size) for name, size in zip(names, argument.sizes)]
        arguments[k] = dataclasses.replace(argument, sizes=tuple(sizes))
    incomplete = [argument for argument in arguments if _unknown_axes(argument)]
    if incomplete:
        raise ShapeError(
            explain_error(
                "sizes of arguments are unknown; a program on a mesh has fixed ones.",
                arguments="\n".join(x for a in incomplete for x in _unknown_axes(a)),
                way_out=f"Give them by `inputs`: {_example(incomplete[0])}.",
            )
        )
    return arguments


def _with_texts(
    structure: Any, inputs: Any, label: str
) -> Iterator[tuple[str, tf.TensorSpec, str | None]]:
    """Yields each tensor's label, spec and names, in the order of `nested.flatten`."""

    def require(fits: bool, kind: str, names: str) -> None:
        if inputs is not None and not fits:
            raise ArgumentError(
                f'the argument "{label}" is {kind}: its names are {names}, not {inputs!r}'
            )

    if isinstance(structure, tf.TensorSpec):
        require(isinstance(inputs, str), "one tensor", '"batch; length" or the like')
        yield label, structure, inputs
    elif isinstance(structure, Mapping):
        require(isinstance(inputs, Mapping), "a dict of tensors", "a dict as well")
        _check_keys(list(inputs or ()), list(structure), label)
        for key in sorted(structure):
            below = f"{label}[{key!r}]" if label else str(key)
            yield from _with_texts(structure[key], (inputs or {}).get(key), below)
    elif isinstance(structure, (list, tuple)):
        fits = isinstance(inputs, (list, tuple)) and len(inputs) == len(structure)
        require(
            fits, f"a list of {len(structure)} tensors", "a list of as many strings"
        )
        for k, item in enumerate(structure):
            yield from _with_texts(item, inputs and inputs[k], f"{label}[{k}]")
    else:
        require(False, "no tensor", "None")


def _check_keys(keys: Sequence[str], known: Sequence[str], label: str) -> None:
    for key in keys:
        if key not in known:
            similar = near_misses(key, known)
            raise ArgumentError(
                explain_error(
                    f"`inputs` names {key!r}, but the function has no such argument.",
                    arguments=", ".join(map(str, known)) or "none",
                    way_out=f"Did you mean {similar}?" if similar else "",
                )
            )


def _argument(label: str, spec: tf.TensorSpec, text: str | None) -> Argument:
    """Returns an argument with the names and sizes of its axes, as far as they are known."""
    sizes = None if spec.shape.rank is None else spec.shape.as_list()
    if text is None:
        return Argument(label, spec, None, tuple(sizes or ()))
    pairs = parse_pairs(text, kind="shape", values=False)
    if sizes is not None and len(pairs) != len(sizes):
        raise ShapeError(
            explain_error(
                f'"{label}" has {len(sizes)} axes, and `inputs` names {len(pairs)}.',
                names=text,
                shape=str(sizes),
                way_out="Give one name for each axis, in order.",
            )
        )
    names = tuple(name for name, _ in pairs)
    if len(set(names)) != len(names):
        raise ShapeError(
            f'`inputs` gives two axes of "{label}" one name: {text}; a tensor has each name '
            "once"
        )
    known = sizes or [None] * len(pairs)
    for axis, (name, size) in enumerate(pairs):
        if size and known[axis] not in (None, int(size)):
            raise ShapeError(
                explain_error(
                    f'axis {axis} of "{label}" is {name}:{size} by `inputs`, and the '
                    f"function takes the size {known[axis]}.",
                    shape=str(sizes),
                    way_out=f'Write "{name}" without a size, or trace the function for '
                    "this size.",
                )
            )
        known[axis] = int(size) if size else known[axis]
    return Argument(label, spec, names, tuple(known))


def _sizes_by_name(arguments: Sequence[Argument]) -> dict[str, int]:
    """Returns the sizes of names.

    Raises:
        ShapeError: A name has two.
    """
    sizes: dict[str, int] = {}
    first_axes: dict[str, str] = {}
    for argument in arguments:
        for axis, (name, size) in enumerate(zip(argument.names or (), argument.sizes)):
            if size is None:
                continue
            label = f'axis {axis} of "{argument.label}"'
            if sizes.setdefault(name, size) != size:
                raise ShapeError(
                    explain_error(
                        f'dimension "{name}" has the sizes {sizes[name]} and {size}.',
                        axes=f"{first_axes[name]}, {label}",
                        way_out="Give one of them another name: dimensions are matched by "
                        "name.",
                    )
                )
            first_axes.setdefault(name, label)
    return sizes


def _unknown_axes(argument: Argument) -> list[str]:
    """Returns what is not known of an argument, for an error."""
    label, names = f'"{argument.label}"', argument.names
    if argument.spec.shape.rank is None and names is None:
        return [f"{label}: its number of axes"]
    return [
        f"{label}: axis {axis}" + (f' ("{names[axis]}")' if names else "")
        for axis, size in enumerate(argument.sizes)
        if size is None
    ]


def _example(argument: Argument) -> str:
    """Returns what the user may write for an argument with unknown sizes."""
    names = argument.names or ("batch", *(f"dim_{k}" for k in range(1, 9)))
    axes = [
        f"{name}:{8 if size is None else size}"
        for name, size in zip(names, argument.sizes or (None, None))
    ]
    return f'inputs={{"{argument.label}": "{"; ".join(axes)}"}}'
