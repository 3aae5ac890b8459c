"""Linear recurrences where a mesh axis does not divide the dimension."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf


@pytest.mark.parametrize("layout", ["", "d:x"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_shard_without_elements_gives_no_initial_value(layout, reverse):
    """0 times an infinite product would be NaN."""
    mesh = mtf.Mesh("x:4", layout)
    a = mtf.asarray(mesh, np.full(6, np.inf, "float32"), "d")  # shards of 2, 2, 2 and 0
    b = mtf.asarray(mesh, np.ones(6, "float32"), "d")
    h = mtf.math.linear_recurrence(a, b, "d", reverse=reverse)
    expected = np.array([1] + [np.inf] * 5)
    np.testing.assert_array_equal(h.numpy(), expected[:: -1 if reverse else 1])
