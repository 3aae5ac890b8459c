"""cumsum: directions, cut and whole, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

ROW = [1, 2, 3, 4]


@pytest.mark.parametrize("layout", ["", "d:x"])
@pytest.mark.parametrize("exclusive, reverse, wanted", [
    (False, False, [1, 3, 6, 10]), (True, False, [0, 1, 3, 6]),
    (False, True, [10, 9, 7, 4]), (True, True, [9, 7, 4, 0])])
def test_directions(layout, exclusive, reverse, wanted):
  x = mtf.import_tensor(mtf.Mesh("x:2", layout=layout), np.array(ROW, "float32"), "d")
  y = mtf.cumsum(x, "d", exclusive=exclusive, reverse=reverse)
  np.testing.assert_array_equal(y.numpy(), wanted)
  (dx,) = mtf.gradients([y], [x])
  np.testing.assert_array_equal(dx.numpy(), np.array([4, 3, 2, 1])[::-1 if reverse else 1] -
                                int(exclusive))


def test_what_is_refused():
  x = mtf.import_tensor(mtf.Mesh(""), np.array(ROW), "d")
  with pytest.raises(mtf.ShapeError, match='no dimension "e"'):
    mtf.cumsum(x, "e")
  with pytest.raises(mtf.DTypeError, match="does not take bool"):
    mtf.cumsum(x > 1, "d")
