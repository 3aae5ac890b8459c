"""Nested structures: the same leaves, in the same order, as TensorFlow's."""

from __future__ import annotations

import collections
import random
import types
from typing import NamedTuple

import pytest
import tensorflow as tf

from meshtf.names import nested


class Pair(NamedTuple):
    """A named tuple of two."""

    second: object
    first: object


def random_structure(draw, depth):
    """Returns a structure of at most some depth, whose leaves are numbers, texts and None."""
    if depth == 0 or draw.random() < 0.3:
        return draw.choice([1, "leaf", b"leaf", None, 2.5])
    items = [random_structure(draw, depth - 1) for _ in range(draw.randint(0, 3))]
    keyed = dict(zip(draw.sample("dcba", len(items)), items))
    return draw.choice(
        [
            items,
            tuple(items),
            keyed,
            collections.OrderedDict(keyed),
            collections.defaultdict(list, keyed),
            Pair(random_structure(draw, depth - 1), items),
        ]
    )


@pytest.mark.parametrize("seed", range(50))
def test_it_agrees_with_tensorflow(seed):
    draw = random.Random(seed)
    structure = random_structure(draw, depth=4)
    leaves = nested.flatten(structure)
    assert leaves == tf.nest.flatten(structure)
    assert nested.is_nested(structure) == tf.nest.is_nested(structure)
    numbers = range(len(leaves))
    packed = nested.pack_sequence_as(structure, numbers)
    expected = tf.nest.pack_sequence_as(structure, list(numbers))
    assert packed == expected and repr(packed) == repr(expected)
    mapped = nested.map_structure(lambda x, y: (x, y), structure, packed)
    assert repr(mapped) == repr(
        tf.nest.map_structure(lambda x, y: (x, y), structure, expected)
    )
    other = random_structure(draw, depth=4)
    for second in (packed, other):
        assert is_same(nested.assert_same_structure, structure, second) == is_same(
            tf.nest.assert_same_structure, structure, second, check_types=False
        )


def is_same(check, *args, **settings):
    """Returns whether a check finds no difference."""
    try:
        check(*args, **settings)
    except (TypeError, ValueError):
        return False
    return True


def test_attributes_of_tensorflows_modules_keep_their_kinds():
    module = tf.Module()
    module.parts = {"b": [1, 2], "a": (3, Pair(4, 5))}
    assert nested.flatten(module.parts) == [3, 4, 5, 1, 2]
    assert nested.map_structure(str, module.parts) == {
        "b": ["1", "2"],
        "a": ("3", Pair("4", "5")),
    }


def test_attrs_classes():
    class Settings:
        # The mark of the package attrs.
        __attrs_attrs__ = tuple(types.SimpleNamespace(name=name) for name in "xy")

        def __init__(self, x, y):
            self.x, self.y = x, y

    structure = [Settings([1, 2], 3), 4]
    assert nested.flatten(structure) == tf.nest.flatten(structure) == [1, 2, 3, 4]
    packed, last = nested.map_structure(str, structure)
    assert (packed.x, packed.y, last) == (["1", "2"], "3", "4")


@pytest.mark.parametrize("leaves", [[1], [1, 2, 3]])
def test_wrong_numbers_of_leaves_are_refused(leaves):
    with pytest.raises(ValueError, match=f"A structure of 2 leaves got {len(leaves)}"):
        nested.pack_sequence_as({"a": 0, "b": 0}, leaves)


def test_keys_that_cannot_be_sorted_are_refused():
    with pytest.raises(TypeError):
        nested.flatten({"a": 0, 1: 0})
