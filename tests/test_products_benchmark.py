"""`benchmarks.products` times what `ops/products.py` changes, and one product that it does not."""

import pytest

from benchmarks.products import Form, forms, speeds
from meshtf.ops.products import _pays


@pytest.mark.parametrize("form", forms(256), ids=str)
def test_rows_get_wider_in_all_but_the_first(form):
  wider = _pays(form.m, form.k, form.n, form.flip_a, form.flip_b, threads=1)
  assert any(wider) is ("1,040" not in form.what)


def test_both_forms_are_timed():
  assert all(speed > 0 for speed in speeds(Form("small", 16, 16, 16), 1, 1))
