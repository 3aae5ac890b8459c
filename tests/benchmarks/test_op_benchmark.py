"""benchmarks.ops on a tiny op: what is measured, how it is told; wrong results are
seen.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

import meshtf as mtf
from benchmarks.ops import __main__ as ops
from benchmarks.ops.op_cases import CASES, Case

TINY = ("b:8;d:16", "int b:8")


def gather_and_sum(x, i):
    return mtf.cumsum(mtf.gather(x, i, "d"), "b")


@pytest.mark.parametrize("gradient", [False, True])
def test_an_op_is_measured_four_ways(gradient):
    case = Case(
        "tiny",
        "cumsum",
        TINY,
        gather_and_sum,
        lambda x, i: tf.cumsum(tf.gather(x, i, batch_dims=1)),
        "d",
        below=16,
    )
    rows = ops.measure(case, gradient, rounds=3, starts=2)
    assert [row.name for row in rows] == [
        "plain TensorFlow",
        "1",
        "8 along b",
        "8 along d",
    ]
    assert all(row.losses[0] < 1e-5 for row in rows)
    assert {len(row.step["wall"]) for row in rows} == {3}
    assert {len(row.step["first"]) for row in rows} == {2}
    assert ops.line(rows).startswith("tiny: cumsum ") and ops.line(rows).endswith(" d")
    assert len(ops.medians([rows]).split()) == 1 + 6
    assert len(ops.head("forward").splitlines()[1].split()) == 2 * 4


def test_another_result_is_seen():
    case = Case(
        "tiny",
        "sum",
        TINY[:1],
        lambda x: mtf.reduce_sum(x, "d"),
        lambda x: tf.reduce_mean(x, 1),
        "d",
    )
    assert all(row.losses[0] > 1 for row in ops.measure(case, True, 1, 1)[1:])


def test_all_families_have_cases():
    assert {case.family for case in CASES} >= {
        "einsum",
        "elementwise",
        "reductions",
        "softmax",
        "norm",
        "loss",
        "gather",
        "segments",
        "scatter",
        "sort",
        "top_k",
        "cumulative",
        "convolution",
        "pooling",
        "shift",
        "fft",
        "loops",
    }
    assert len({(case.family, case.name) for case in CASES}) == len(CASES)
