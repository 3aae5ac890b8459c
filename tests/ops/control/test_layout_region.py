"""Regions and single tensors that are laid out otherwise: numbers, placements, moves,
refusals.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.layers import initializers
from meshtf.mesh import Layout, Placement
from tests.support.refusals import ones

HERE = r"test_layout_region\.py:\d+"
SHAPES = {"w1": "d:8;h:16", "w2": "h:16;d:8", "w3": "d:8;k:4"}


class Net:
    """Three products: two in region `front`, one in `back`; `between` is what is done
    between.
    """

    def __init__(
        self,
        axes,
        layout="",
        front="",
        back="",
        between=None,
        recompute=False,
        **settings,
    ):
        self.mesh = mtf.Mesh(axes, layout, **settings)
        self.front, self.back = front, back
        self.between = between or (lambda h: h)
        self.wrap = mtf.recompute if recompute else (lambda fn: fn)
        with mtf.layout(front):
            self.variables = [self.variable("w1"), self.variable("w2")]
        with mtf.layout(back):
            self.variables.append(self.variable("w3"))

        @mtf.function(mesh=self.mesh, x="batch;d")
        def step(x):
            y = self(x)
            loss = mtf.reduce_mean(mtf.square(y))
            return loss, mtf.gradients([loss], [x, *self.variables])

        self.step = step

    def variable(self, name):
        """Returns a variable, made in the region in force."""
        return mtf.Variable(self.mesh, SHAPES[name], initializers.normal(0.5), name)

    def __call__(self, x):
        w1, w2, w3 = self.variables
        with mtf.layout(self.front):
            h = self.wrap(lambda x: mtf.matmul(mtf.tanh(mtf.matmul(x, w1)), w2))(x)
        h = self.between(h)
        with mtf.layout(self.back):
            return mtf.softmax(mtf.matmul(h, w3), "k")


X = np.random.default_rng(5).normal(size=(8, 8)).astype("float32")
NETS = {
    "cut and whole": {"axes": "a:4", "front": "batch:a", "back": "k:a"},
    "whole and cut": {"axes": "a:2", "front": "h:a", "back": "batch:a"},
    "on top of rules": {
        "axes": "a:2;b:2",
        "layout": "batch:a;h:b",
        "front": "batch:;d:a",
        "back": "k:b",
    },
    "all rules away": {
        "axes": "a:2;b:2",
        "layout": "batch:a;h:b",
        "front": "*:",
        "back": "*:;d:b",
    },
    "axes exchanged": {
        "axes": "a:2;b:2",
        "layout": "batch:a",
        "front": "d:b",
        "back": "batch:b;d:a;k:",
    },
    "variables cut": {
        "axes": "a:2;b:2",
        "layout": "batch:a",
        "variable_layout": "d:b",
        "front": "batch:b;d:a",
        "back": "k:a;batch:",
    },
    "replicate": {"axes": "a:4", "layout": "batch:a", "between": mtf.replicate},
    "split": {
        "axes": "a:2;b:2",
        "layout": "batch:a",
        "between": lambda h: mtf.split(h, "d", "b"),
    },
    "split elsewhere": {
        "axes": "a:4",
        "layout": "batch:a",
        "between": lambda h: mtf.split(h, "d", "a"),
    },
    "shard": {
        "axes": "a:2;b:2",
        "layout": "batch:a;h:b",
        "between": lambda h: mtf.shard(h, {"batch": "b", "d": "a"}),
    },
    "recompute": {
        "axes": "a:2;b:2",
        "layout": "batch:a",
        "front": "h:b",
        "back": "batch:;k:a",
        "recompute": True,
    },
    "on devices": {
        "axes": "a:2;b:2",
        "layout": "batch:a;h:b",
        "front": "batch:b;h:a",
        "back": "batch:;k:a",
        "devices": "logical:4",
    },
}


def result(net):
    """Returns loss and gradients as arrays."""
    loss, gradients = net.step(X)
    return [loss.numpy(), *(g.numpy() for g in gradients)]


@pytest.mark.parametrize("name", NETS)
def test_numbers_are_those_of_one_position(name):
    net = Net(**NETS[name])
    for found, want in zip(result(net), result(Net("")), strict=True):
        np.testing.assert_allclose(found, want, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["cut and whole", "axes exchanged", "shard"])
def test_numbers_outside_of_functions(name):
    found, want = (
        net(mtf.asarray(net.mesh, X, "batch;d")).numpy()
        for net in (Net(**NETS[name]), Net(""))
    )
    np.testing.assert_allclose(found, want, rtol=2e-5)


def collectives(fn, *args, phase=None):
    """Returns kind, axis and names of each move of a forecast."""
    return [
        (m.kind, m.axis, " ".join(n for n, _ in m.tensor.shape))
        for m in mtf.explain(fn, *args).collectives
        if phase in (None, m.phase)
    ]


@pytest.mark.parametrize(
    "front, back, border",
    [
        ("batch:a", "d:a", [("all_to_all", "a", "batch d")]),
        ("d:a", "batch:a", [("all_to_all", "a", "batch d")]),
        ("batch:a;d:b", "batch:b;d:a", [("collective_permute", "a", "batch d")]),
        ("batch:a", "batch:a", []),
        ("batch:a", "batch:a;d:b", []),
    ],
)
def test_a_border_moves_by_itself_and_the_forecast_shows_it(front, back, border):
    mesh = mtf.Mesh("a:4;b:4", devices="abstract")

    @mtf.function(mesh=mesh, x="batch;d", w="batch;d")
    def fn(x, w):
        with mtf.layout(front):
            h = mtf.exp(mtf.shard(x, front))
        with mtf.layout(back):
            return h * mtf.exp(mtf.shard(w, back))

    x = np.zeros((16, 16), "float32")
    assert collectives(fn, x, x) == border


def test_gradients_lie_as_the_forward_choice():
    mesh = mtf.Mesh("a:2;b:2", "batch:a;h:b")

    @mtf.function(mesh=mesh, x="batch;d", w="d;h", w2="d;h")
    def fn(x, w, w2):
        outside = mtf.matmul(x, w)
        with mtf.layout("batch:b;h:a"):
            inside = mtf.matmul(x, w2)
            loss = mtf.reduce_sum(mtf.square(inside))
        loss = loss + mtf.reduce_sum(mtf.square(outside))
        return outside, inside, mtf.gradients([loss], [outside, inside])

    w = np.ones((8, 16), "float32")
    outside, inside, gradients = fn(X, w, w)
    assert (
        outside.sharded_value.placement
        == gradients[0].sharded_value.placement
        == Placement("batch:a;h:b")
    )
    assert (
        inside.sharded_value.placement
        == gradients[1].sharded_value.placement
        == Placement("batch:b;h:a")
    )


@pytest.mark.parametrize(
    "between, forward, backward",
    [
        (mtf.replicate, ["all_gather"], []),  # what is whole is cut for free
        (lambda h: mtf.split(h, "d", "a"), ["all_to_all"], ["all_to_all"]),
        (lambda h: mtf.shard(h, {"d": "a"}), ["all_to_all"], ["all_to_all"]),
        (lambda h: mtf.shard(h, {"batch": "a"}), [], []),
    ],
)
def test_one_tensor_and_its_gradient_are_brought_where_it_says(
    between, forward, backward
):
    mesh = mtf.Mesh("a:4", "batch:a")

    @mtf.function(mesh=mesh, x="batch;d")
    def fn(x):
        h = mtf.exp(x)
        with mtf.layout("*:"):
            laid = between(h)
            y = mtf.square(laid)
        return laid, *mtf.gradients([y], [h, x])

    laid, dh, dx = (y.sharded_value.placement for y in fn(X))
    assert laid == dh and dx == Placement("batch:a")
    assert [kind for kind, *_ in collectives(fn, X, phase="forward")] == forward
    assert [kind for kind, *_ in collectives(fn, X, phase="backward")] == backward


# What is made in a region


def test_variables_lie_by_the_rules_of_their_region():
    mesh = mtf.Mesh("a:2;b:2", "h:a", variable_layout="d:b")
    with mtf.layout("h:"):
        inside = mtf.Variable(mesh, "d:8;h:16", ones, "inside")
    with mtf.layout("*:"):
        rows = mtf.Variable(mesh, "k:4;h:16", ones, "rows")
    outside = mtf.Variable(mesh, "d:8;h:16", ones, "outside")
    assert outside.placement == Placement("d:b;h:a")
    assert inside.placement == Placement("d:b")
    assert rows.placement == Placement()


def test_regions_in_regions_and_where_they_end():
    mesh = mtf.Mesh("a:2;b:2", "batch:a;h:b")

    def here():
        return mtf.ones(mesh, "batch:4;h:4").node.layout

    before = here()
    with mtf.layout("batch:;d:a"):
        assert here() == Layout("h:b;d:a")
        with mtf.layout("h:;batch:b"):
            assert here() == Layout("batch:b;d:a")
            with mtf.layout("*:"):
                assert here() == Layout()
                with mtf.layout("h:a"):
                    assert here() == Layout("h:a")
            assert here() == Layout("batch:b;d:a")
        with pytest.raises(ZeroDivisionError), mtf.layout("*:"):
            raise ZeroDivisionError
        assert here() == Layout("h:b;d:a")
        with mtf.layout({"h": "", "k": "b"}):
            assert here() == Layout("d:a;k:b")
    assert here() == before == Layout("batch:a;h:b")


def test_a_region_around_the_call_of_a_function():
    mesh = mtf.Mesh("a:4", "batch:a")
    cut = mtf.function(lambda x: mtf.exp(x), mesh=mesh, x="batch;d")
    outside = cut(X)
    with mtf.layout("batch:;d:a"):
        inside = cut(X)
        assert mtf.explain(cut, X).ops[-1].outputs[0].states == ("d",)
    assert (outside.sharded_value.placement, inside.sharded_value.placement) == (
        Placement("batch:a"),
        Placement("d:a"),
    )
    np.testing.assert_array_equal(outside.numpy(), inside.numpy())
    assert cut.traces == 2
    cut(X)
    assert cut.traces == 2  # each region has its program


def test_what_is_computed_again_is_laid_out_as_the_first_time():
    def outputs(recompute):
        forecast = mtf.explain(
            Net(**NETS["recompute"] | {"recompute": recompute}).step, X
        )
        return [
            (op.phase, op.title, op.outputs[0].states)
            for op in forecast.ops
            if op.title == "tanh"
        ]

    first, again = outputs(True)
    assert first == ("forward", "tanh", ("batch", "h"))
    assert again == ("backward", "tanh", ("batch", "h"))
    assert outputs(False) == [first]


# Refusals
