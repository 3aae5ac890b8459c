"""Modules on CPU devices: collectives, data types, what stays on devices.

The modules are written by hand, and what they should give is said with NumPy.
"""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest

from meshtf.runtime.spmd.live.jax_host import cpu_mesh
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.module_call import QUICK, ModuleCall
from meshtf.runtime.spmd.live.stacked_layout import StackedLayout
from meshtf.runtime.tf_internals.stablehlo_artifact import serialize
from tests.support.module_runner import collectives, donated_inputs

CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
PAIRS = f"replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, {CHANNEL}"
ALL = f"replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, {CHANNEL}"
WITH_GLOBAL_IDS = ("all_reduce", "all_gather", "reduce_scatter")


class Runner:
    """A module of text on four devices.

    Args:
      text: the module.
      inputs: (sizes, data type) of a replica's inputs.
      outputs: the same of its outputs.
      donated: the inputs that a run may overwrite.
    """

    def __init__(self, text, inputs, outputs, donated=(), quick=False):
        mesh = cpu_mesh(4, "replica")
        layouts = [
            [StackedLayout(sizes, np.dtype(dtype), mesh) for sizes, dtype in kinds]
            for kinds in (inputs, outputs)
        ]
        self.call = ModuleCall(
            name="by_hand",
            module=serialize(text, "1.10.0"),
            inputs=layouts[0],
            outputs=layouts[1],
            mesh=mesh,
            donated=donated,
            options=QUICK if quick else None,
        )

    @property
    def hlo(self):
        return self.call.hlo

    def put(self, shards):
        return load_jax().device_put(np.stack(shards), self.call.inputs[0].sharding)

    def run(self, inputs):
        return self.call(inputs)

    def __call__(self, *inputs):
        return [list(np.array(y)) for y in self.run([self.put(x) for x in inputs])]


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
    if op in WITH_GLOBAL_IDS:
        attributes = f"{attributes}, use_global_device_ids"
    return f"""module @one {{
  func.func public @main(%x: tensor<{before}>) -> tensor<{after}> {{
    %y = "stablehlo.{op}"(%x) <{{{attributes}}}> {region}
        : (tensor<{before}>) -> tensor<{after}>
    return %y : tensor<{after}>
  }}
}}"""


VECTORS = [((2,), "float32")] * 2
STEP = """module @step {
  func.func public @main(%w: tensor<2xf32>, %x: tensor<2xf32>)
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
            "source_target_pairs = dense<[[0, 1], [1, 2], [3, 0]]> : tensor<3x2xi64>, "
            + CHANNEL,
            "4x4xf32",
            "4x4xf32",
        ),
        ("collective-permute", 1),
        lambda x: [x[3], x[0], x[1], 0 * x[0]],
    ),
}


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_collectives(case, quick, rng):
    module, size, expected = CASES[case]
    x = drawn(rng, 4, 4)
    (sizes,) = {y.shape for y in expected(x)}
    one = [((4, 4), "float32")], [(sizes, "float32")]
    runner = Runner(module, *one, quick=quick)
    (got,) = runner(x)
    np.testing.assert_array_equal(got, expected(x))
    assert collectives(runner.hlo) == Counter([size])


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
    kinds = [((2, 3), dtype)]
    module = collective("all_reduce", PAIRS, f"2x3x{code}", f"2x3x{code}", combine)
    (got,) = Runner(module, kinds, kinds)(x)
    assert all(y.dtype == dtype for y in got)
    np.testing.assert_array_equal(got, [reduce(a, b) for a, b in groups(x)])


def test_scalars_and_views():
    scalars = [((), "int64")]
    module = collective("all_reduce", ALL, "i64", "i64", "add")
    (got,) = Runner(module, scalars, scalars)(np.arange(4))
    assert [int(y) for y in got] == [6] * 4 and got[0].shape == ()
    transposed = [np.arange(6, dtype=np.float32).reshape(2, 3).T + i for i in range(4)]
    kinds = [((3, 2), "float32")]
    module = collective("all_reduce", PAIRS, "3x2xf32", "3x2xf32", "minimum")
    (got,) = Runner(module, kinds, kinds)(transposed)
    np.testing.assert_array_equal(
        got, [transposed[0], transposed[0], transposed[2], transposed[2]]
    )


def test_variables_stay_on_devices_from_step_to_step():
    runner = Runner(STEP, VECTORS, VECTORS, donated=[0])
    assert donated_inputs(runner.hlo) == {0}
    w = runner.put([np.full(2, i, np.float32) for i in range(4)])
    x = runner.put([np.full(2, 2, np.float32)] * 4)
    first = w
    for _ in range(50):
        z, w = runner.run([w, x])
    np.testing.assert_array_equal(w, [[100 + i] * 2 for i in range(4)])
    np.testing.assert_array_equal(z, [[200 + 2 * i] * 2 for i in range(4)])
    assert first.is_deleted() and not x.is_deleted()


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
    runner = Runner(text, VECTORS, VECTORS)
    # XLA on CPUs merges them since jax 0.7.
    has_merged = load_jax().__version_info__ >= (0, 7)
    count = {("all-reduce", 2): 1} if has_merged else {("all-reduce", 1): 2}
    assert collectives(runner.hlo) == Counter(count)
    got = runner(
        np.ones([4, 2], np.float32), np.arange(8, dtype=np.float32).reshape(4, 2)
    )
    np.testing.assert_array_equal(got[0], np.full([4, 2], 4))
    np.testing.assert_array_equal(got[1], [[12, 16]] * 4)
