"""The runner of StableHLO modules: collectives, data types, what stays on devices, what
is refused.

The modules are written by hand, and what they should give is said with NumPy.
"""

from __future__ import annotations

import sys
from collections import Counter

import ml_dtypes
import numpy as np
import pytest

from meshtf.errors import DTypeError, MeshError, PlanError, ShapeError
from meshtf.runtime.spmd import pjrt_client
from meshtf.runtime.spmd.pjrt_client import Runner

needs_jaxlib = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="jaxlib needs Python 3.11"
)
PAIRS = "replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"
ALL = "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>"


def collective(op, attributes, before, after, combine=""):
    """A module of one collective; `before` and `after` are types such as 4x4xf32."""
    scalar = f"tensor<{before.split('x')[-1]}>"
    region = (
        combine
        and f"""({{
    ^bb0(%a: {scalar}, %b: {scalar}):
      %c = stablehlo.{combine} %a, %b : {scalar}
      stablehlo.return %c : {scalar}
    }})"""
    )
    return f"""module @one {{
  func.func public @main(%x: tensor<{before}>) -> tensor<{after}> {{
    %y = "stablehlo.{op}"(%x) <{{{attributes}}}> {region}
        : (tensor<{before}>) -> tensor<{after}>
    return %y : tensor<{after}>
  }}
}}"""


STEP = """module @step {
  func.func public @main(%w: tensor<2xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<2xf32>)
      -> (tensor<2xf32>, tensor<2xf32>) {
    %y = stablehlo.add %w, %x : tensor<2xf32>
    %z = stablehlo.multiply %y, %x : tensor<2xf32>
    return %z, %y : tensor<2xf32>, tensor<2xf32>
  }
}"""


def drawn(rng, *shape):
    """Four replicas' arrays, whose sums are exact."""
    return [rng.integers(-8, 8, shape).astype(np.float32) for _ in range(4)]


def groups(x):
    """The arrays of the two pairs, for each replica."""
    return [x[0:2], x[0:2], x[2:4], x[2:4]]


CASES = {
    "all_reduce of pairs": (
        collective("all_reduce", PAIRS, "4x4xf32", "4x4xf32", "add"),
        ("all-reduce", 1),
        lambda x: [a + b for a, b in groups(x)],
    ),
    "all_reduce of all, maximum": (
        collective("all_reduce", ALL, "4x4xf32", "4x4xf32", "maximum"),
        ("all-reduce", 1),
        lambda x: [np.max(x, 0)] * 4,
    ),
    "reduce_scatter": (
        collective(
            "reduce_scatter",
            "scatter_dimension = 1 : i64, " + PAIRS,
            "4x4xf32",
            "4x2xf32",
            "add",
        ),
        ("reduce-scatter", 1),
        lambda x: [np.split(a + b, 2, 1)[i % 2] for i, (a, b) in enumerate(groups(x))],
    ),
    "all_gather": (
        collective(
            "all_gather", "all_gather_dim = 1 : i64, " + PAIRS, "4x4xf32", "4x8xf32"
        ),
        ("all-gather", 1),
        lambda x: [np.concatenate(pair, 1) for pair in groups(x)],
    ),
    "all_to_all": (
        collective(
            "all_to_all",
            "split_dimension = 0 : i64, concat_dimension = 1 : i64, split_count = 4 : "
            "i64, " + ALL,
            "4x4xf32",
            "1x16xf32",
        ),
        ("all-to-all", 4),
        lambda x: [np.concatenate([a[i : i + 1] for a in x], 1) for i in range(4)],
    ),
    "collective_permute": (
        collective(
            "collective_permute",
            "source_target_pairs = dense<[[0, 1], [1, 2], [3, 0]]> : tensor<3x2xi64>",
            "4x4xf32",
            "4x4xf32",
        ),
        ("collective-permute", 1),
        lambda x: [x[3], x[0], x[1], 0 * x[0]],
    ),
}


@needs_jaxlib
@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_collectives(case, quick, rng):
    module, size, expected = CASES[case]
    x = drawn(rng, 4, 4)
    runner = Runner(module, 4, quick=quick)
    (got,) = runner(x)
    np.testing.assert_array_equal(got, expected(x))
    assert pjrt_client.collectives(runner.hlo) == Counter([size])


@needs_jaxlib
@pytest.mark.parametrize(
    "name, code, combine, reduce",
    [
        ("bfloat16", "bf16", "add", np.add),
        ("bool", "i1", "or", np.logical_or),
        ("bool", "i1", "and", np.logical_and),
        ("int8", "i8", "add", np.add),
        ("int32", "i32", "minimum", np.minimum),
        ("uint8", "ui8", "maximum", np.maximum),
        ("int64", "i64", "add", np.add),
        ("float64", "f64", "add", np.add),
        ("float16", "f16", "add", np.add),
    ],
)
def test_data_types(name, code, combine, reduce, rng):
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    x = [
        (rng.integers(0, 9, (2, 3)) % (2 if name == "bool" else 9)).astype(dtype)
        for _ in range(4)
    ]
    (got,) = Runner(
        collective("all_reduce", PAIRS, f"2x3x{code}", f"2x3x{code}", combine), 4
    )(x)
    assert all(y.dtype == dtype for y in got)
    np.testing.assert_array_equal(got, [reduce(a, b) for a, b in groups(x)])


@needs_jaxlib
def test_scalars_and_views():
    (got,) = Runner(collective("all_reduce", ALL, "i64", "i64", "add"), 4)(np.arange(4))
    assert [int(y) for y in got] == [6] * 4 and got[0].shape == ()
    transposed = [np.arange(6, dtype=np.float32).reshape(2, 3).T + i for i in range(4)]
    (got,) = Runner(
        collective("all_reduce", PAIRS, "3x2xf32", "3x2xf32", "minimum"), 4
    )(transposed)
    np.testing.assert_array_equal(
        got, [transposed[0], transposed[0], transposed[2], transposed[2]]
    )


@needs_jaxlib
def test_what_was_put_is_the_callers_to_write():
    runner = Runner(STEP, 4)
    own_arrays = [np.full(2, i, np.float32) for i in range(4)]
    x = runner.put(own_arrays)
    for a in own_arrays:
        a += 100
    assert [a[0] for a in runner.get(x)] == [0, 1, 2, 3]


@needs_jaxlib
def test_variables_stay_on_devices_from_step_to_step():
    runner = Runner(STEP, 4)
    assert runner.donates == {0}
    w = runner.put([np.full(2, i, np.float32) for i in range(4)])
    x = runner.put([np.full(2, 2, np.float32)] * 4)
    first = runner.get(w)
    for _ in range(50):
        z, w = runner.run([w, x])
    np.testing.assert_array_equal(runner.get(w), [[100 + i] * 2 for i in range(4)])
    np.testing.assert_array_equal(runner.get(z), [[200 + 2 * i] * 2 for i in range(4)])
    np.testing.assert_array_equal(first, [[i] * 2 for i in range(4)])


@needs_jaxlib
def test_one_array_for_all_replicas_is_on_every_device():
    runner = Runner(STEP, 4)
    one = np.ones(2, np.float32)
    w = runner.put([one] * 4)
    x = runner.put([one] * 4)
    _, w = runner.run([w, x])
    np.testing.assert_array_equal(runner.get(w), np.full([4, 2], 2))
    np.testing.assert_array_equal(runner.get(x), np.ones([4, 2]))


@needs_jaxlib
def test_what_is_used_up_is_refused():
    runner = Runner(STEP, 4)
    w, x = (runner.put(np.ones([4, 2], np.float32)) for _ in range(2))
    with pytest.raises(PlanError, match="input 0 is passed twice"):
        runner.run([w, w])
    _, new = runner.run([w, x])
    assert w.donated and not x.donated and not new.donated and "donated" in repr(w)
    with pytest.raises(PlanError, match="input 0 was donated"):
        runner.run([w, x])
    with pytest.raises(PlanError, match="this buffer was donated"):
        runner.get(w)


@needs_jaxlib
def test_inputs_that_do_not_fit_are_refused():
    runner = Runner(STEP, 4)
    ones = np.ones([4, 2], np.float32)
    w = runner.put(ones)
    with pytest.raises(ShapeError, match="takes 2 inputs, but got 1"):
        runner.run([w])
    with pytest.raises(
        ShapeError, match=r"input 1 has another shape.\n *expected +float32\[2\]"
    ):
        runner.run([w, runner.put(np.ones([4, 3], np.float32))])
    with pytest.raises(DTypeError, match="input 1 has another data type"):
        runner.run([w, runner.put(np.ones([4, 2], np.int32))])
    with pytest.raises(MeshError, match="input 1 is on other devices"):
        runner.run([w, Runner(STEP, 2).put(ones[:2])])
    assert not w.donated


@needs_jaxlib
def test_slices_that_do_not_fit_are_refused():
    runner = Runner(STEP, 4)
    x = np.ones(2, np.float32)
    with pytest.raises(MeshError, match="one shard"):
        runner.put([x, x])
    with pytest.raises(ShapeError, match=r"replica 2 +float32\[1\]"):
        runner.put([x, x, x[:1], x])
    with pytest.raises(DTypeError, match=r"replica 3 +int32\[2\]"):
        runner.put([x, x, x, x.astype(np.int32)])


@needs_jaxlib
@pytest.mark.parametrize(
    "module",
    [
        "module",
        b"ML",
        "",
        STEP.replace("stablehlo.add", "stablehlo.mad"),
        collective(
            "all_reduce", PAIRS.replace("[2, 3]", "[2, 7]"), "2xf32", "2xf32", "add"
        ),
    ],
)
def test_modules_that_do_not_compile_are_refused(module):
    with pytest.raises(PlanError, match="XLA cannot compile"):
        Runner(module, 4)


def test_no_replicas_are_refused():
    with pytest.raises(MeshError, match="not 0"):
        Runner(STEP, 0)


def test_without_jaxlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxlib", None)
    with pytest.raises(
        ImportError, match=r"(?s)jaxlib.*pip install -e '.\[test\]'.*pjrt"
    ):
        Runner(STEP, 1)


@needs_jaxlib
def test_all_reduces_that_xla_merges_are_counted_by_operands():
    names = ("a", "b")
    one = collective("all_reduce", ALL, "2xf32", "2xf32", "add")
    inner = one[one.index('"stablehlo') : one.index("    return %y")].rstrip()
    body = "\n".join(f"    %{n}2 = {inner.replace('(%x)', f'(%{n}1)')}" for n in names)
    text = f"""module @two {{
  func.func public @main(%a1: tensor<2xf32>, %b1: tensor<2xf32>)
      -> (tensor<2xf32>, tensor<2xf32>) {{
{body}
    return %a2, %b2 : tensor<2xf32>, tensor<2xf32>
  }}
}}"""
    runner = Runner(text, 4)
    assert pjrt_client.collectives(runner.hlo) == Counter({("all-reduce", 2): 1})
    got = runner(
        np.ones([4, 2], np.float32), np.arange(8, dtype=np.float32).reshape(4, 2)
    )
    np.testing.assert_array_equal(got[0], np.full([4, 2], 4))
    np.testing.assert_array_equal(got[1], [[12, 16]] * 4)
