"""The suite must fail for every broken rule: each mutant below is an op with one lie in
it.

Mutants are subclasses, not patches, so that no cache of plans or segments can hide
them.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import tensorflow as tf

from meshtf.graph import OpWithStatistics, Role, Spec, apply
from meshtf.names import Dimension, Shape
from meshtf.ops.elementwise.binary_op import Binary
from meshtf.ops.elementwise.scalar_op import Scalar
from meshtf.ops.elementwise.unary_op import Unary
from meshtf.ops.elementwise.where_cast_clip import Where
from meshtf.ops.indexing.dynamic_slice import DynamicUpdate
from meshtf.ops.indexing.gather import Gather, Segment
from meshtf.ops.indexing.one_hot_and_range import OneHot, Range
from meshtf.ops.indexing.top_k import ArgMax, TopK
from meshtf.ops.linear.einsum import Einsum
from meshtf.ops.linear.fourier import Fourier
from meshtf.ops.nn.cross_entropy import CrossEntropy
from meshtf.ops.nn.normalization import Normalize
from meshtf.ops.nn.softmax import Softmax
from meshtf.ops.random.random_ops import Random
from meshtf.ops.reductions.logsumexp import LogSumExp
from meshtf.ops.reductions.moments import Prod, ProdGrad
from meshtf.ops.reductions.reduce import Reduce
from meshtf.ops.scans.cumulative import Scan
from meshtf.ops.scans.linear_recurrence import LinearRecurrence
from meshtf.ops.shapes.reshape import Rename, Reshape
from meshtf.ops.shapes.slice import Concat, Slice
from meshtf.ops.sorting.merge_sort import MergeSplit
from meshtf.ops.sorting.sort_op import Sort
from meshtf.ops.windows.shift import Roll
from meshtf.testing import check_export, check_op, check_program


class Blind:
    """A context that gives every shard the place of the first."""

    def __init__(self, context):
        self._context = context

    def __getattr__(self, name):
        return getattr(self._context, name)

    def shard_offset(self, factor):
        return 0

    shard_index = shard_offset


def mutant(op, only=None, **lies):
    """Returns a subclass of an op with some members replaced, and some of
    its samples.
    """
    if only is not None:
        lies["conformance_samples"] = tuple(
            s for s in op.conformance_samples if only(s)
        )
        assert lies["conformance_samples"]
    return type(op.__name__, (op,), lies)


def blind(op, only=None):
    """Returns an op that ignores where its slice lies."""
    lies = {"local": lambda self, context, *xs: op.local(self, Blind(context), *xs)}
    if issubclass(op, OpWithStatistics):
        lies["local_sharded"] = lambda self, context, *args: op.local_sharded(
            self, Blind(context), *args
        )
    return mutant(op, only, **lies)


def deaf(op):
    """Returns an op whose shards all exchange what the first one did."""

    def local_sharded(self, context, gathered, residuals, *xs):
        first = tuple(tf.stack([t[0]] * len(t)) for t in gathered)
        return op.local_sharded(self, context, first, residuals, *xs)

    return mutant(op, local_sharded=local_sharded)


def not_exchanged(op, only=None):
    """Returns an op that exchanges no statistics."""
    return mutant(op, only, statistics_dims=lambda self: ())


def role(op, lie, only=None):
    """Returns an op whose roles are all `lie`."""
    return mutant(op, only, role=lambda self, factor: lie)


def gradient(op, lie, only=None):
    """Returns an op whose gradient is changed by `lie`, a function of the list of
    cotangents.
    """
    return mutant(op, only, gradient=lambda self, *args: lie(op.gradient(self, *args)))


def unfilled(op, only=None):
    """Returns an op that takes any value in padding."""
    return mutant(op, only, padding_value=lambda self, i, factor: None)


def fn(*names, at=0):
    """Returns whether a sample is of one of these functions."""
    return lambda sample: sample.attributes[at] in names


is_sum = fn("sum", at=1)  # of `Scan`


def _windows_end_early(op):
    def window(self, i, dim):
        full_window = op.window(self, i, dim)
        return full_window and full_window._replace(
            high=lambda b: full_window.high(b) - 1
        )

    return window


def _windows_begin_late(op):
    def window(self, i, dim):
        full_window = op.window(self, i, dim)
        return full_window and full_window._replace(
            low=lambda a: full_window.low(a) + 1, high=lambda b: full_window.high(b) + 1
        )

    return window


def _filled_by_another_value(self, i, dim):
    window = Slice.window(self, i, dim)
    return window and window._replace(fill=3.0 if self.value else 0.0)


def _padded(self, context, x):
    if context.num_shards(self.dim) > 1:
        return Slice.local(self, context, x)
    (shape,) = context.inputs
    pads = [[0, 0] for _ in shape]
    pads[shape.index(self.dim)] = [
        -self.begin,
        self.size + self.begin - shape[self.dim],
    ]
    return (tf.pad(x, pads, constant_values=tf.cast(self.value, x.dtype)),)


def _cumsum_in_wrong_order(self, context, gathered, residuals, x):
    y = Scan.local_sharded(self, context, gathered, residuals, x)[0]
    before = tf.cumsum(gathered[0], 0, exclusive=True, reverse=self.reverse)
    after = tf.cumsum(gathered[0], 0, exclusive=True, reverse=not self.reverse)
    return (y + tf.gather(after - before, context.shard_index(self.dim)),)


def _seed_of_slice(self, context, seed, *seeds):
    names = self.shape.names
    return Random.local(
        self, context, seed + sum(context.shard_offset(n) for n in names), *seeds
    )


def _mean_of_slice(self, context, x):
    y = Reduce.local(self, context, x)[0]
    return (y * math.prod(map(context.num_shards, self.dims)),)


def _last_bit_of_slice(self, context, *seeds):
    y = Random.local(self, context, *seeds)[0]
    is_later = tf.reduce_any([context.shard_index(n) > 0 for n in self.shape.names])
    return (tf.where(is_later, y * tf.constant(1 + 2e-7, y.dtype), y),)


def _latest_wins(self, context, gathered, residuals, x):
    """Among equal values of shards, the last one's."""
    backwards = tuple(tf.reverse(t, [0]) for t in gathered)
    values, indices = (tf.concat(tf.unstack(t), -1) for t in backwards)
    values, best = tf.math.top_k(values, self.k.size)
    return values, tf.gather(indices, best, batch_dims=len(best.shape) - 1)


class Other(Binary):
    """Says that its output is float64."""

    def output_specs(self, x, y):
        return (Spec(Binary.output_specs(self, x, y)[0].shape, "float64"),)


MUTANTS = {
    "role: einsum keeps a summed name": role(Einsum, Role.MAP),
    "role: einsum calls all sums maxima": mutant(
        Einsum, role=lambda self, f: Role.MAP if f in (self.names) else Role.MAX
    ),
    "role: gather keeps the rows": role(Gather, Role.MAP),
    "role: segment_sum keeps the places": role(Segment, Role.MAP, fn("sum")),
    "role: segment_sum sums the rows": role(Segment, Role.SUM, fn("sum")),
    "role: max is a sum": mutant(
        Reduce,
        fn("max"),
        role=lambda self, f: Role.SUM if f in (self.dims) else Role.MAP,
    ),
    "role: min is a max": mutant(
        Reduce,
        fn("min"),
        role=lambda self, f: Role.MAX if f in (self.dims) else Role.MAP,
    ),
    "role: reshape cuts minor names": role(Reshape, Role.MAP),
    "role: a binary op is the same everywhere": role(Binary, Role.SAME, fn("add")),
    "role: top_k is cut along its dim": mutant(TopK, role=lambda self, f: Role.MAP),
    "role: sort is cut along its dim": role(Sort, Role.MAP),
    "role: segment_max is a sum": mutant(
        Segment,
        fn("max", "min"),
        role=lambda self, f: Role.MAP if f in (self.output_shape) else Role.SUM,
    ),
    "factor: rename forgets the new name": mutant(Rename, factor=lambda self, dim: dim),
    "factor: reshape forgets to be fresh": mutant(
        Reshape,
        factor=lambda self, dim: self._leading().get(dim, dim),
        role=lambda self, f: Role.MAP,
    ),
    "fill: padded from outside by another value": mutant(
        Slice, fn("pad"), window=_filled_by_another_value, local=_padded
    ),
    "padding: summed by einsum": unfilled(Einsum),
    "padding: summed": unfilled(Reduce, fn("sum")),
    "padding: a maximum": unfilled(Reduce, fn("max")),
    "padding: a minimum": unfilled(Reduce, fn("min")),
    "padding: summed by segment": unfilled(Segment, fn("sum")),
    "padding: in a softmax": unfilled(Softmax),
    "padding: in a log-sum-exp": unfilled(LogSumExp),
    "padding: in a cross entropy": unfilled(CrossEntropy),
    "padding: in a running sum": unfilled(Scan, is_sum),
    "window: slice short by one": mutant(
        Slice, fn("slice"), window=_windows_end_early(Slice)
    ),
    "window: slice late by one": mutant(
        Slice,
        lambda s: s.attributes[0] == "slice" and sum(s.attributes[2:4]) < 8,
        window=_windows_begin_late(Slice),
    ),
    "window: roll does not wrap": mutant(
        Roll, window=lambda self, i, dim: Roll.window(self, i, dim)._replace(wrap=False)
    ),
    "window: shift the other way": mutant(
        Slice,
        fn("shift"),
        window=lambda self, i, dim: Slice.window(
            dataclasses.replace(self, begin=-self.begin), i, dim
        ),
    ),
    "window: concat begins late": mutant(Concat, window=_windows_begin_late(Concat)),
    "share: off in top_k": not_exchanged(TopK),
    "share: off in argmax": not_exchanged(ArgMax),
    "share: off in softmax": not_exchanged(Softmax),
    "share: off in log-sum-exp": not_exchanged(LogSumExp),
    "share: off in normalize": not_exchanged(Normalize),
    "share: off in cross entropy": not_exchanged(CrossEntropy),
    "share: off in cumsum": not_exchanged(Scan, is_sum),
    "share: off in scan": not_exchanged(Scan, lambda s: not is_sum(s)),
    "share: deaf scan": deaf(Scan),
    "share: deaf recurrence": deaf(LinearRecurrence),
    "share: deaf softmax": deaf(Softmax),
    "share: deaf normalize": deaf(Normalize),
    "share: deaf cross entropy": deaf(CrossEntropy),
    "share: deaf top_k": deaf(TopK),
    "share: cumsum adds what comes after": mutant(
        Scan, is_sum, local_sharded=_cumsum_in_wrong_order
    ),
    "share: top_k prefers the last slice at ties": mutant(
        TopK, lambda s: s.inputs[0].startswith("ties"), local_sharded=_latest_wins
    ),
    "tells: softmax announces one number of two": mutant(
        Softmax,
        statistics_specs=lambda self, x: Softmax.statistics_specs(self, x)[:1],
    ),
    "linear: square of a partial sum": mutant(Unary, fn("square"), linearity="joint"),
    "linear: exp of a partial sum": mutant(Unary, fn("exp"), linearity="each"),
    "linear: product of two partial sums": mutant(
        Binary, fn("multiply"), linearity="joint"
    ),
    "linear: sum of a partial and a whole one": mutant(
        Binary, fn("add"), linearity="each"
    ),
    "linear: maximum of partial sums": mutant(Binary, fn("maximum"), linearity="joint"),
    "linear: a number added to a partial sum": mutant(
        Scalar, fn("add"), linearity="joint"
    ),
    "linear: max of a partial sum": mutant(Reduce, fn("max"), linearity="joint"),
    "linear: a shift brings in a number": mutant(
        Slice, lambda s: -1.5 in s.attributes, linearity="joint"
    ),
    "linear: softmax of a partial sum": mutant(Softmax, linearity="joint"),
    "linear: argmax of a partial sum": mutant(ArgMax, linearity="joint"),
    "linear: where keeps numbers": mutant(
        Where, lambda s: -1.5 in s.attributes, linearity="each"
    ),
    "gradient: of the wrong sign": gradient(
        Unary, lambda dxs: [-dx for dx in dxs], fn("tanh")
    ),
    "gradient: too large": gradient(Einsum, lambda dxs: [dxs[0] * 1.01, *dxs[1:]]),
    "gradient: none": gradient(Gather, lambda dxs: [None, None]),
    "gradient: one of two missing": gradient(
        Binary, lambda dxs: [dxs[0], None], fn("multiply")
    ),
    "gradient: the inputs swapped": gradient(
        Binary,
        lambda dxs: dxs[::-1],
        lambda s: s.attributes[0] == "multiply" and len(set(s.inputs)) == 1,
    ),
    "gradient: cumsum not reversed": mutant(
        Scan,
        is_sum,
        gradient=lambda self, dy, y, x: Scan.gradient(
            dataclasses.replace(self, reverse=not self.reverse), dy, y, x
        ),
    ),
    "gradient: mean without its count": mutant(
        Reduce,
        fn("mean"),
        gradient=lambda self, dy, y, x: Reduce("sum", self.dims).gradient(dy, y, x),
    ),
    "gradient: complex numbers not conjugated": mutant(
        Scalar,
        lambda s: s.attributes == ("multiply", 1 - 2j),
        gradient=lambda self, dz, z, x: [dz * self.value],
    ),
    "gradient: rows that stand for two count once": mutant(
        Fourier,
        fn("rfft", at=1),
        gradient=lambda self, dy, y, x: [
            apply(Fourier(self.dim, "irfft", x.shape[self.dim]), dy)
        ],
    ),
    "role: transform of slices": role(Fourier, Role.MAP, fn("fft", at=1)),
    "share: the product of one slice": deaf(Prod),
    "offset: the product of the others": blind(ProdGrad),
    "offset: gather": blind(Gather),
    "offset: segment_sum": blind(Segment, fn("sum")),
    "offset: one_hot": blind(OneHot),
    "offset: range": blind(Range),
    "offset: cumsum": blind(Scan, is_sum),
    "offset: merged blocks": blind(MergeSplit),
    "offset: updated rows": blind(DynamicUpdate),
    "offset: recurrence": blind(LinearRecurrence),
    "offset: segment_max": blind(Segment, fn("max", "min")),
    "offset: random": blind(Random, fn("uniform", "normal")),
    "offset: dropout mask": blind(Random, fn("mask")),
    "random: seed of the slice": mutant(Random, local=_seed_of_slice),
    "random: another last bit": mutant(Random, fn("normal"), local=_last_bit_of_slice),
    "sizes: mean of the slice": mutant(Reduce, fn("mean"), local=_mean_of_slice),
    "spec: another data type": mutant(Other, fn("add")),
    "spec: names in another order": mutant(
        Softmax,
        output_specs=lambda self, x: (Spec(Shape(list(x.shape)[::-1]), x.dtype),),
    ),
    "spec: too many rows": mutant(
        TopK,
        output_specs=lambda self, x: TopK.output_specs(
            TopK(self.dim, Dimension("k", self.k.size + 1)), x
        ),
    ),
}
PROGRAMS = [
    "role: gather keeps the rows",
    "share: off in softmax",
    "offset: one_hot",
    "linear: square of a partial sum",
    "window: concat begins late",
    "offset: random",
]


@pytest.mark.sampled(30)
@pytest.mark.parametrize("broken", MUTANTS.values(), ids=MUTANTS)
def test_a_broken_rule_is_detected(broken, seed):
    assert check_op(broken, seed, fail_fast=True).failures


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_broken_rule_is_found_in_a_program(name, seed):
    report = check_program(MUTANTS[name], seed, fail_fast=True)
    assert report.failures, report


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_broken_rule_is_found_in_a_module(name, seed):
    report = check_export(MUTANTS[name], seed, meshes=["x:2;y:2"], fail_fast=True)
    assert any("values at" in text for text in report.failures), report
