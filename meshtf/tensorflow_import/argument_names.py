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
    texts = list(_with_texts(dict(structure), inputs, ""))
    parsed = [_parse(label, spec, text) for label, spec, text in texts]
    sizes: dict[str, tuple[int, str]] = {}
    for label, _, axes in parsed:
        for axis, (name, size) in enumerate(axes):
            if name and size is not None:
                _note_size(sizes, name, size, f'axis {axis} of "{label}"')
    arguments, unknown = [], []
    for label, spec, axes in parsed:
        full: list[Any] = [
            sizes[name][0] if size is None and name in sizes else size
            for name, size in axes
        ]
        if spec.shape.rank is None and not axes and label not in _texts(texts):
            unknown.append(f'"{label}": its number of axes')
        unknown += [
            f'"{label}": axis {axis}'
            + (f' ("{axes[axis][0]}")' if axes[axis][0] else "")
            for axis, size in enumerate(full)
            if size is None
        ]
        names = tuple(name for name, _ in axes)
        arguments.append(
            Argument(label, spec, names if all(names) else None, tuple(full))
        )
    if unknown:
        raise ShapeError(
            explain_error(
                "sizes of arguments are unknown; a program on a mesh has fixed ones.",
                arguments="\n".join(unknown),
                way_out=f"Give them by `inputs`: {_example(arguments)}.",
            )
        )
    return arguments


def _texts(texts: Sequence[tuple[str, Any, str | None]]) -> set[str]:
    """Returns the labels of arguments that have names."""
    return {label for label, _, text in texts if text is not None}


def _with_texts(
    structure: Any, inputs: Any, label: str
) -> Iterator[tuple[str, tf.TensorSpec, str | None]]:
    """Yields each tensor's label, spec and names, in the order of `nested.flatten`."""
    if isinstance(structure, tf.TensorSpec):
        if inputs is not None and not isinstance(inputs, str):
            raise ArgumentError(
                f'the argument "{label}" is one tensor: its names are a string such as '
                f'"batch; length", not {inputs!r}'
            )
        yield label, structure, inputs
    elif isinstance(structure, Mapping):
        inputs = {} if inputs is None else inputs
        if not isinstance(inputs, Mapping):
            raise ArgumentError(
                f'the argument "{label}" is a dict of tensors: names are a dict as well, '
                f"not {inputs!r}"
            )
        _check_keys(list(inputs), list(structure), label)
        for key in sorted(structure):
            below = f"{label}[{key!r}]" if label else str(key)
            yield from _with_texts(structure[key], inputs.get(key), below)
    elif isinstance(structure, (list, tuple)):
        inputs = [None] * len(structure) if inputs is None else inputs
        if isinstance(inputs, str) or len(inputs) != len(structure):
            raise ArgumentError(
                f'the argument "{label}" is a list of {len(structure)} tensors: names are '
                f"a list of as many strings, not {inputs!r}"
            )
        for k, (item, text) in enumerate(zip(structure, inputs)):
            yield from _with_texts(item, text, f"{label}[{k}]")
    elif inputs is not None:
        raise ArgumentError(
            f'the argument "{label}" is no tensor: it has no dimensions'
        )


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


def _parse(
    label: str, spec: tf.TensorSpec, text: str | None
) -> tuple[str, tf.TensorSpec, list[tuple[str, int | None]]]:
    """Returns names ("" for none) and sizes (None: unknown) of an argument's axes."""
    rank = spec.shape.rank
    sizes = None if rank is None else spec.shape.as_list()
    if text is None:
        return label, spec, [("", size) for size in sizes or ()]
    pairs = parse_pairs(text, kind="shape", values=False)
    if rank is not None and len(pairs) != rank:
        raise ShapeError(
            explain_error(
                f'"{label}" has {rank} axes, and `inputs` names {len(pairs)}.',
                names=text,
                shape=str(sizes),
                way_out="Give one name for each axis, in order.",
            )
        )
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ShapeError(
            f'`inputs` gives two axes of "{label}" one name: {text}; a tensor has each name '
            "once"
        )
    axes: list[tuple[str, int | None]] = []
    for axis, (name, size_text) in enumerate(pairs):
        size = int(size_text) if size_text else None
        known = None if sizes is None else sizes[axis]
        if size is not None and known is not None and size != known:
            raise ShapeError(
                explain_error(
                    f'axis {axis} of "{label}" is {name}:{size} by `inputs`, and the '
                    f"function takes the size {known}.",
                    shape=str(sizes),
                    way_out=f'Write "{name}" without a size, or trace the function for '
                    "this size.",
                )
            )
        axes.append((name, known if size is None else size))
    return label, spec, axes


def _note_size(
    sizes: dict[str, tuple[int, str]], name: str, size: int, axis: str
) -> None:
    before, first = sizes.setdefault(name, (size, axis))
    if before != size:
        raise ShapeError(
            explain_error(
                f'dimension "{name}" has the sizes {before} and {size}.',
                axes=f"{first}, {axis}",
                way_out="Give one of them another name: dimensions are matched by name.",
            )
        )


def _example(arguments: Sequence[Argument]) -> str:
    """Returns what the user may write for the first argument with unknown sizes."""
    for argument in arguments:
        if argument.spec.shape.rank is None or None in argument.sizes:
            break
    names = argument.names or ("batch", *(f"dim_{k}" for k in range(1, 9)))
    axes = [
        f"{name}:{8 if size is None else size}"
        for name, size in zip(names, argument.sizes or (None, None))
    ]
    return f'inputs={{"{argument.label}": "{"; ".join(axes)}"}}'
