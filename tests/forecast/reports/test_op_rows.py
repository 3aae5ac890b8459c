"""Rows of ops: seconds of each op and collective."""

from __future__ import annotations

import re

import numpy as np
import pytest

import meshtf as mtf
from meshtf.forecast.reports.html_report import page


@pytest.fixture(scope="module")
def forecast():
    """A forecast with times."""
    mesh = mtf.Mesh("data:2; model:4", "b:data; f:model", devices="abstract")
    w = mtf.Variable(mesh, "d:512; f:1024", "zeros", "w")

    @mtf.function(mesh=mesh, x="b; d")
    def product(x):
        return mtf.reduce_sum(mtf.einsum([x, w], "b; f"))

    x = np.ones((64, 512), "float32")
    return mtf.explain(product, x, hardware="h100")


def test_each_op_has_its_seconds(forecast):
    (einsum,) = (op for op in forecast.ops if op.title == "einsum")
    microseconds = f"{einsum.seconds * 1e6:.2f} us"
    (line,) = re.findall(r"\n +einsum .*", str(forecast))
    assert line.endswith(f" MFLOP{microseconds:>10}")
    assert "predicted time of one run" in str(forecast)
    assert f"<i>{microseconds}</i>" in page(forecast)


def test_collectives_have_their_seconds(forecast):
    (result,) = forecast.results
    assert result.seconds > 0
    (line,) = re.findall(r"<- all_reduce data\+model .*", str(forecast))
    microseconds = f"{result.seconds * 1e6:.1f} us"
    assert line.endswith(f" B{microseconds:>10}")
    assert f"<i>{microseconds}</i>" in page(forecast)
