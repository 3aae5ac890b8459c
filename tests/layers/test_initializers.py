"""First values: the distributions that were asked for, and the same numbers under every
layout.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.layers import initializers

SHAPE = "d_model:64;d_ff:128"


def drawn(initializer, shape=SHAPE, name="w", **mesh):
    return mtf.Variable(
        mtf.Mesh(mesh.pop("axes", ""), **mesh), shape, initializer, name
    ).numpy()


@pytest.mark.parametrize(
    "initializer, value",
    [
        (initializers.zeros, 0.0),
        (initializers.ones, 1.0),
        (initializers.constant(-2.5), -2.5),
    ],
)
def test_constants(initializer, value):
    np.testing.assert_array_equal(
        drawn(initializer), np.full((64, 128), value, "float32")
    )


@pytest.mark.parametrize("devices", [None, "logical:8"])
@pytest.mark.parametrize("layout", ["", "d_ff:data"])
def test_variables_that_begin_as_one_tensor_change_each_by_itself(layout, devices):
    mesh = mtf.Mesh("data:8", layout=layout, devices=devices)
    first = initializers.shared(initializers.zeros)
    one, other = (mtf.Variable(mesh, SHAPE, first, name) for name in ("one", "other"))

    for _, slots in one.slots_by_region():
        for slot in slots:  # in place, while both hold the tensor that they began as
            slot.variable.assign_add(np.ones(slot.shape, "float32"))
    assert one.numpy().min() == 1.0 and not other.numpy().any()


@pytest.mark.parametrize(
    "initializer, stddev, limit",
    [
        (initializers.normal(0.5), 0.5, np.inf),
        (initializers.truncated(0.5), 0.5, 2 * 0.5 / 0.8796),
        (initializers.uniform(0.3), 0.3 / np.sqrt(3), 0.3),
        (initializers.variance_scaling("d_model"), 1 / np.sqrt(64), np.inf),
        (
            initializers.variance_scaling("d_model", mode="fan_out"),
            1 / np.sqrt(128),
            np.inf,
        ),
        (
            initializers.variance_scaling("d_model", 2.0, "fan_avg", "uniform"),
            np.sqrt(2 / 96),
            0.26,
        ),
        (
            initializers.variance_scaling("d_ff", 2.0, "fan_in", "truncated_normal"),
            0.125,
            0.29,
        ),
        (initializers.glorot("d_model"), 1 / np.sqrt(96), np.sqrt(3 / 96)),
        (initializers.glorot("d_model", "normal"), 1 / np.sqrt(96), np.inf),
        (initializers.he("d_ff"), 1 / np.sqrt(64), 2 / np.sqrt(64) / 0.8796),
        (initializers.lecun("d_ff", "uniform"), 1 / np.sqrt(128), np.sqrt(3 / 128)),
    ],
)
def test_distributions(initializer, stddev, limit):
    samples = drawn(initializer)
    assert samples.std() == pytest.approx(stddev, rel=0.04)  # 8192 numbers: 5 sigma
    assert abs(samples.mean()) < 0.05 * stddev
    assert abs(samples).max() <= limit * 1.001


def test_expert_dimensions_count_in_no_fan():
    for initializer in (
        initializers.variance_scaling("d_model", mode="fan_avg", expert_dims="experts"),
        initializers.glorot("d_model", expert_dims="experts"),
        initializers.lecun("d_model", expert_dims="experts"),
    ):
        samples = drawn(initializer, "experts:8;d_model:16;d_ff:16")
        assert samples.std() == pytest.approx(0.25, rel=0.08)


class Square(mtf.Module):
    """A layer of one kernel."""

    def __init__(self, mesh):
        super().__init__()
        self.kernel = mtf.Variable(mesh, "a:32;b:32", initializers.glorot("a"))


class Net(mtf.Module):
    """Repeated layers that get their name, and their values, after they are made."""

    def __init__(self, mesh):
        super().__init__()
        self.repeated = mtf.layers.Repeat(lambda: Square(mesh), "layers:32")


@pytest.mark.parametrize("devices", [None, "spmd:cpu:2"])
def test_stacked_dimensions_count_in_no_fan(devices):
    mesh = mtf.Mesh("x:2", "a:x", devices=devices)
    by_hand = mtf.Variable(
        mesh,
        "a:32;layers:32;b:32",
        initializers.glorot("a"),
        "by_hand",
        stacked_dims="layers",
    )
    for variable in (Net(mesh).repeated.layer.kernel, by_hand):
        assert variable.entry_shape == mtf.Shape("a:32;b:32")
        stddev = variable.numpy().std()
        assert stddev == pytest.approx((2 / 64) ** 0.5, rel=0.03), variable


def test_every_layout_draws_the_same_numbers():
    expected = drawn(initializers.normal())
    for axes, layout in (
        ("data:2;model:2", "d_model:data;d_ff:model"),
        ("model:4", "d_ff:model"),
    ):
        np.testing.assert_array_equal(
            drawn(initializers.normal(), axes=axes, layout=layout), expected
        )


def test_names_and_seeds_make_numbers_differ():
    first = drawn(initializers.normal())
    assert (first != drawn(initializers.normal(), name="v")).all(axis=1).any()
    assert (first != drawn(initializers.normal(), seed=1)).all(axis=1).any()
    np.testing.assert_array_equal(first, drawn(initializers.normal()))
