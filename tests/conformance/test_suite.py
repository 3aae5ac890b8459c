"""The suite itself: it passes an op as users write them, and finds lies in it and in
the core.
"""

from __future__ import annotations

import sys

import pytest
import tensorflow as tf

from meshtf.graph import Sample, Window, WindowedOp
from meshtf.mesh import Partial
from meshtf.ops.indexing.one_hot_and_range import OneHot
from meshtf.ops.nn.softmax import Softmax
from meshtf.partition import planner
from meshtf.runtime.placed import resharding
from meshtf.testing import Report, check_export, check_op, check_program

INF = float("inf")


class NeighbourMin(WindowedOp):
    """The least of each element and its two neighbours in the last dimension: an op of
    a user.
    """

    dim: str
    conformance_samples = (
        Sample(("d",), ("positive b:2;d:8",), gradient=False),
        Sample(("d",), ("positive b:3;d:6",), gradient=False),
    )

    def output_specs(self, x):
        return (x,)

    def window(self, input_index, dim):
        return (
            Window(lambda a: a - 1, lambda b: b + 1, fill=INF)
            if dim == self.dim
            else None
        )

    def local(self, context, x):
        if (
            context.num_shards(self.dim) == 1
        ):  # as a fused kernel would, which pads by itself
            x = tf.pad(x, [[0, 0], [1, 1]], constant_values=float("inf"))
        else:
            x = context.window(0, self.dim, x)
        return (tf.minimum(tf.minimum(x[:, :-2], x[:, 1:-1]), x[:, 2:]),)


class NoFill(NeighbourMin):
    """Takes zeros from outside."""

    def window(self, input_index, dim):
        window = super().window(input_index, dim)
        return window and window._replace(fill=0.0)


class NoWindow(NeighbourMin):
    """Knows no neighbours."""

    def window(self, input_index, dim):
        return None


class ShortWindow(NeighbourMin):
    """Misses the last neighbour."""

    def window(self, input_index, dim):
        return (
            Window(lambda a: a - 1, lambda b: b, fill=INF) if dim == self.dim else None
        )


class LateWindow(NeighbourMin):
    """Reads its rows one too late."""

    def window(self, input_index, dim):
        return (
            Window(lambda a: a, lambda b: b + 2, fill=INF) if dim == self.dim else None
        )


class NoSamples(NeighbourMin):
    """States nothing to try."""

    conformance_samples = ()


@pytest.mark.parametrize("check", [check_op, check_program, check_export])
def test_an_op_without_samples_fails(check, seed):
    report = check(NoSamples, seed)
    assert not report and len(report.failures) == 1
    with pytest.raises(AssertionError, match="NoSamples has no samples"):
        report.require()


def test_a_report_is_true_if_all_passed_and_shows_what_failed():
    assert not Report("module.Op", 0), "nothing was compared"
    assert Report("module.Op", 0, cases=2)
    report = Report(
        "module.Op", 0, cases=9, failures=[f"failure {i}" for i in range(7)]
    )
    assert not report
    shown = [
        "failure 0",
        "failure 1",
        "failure 2",
        "failure 3",
        "failure 4",
        "and 2 more",
    ]
    assert str(report).split("\n")[1:] == shown
    with pytest.raises(AssertionError, match="9 cases(.|\n)*failure 0"):
        report.require()


@pytest.mark.parametrize("check", [check_op, check_program])
@pytest.mark.parametrize("broken", [NoFill, NoWindow, ShortWindow, LateWindow])
def test_a_broken_window_is_detected(broken, check, seed):
    report = check(broken, seed, fail_fast=True)
    assert not report and report.failures[0] in str(report)
    with pytest.raises(AssertionError, match="layout .*d:"):
        report.require()


def test_the_op_of_a_user_passes(seed):
    assert check_op(NeighbourMin, seed).require().refused
    check_program(NeighbourMin, seed).require()


def test_an_illegal_layout_that_is_accepted_is_detected(seed, monkeypatch):
    # The package's `apply` is the function; the module of that name is meant.
    monkeypatch.setattr(
        sys.modules["meshtf.graph.apply"], "check_layout", lambda *args, **kwargs: None
    )
    report = check_op(OneHot, seed, meshes=["x:2;y:2"])
    assert any("was not refused" in text for text in report.failures), report


def test_a_partial_sum_that_is_never_reduced_is_detected(seed, monkeypatch):
    class Lazy:
        def __init__(self, real):
            self.real = real

        def __getattr__(self, name):
            return getattr(self.real, name)

        def all_reduce(self, xs, devices, reduction):
            return xs

    real = resharding.collectives_for
    monkeypatch.setattr(
        resharding,
        "collectives_for",
        lambda *args, **kwargs: Lazy(real(*args, **kwargs)),
    )
    failures = check_op(Softmax, seed, fail_fast=True).failures
    assert failures and "values at" in failures[0]


def test_a_planner_that_keeps_partial_sums_too_long_is_detected(seed, monkeypatch):
    monkeypatch.setattr(
        planner._Planner,
        "_stays_partial",
        lambda self, states: any(isinstance(state, Partial) for state in states),
    )
    assert check_op(Softmax, seed, fail_fast=True).failures
