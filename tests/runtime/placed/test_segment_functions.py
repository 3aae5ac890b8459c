"""What ops announce is what their shards do: `statistics` is held to
`statistics_specs`, in bytes and types.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.graph import OpWithStatistics, Spec, apply_all
from meshtf.names import Shape, accumulation_dtype
from meshtf.ops.indexing.top_k import TopK
from meshtf.ops.nn.cross_entropy import CrossEntropy
from meshtf.ops.nn.softmax import Softmax
from meshtf.testing import label, registered_ops
from tests.support.refusals import refuses

SHARING = [
    op
    for op in registered_ops()
    if op.conformance_samples and issubclass(op, OpWithStatistics)
]


def inputs(sample, mesh, dtype):
    """Returns ones of a sample's shapes: floats of a type, integers, and statistics in
    theirs.
    """
    dtypes = {"int": "int32", "positive": accumulation_dtype(dtype)}
    texts = [text.rpartition(" ") for text in sample.inputs]
    return [mtf.ones(mesh, shape, dtypes.get(kind, dtype)) for kind, _, shape in texts]


def cuts(op, xs):
    """Returns the dimensions whose slices share, and which two slices can halve."""
    dims = {d for x in xs for d in x.shape}
    along = op.statistics_dims()
    return [d.name for d in dims if d.name in along and d.size % 2 == 0]


def test_every_op_that_shares_says_what_it_statistics_specs():
    assert len(SHARING) >= 11
    members = "statistics", "statistics_specs", "local_sharded", "statistics_dims"
    assert not [
        (label(op), name)
        for op in SHARING
        for name in members
        if getattr(op, name) is getattr(OpWithStatistics, name)
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("op_class", SHARING, ids=label)
def test_share_tells_what_tells_announces(op_class, dtype):
    ran = 0
    for sample in op_class.conformance_samples:
        op = op_class(*sample.attributes)
        for dim in cuts(op, inputs(sample, mtf.Mesh("x:2"), dtype)):
            mesh = mtf.Mesh("x:2", f"{dim}:x")
            apply_all(op, *inputs(sample, mesh, dtype), mesh=mesh)
            ran += 1
    assert ran


class Fewer(Softmax):
    """Announces one value a row, where two are returned."""

    def statistics_specs(self, *xs):
        return Softmax.statistics_specs(self, *xs)[:1]


class Narrow(Softmax):
    """Announces half floats, where float32 is returned."""

    def statistics_specs(self, *xs):
        return tuple(
            Spec(s.shape, xs[0].dtype) for s in Softmax.statistics_specs(self, *xs)
        )


class Large(Softmax):
    """Announces a whole slice."""

    def statistics_specs(self, *xs):
        return tuple(
            Spec(xs[0].shape, s.dtype) for s in Softmax.statistics_specs(self, *xs)
        )


class Silent(Softmax):
    """Announces nothing."""

    def statistics_specs(self, *xs):
        return ()


class WholeK(TopK):
    """Announces k rows, also where a slice has fewer."""

    def statistics_specs(self, x):
        return self.output_specs(
            x._replace(shape=x.shape.resize(self.dim, 2 * x.shape[self.dim]))
        )


@pytest.mark.parametrize(
    "op, announced",
    [
        (Fewer("d"), r"announces float32 \[b:2\]\."),
        (Large("d"), r"announces float32 \[b:2 d:4\],"),
        (Narrow("d"), r"announces bfloat16 \[b:2\], bfloat16 \[b:2\]\."),
        (Silent("d"), r"announces nothing\."),
        (WholeK("d", Shape("k:6").dim("k")), r"announces bfloat16 \[b:2 k:6\], int32"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "mtf.function"])
def test_a_wrong_tells_is_refused(op, announced, recorded):
    mesh = mtf.Mesh("x:2;y:2", "d:x;b:y")

    def run(x):
        return apply_all(op, x)[0]

    with refuses(
        mtf.PlanError,
        rf"{op.display_name}\.statistics exchanges ",
        r"\(2, ",
        announced,
        r"test_segment_functions\.py:\d+",
        r"\[b:2 d:4\]",
        "Correct the op: `statistics` and `statistics_specs`",
    ):
        x = mtf.ones(mesh, "b:4;d:8", "bfloat16")
        (mtf.function(run, mesh=mesh) if recorded else run)(x)


def test_without_shards_nothing_is_checked():
    mesh = mtf.Mesh("x:2", "b:x")
    y = apply_all(Fewer("d"), mtf.ones(mesh, "b:4;d:8"))[0]
    np.testing.assert_allclose(y.numpy(), 1 / 8)


def test_what_a_forecast_reads_of_statistics_specs():
    logits = Spec(Shape("b:4;v:8"), "bfloat16")
    labels = Spec(Shape("b:4"), "int32")
    assert (
        CrossEntropy("v").statistics_specs(logits, labels)
        == (Spec(Shape("b:4"), "float32"),) * 2
    )
    assert TopK("v", Shape("k:16").dim("k")).statistics_specs(logits) == (
        Spec(Shape("b:4;k:8"), "bfloat16"),
        Spec(Shape("b:4;k:8"), "int32"),
    )


def test_a_program_that_nobody_needs_is_freed():
    def graphs():
        gc.collect()
        return sum(isinstance(x, tf.Graph) for x in gc.get_objects())

    mesh = mtf.Mesh("x:2", "b:x")
    x = mtf.ones(mesh, "b:4;c:3;d:2")

    def run():
        return mtf.function(
            lambda x: mtf.einsum([x, x], "b;d") + mtf.einsum([x], "d;b")
        )(x).numpy()

    run()
    before = graphs()
    for _ in range(3):
        run()
    assert graphs() == before
