"""Nested structures: lists, tuples, dicts and attrs classes, in any nesting, of leaves.

>>> batch = {"tokens": 1, "parts": (2, [3])}
>>> flatten(batch)
[2, 3, 1]
>>> map_structure(str, batch)
{'tokens': '1', 'parts': ('2', ['3'])}

The order of leaves and the kinds of structures are those of `tf.nest`. This module needs no
TensorFlow, so that models can be recorded and planned without it. The package `optree` has
other rules: attributes of `tf.Module` that are lists or dicts, attrs classes and mappings of
other classes are leaves, an `OrderedDict` is in the order of insertion, and a list differs from
a tuple.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np


def exact(value: Any) -> Any:
    """Returns a form of a value for keys of caches. It is equal only for equal numbers of one
    type: 0.0 and -0.0 differ, and so do 1, 1.0 and True; NaN equals NaN.
    """
    if isinstance(value, tuple):
        return tuple(map(exact, value))
    if isinstance(value, (bool, float, complex, np.generic)):
        return type(value), repr(value)
    return value


def is_nested(x: Any) -> bool:
    """Returns whether x is a structure, and not a leaf."""
    if isinstance(x, (str, bytes, bytearray)):
        return False
    return isinstance(x, (Mapping, Sequence)) or _is_attrs(x)


def flatten(structure: Any) -> list[Any]:
    """Returns the leaves of a structure: of a dict, in the order of its sorted keys.

    Raises:
      TypeError: a dict has keys that cannot be sorted.
    """
    leaves: list[Any] = []
    _append_leaves(structure, leaves)
    return leaves


def pack_sequence_as(structure: Any, flat_sequence: Iterable[Any]) -> Any:
    """Returns a structure with other leaves.

    Args:
      structure: the structure.
      flat_sequence: the new leaves, in the order of `flatten`.

    Raises:
      ValueError: there are more or fewer than the structure has.
    """
    leaves = list(flat_sequence)
    expected = len(flatten(structure))
    if len(leaves) != expected:
        raise ValueError(f"A structure of {expected} leaves got {len(leaves)}.")
    return _pack(structure, iter(leaves))


def map_structure(
    function: Callable[..., Any], structure: Any, *more_structures: Any
) -> Any:
    """Returns a structure with function(leaf) in place of each leaf, called in the order of
    `flatten`; with more of the same structure, function(leaf, leaf of the second, ...).

    Raises:
      ValueError: the structures differ.
    """
    for second in more_structures:
        assert_same_structure(structure, second)
    flat = [flatten(x) for x in (structure, *more_structures)]
    return _pack(structure, map(function, *flat))


def assert_same_structure(old: Any, new: Any) -> None:
    """Checks that two structures differ in their leaves alone. A list is equal to a tuple, and
    a dict to any other dict with the same keys.

    Raises:
      ValueError: they differ.
    """
    if is_nested(old) != is_nested(new):
        raise ValueError("A leaf stands beside a structure.")
    if not is_nested(old):
        return
    old_items, new_items = dict(_items(old)), dict(_items(new))
    if old_items.keys() != new_items.keys():
        raise ValueError("The structures have different elements.")
    for key, item in old_items.items():
        assert_same_structure(item, new_items[key])


def _is_attrs(x: Any) -> bool:
    """Returns whether x is an instance of an attrs class."""
    return hasattr(type(x), "__attrs_attrs__")


def _items(structure: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the elements of a structure with their keys, in order."""
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield key, structure[key]
    elif _is_attrs(structure):
        for attribute in structure.__attrs_attrs__:
            yield attribute.name, getattr(structure, attribute.name)
    else:
        yield from enumerate(structure)


def _append_leaves(structure: Any, leaves: list[Any]) -> None:
    """Appends the leaves of a structure."""
    if not is_nested(structure):
        leaves.append(structure)
        return
    for _key, item in _items(structure):
        _append_leaves(item, leaves)


def _pack(structure: Any, leaves: Iterator[Any]) -> Any:
    """Returns a structure with the next ones of `leaves`."""
    if not is_nested(structure):
        return next(leaves)
    items = {key: _pack(item, leaves) for key, item in _items(structure)}
    kind = structure.__class__  # of what a proxy such as those of tf.Modules stands for
    if isinstance(structure, defaultdict):
        packed = kind(structure.default_factory)
        packed.update((key, items[key]) for key in structure)
        return packed
    if isinstance(structure, Mapping):
        # The new dict has its keys in the order of the old one.
        return kind((key, items[key]) for key in structure)
    if isinstance(structure, range):
        return list(items.values())
    if hasattr(structure, "_fields") or _is_attrs(structure):
        return kind(*items.values())
    return kind(list(items.values()))
