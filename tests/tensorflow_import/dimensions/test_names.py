"""Names of dimensions are the same in each process."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tensorflow as tf

from meshtf.tensorflow_import.dimensions.atoms import Atom
from tests.tensorflow_import.imported import imported

AXES = ([1], [1], [2], [2], [3, 4], [5, 6, 1], [2, 3, 5])


def names(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Returns names of results, if sets of dimensions have a drawn order."""
    draw = random.Random(seed)
    hashes: dict[int, int] = {}
    monkeypatch.setattr(
        Atom,
        "__hash__",
        lambda atom: hashes.setdefault(id(atom), draw.getrandbits(40)),
    )
    result = imported(
        lambda x: [tf.reduce_sum(x, axes) for axes in AXES],
        [np.zeros([2] * 8, "float32")],
    )
    return [result.named.names_of(value) for value in result.program.outputs]


def test_names_do_not_depend_on_the_order_of_sets(monkeypatch) -> None:
    expected = names(0, monkeypatch)
    for seed in range(1, 12):
        assert names(seed, monkeypatch) == expected
