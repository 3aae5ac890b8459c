"""Adafactor against the formulas of its paper in numpy, under many layouts."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers
from meshtf.optimizers.adafactor import factored_dims
from tests.support.optimizer_steps import LAYOUTS, SHAPES, train

CHOICES = {
    "the paper's": {},
    "all": {
        "beta_1": 0.9,
        "learning_rate": 0.1,
        "weight_decay": 0.5,
        "decay_power": 0.5,
    },
    "Adam's means": {"beta_2": 0.9, "learning_rate": 0.1},
    "unscaled": {
        "multiply_by_parameter_scale": False,
        "clip_threshold": 0.25,
        "epsilon_1": 1e-3,
    },
}
# Every layout with all that there is; the other choices where nothing, much and all is
# cut.
CASES = [(layout, "all") for layout in LAYOUTS] + [
    (layout, choice)
    for choice in ("the paper's", "Adam's means", "unscaled")
    for layout in ("one position", "rows and columns", "ZeRO-1 beside FSDP")
]


def adafactor(**choices):
    """Returns what makes an optimizer of variables."""
    return lambda variables: optimizers.Adafactor(
        variables, min_dim_size_to_factor=6, **choices
    )


def rms(x):
    """Returns the root mean square."""
    return np.sqrt(np.mean(x**2))


class Paper:
    """Algorithms 4 and 5 of arXiv 1804.04235 for one variable, with momentum and weight
    decay.
    """

    def __init__(
        self,
        value,
        learning_rate=None,
        beta_1=0.0,
        decay_power=0.8,
        clip_threshold=1.0,
        epsilon_1=1e-30,
        epsilon_2=1e-3,
        multiply_by_parameter_scale=True,
        weight_decay=0.0,
        beta_2=None,
    ):
        self.x = value.astype("float64")
        self.t = 0
        self.m = 0.0
        self.rate = learning_rate
        self.beta_1 = beta_1
        self.power = decay_power
        self.d = clip_threshold
        self.epsilon_1 = epsilon_1
        self.epsilon_2 = epsilon_2
        self.scaled = multiply_by_parameter_scale
        self.decay = weight_decay
        self.beta_2 = beta_2
        self.r = np.zeros(value.shape[:-1])
        self.c = np.zeros(value.shape[:-2] + value.shape[-1:])
        self.v = 0.0

    def step(self, g):
        """Updates x. Leading dimensions of x are so many matrices that are factored
        apart.
        """
        self.t += 1
        rho = min(1e-2, self.t**-0.5) if self.rate is None else self.rate
        alpha = rho * (max(self.epsilon_2, rms(self.x)) if self.scaled else 1.0)
        b2 = 1 - self.t**-self.power
        if self.beta_2 is not None:
            b2 = (
                self.beta_2
                * (1 - self.beta_2 ** (self.t - 1))
                / (1 - self.beta_2**self.t)
            )
        squares = g**2 + self.epsilon_1
        if g.ndim > 1:
            self.r = b2 * self.r + (1 - b2) * squares.sum(-1)
            self.c = b2 * self.c + (1 - b2) * squares.sum(-2)
            v = (
                self.r[..., :, None]
                * self.c[..., None, :]
                / self.r.sum(-1)[..., None, None]
            )
        else:
            v = self.v = b2 * self.v + (1 - b2) * squares
        u = g / np.sqrt(v)
        u = u / max(1.0, rms(u) / self.d)
        self.m = self.beta_1 * self.m + (1 - self.beta_1) * alpha * u
        shrink = rho * self.decay if g.ndim > 1 else 0.0
        self.x = self.x - self.m - shrink * self.x


@pytest.mark.sampled(9, each="layout choice")
@pytest.mark.parametrize("layout, choice", CASES)
def test_updates_are_the_papers_under_every_layout(layout, choice, rng):
    choices = CHOICES[choice]
    before, after, gradients = train(adafactor(**choices), LAYOUTS[layout], rng)
    assert all(
        np.abs(value - start).max() > 1e-4 for start, value in zip(before[:3], after)
    )
    for i, (name, start, value) in enumerate(zip(SHAPES, before, after)):
        paper = Paper(start, **choices)
        for grads in gradients:
            paper.step(grads[i].astype("float64"))
        np.testing.assert_allclose(
            value - start, paper.x - start, rtol=1e-3, atol=2e-6, err_msg=name
        )


@pytest.mark.parametrize(
    "layout", ["one position", "others", "rows and columns", "ZeRO-1 beside FSDP"]
)
def test_stacked_variables_are_updated_as_if_they_were_separate(layout, rng):
    choices = {"learning_rate": 0.1, "clip_threshold": 0.5, "beta_1": 0.5}
    before, after, gradients = train(
        adafactor(stacked_dims="h", **choices), LAYOUTS[layout], rng
    )
    i = list(SHAPES).index("heads")
    for row in range(2):
        paper = Paper(before[i][row], **choices)
        for grads in gradients:
            paper.step(grads[i][row].astype("float64"))
        np.testing.assert_allclose(
            after[i][row] - before[i][row],
            paper.x - before[i][row],
            rtol=1e-3,
            atol=2e-6,
        )


def test_stacked_dimensions_are_never_factored():
    variable = mtf.Variable(mtf.Mesh(""), "layers:8;a:8;b:6", initializers.zeros, "w")
    slots = optimizers.Adafactor(
        [variable], min_dim_size_to_factor=6, stacked_dims="layers"
    ).slots
    assert {name: slot.shape.names for name, slot in slots["w"].items()} == {
        "row": ("layers", "a"),
        "column": ("layers", "b"),
    }


def test_experts_are_never_factored():
    mesh = mtf.Mesh("data:2048", "experts:data", devices="abstract")
    dense = mtf.layers.Dense(
        mesh, "d_model:1024", "d_ff:8192", expert_dims="experts:2048", name="wi"
    )
    slots = optimizers.Adafactor(dense.trainable_variables).slots
    assert {name: slot.shape.names for name, slot in slots["wi/kernel"].items()} == {
        "row": ("experts", "d_ff"),
        "column": ("experts", "d_model"),
    }


def test_the_two_largest_dimensions_are_factored():
    assert factored_dims(mtf.Shape("d_model:512;d_ff:2048"), 128) == ("d_ff", "d_model")
    assert factored_dims(mtf.Shape("d_model:512;heads:8;d_kv:128"), 128) == (
        "d_model",
        "d_kv",
    )
    assert factored_dims(mtf.Shape("a:4;b:4;c:4"), 4) == ("a", "b")
    assert factored_dims(mtf.Shape("d_model:512;d_kv:64"), 128) is None
    assert factored_dims(mtf.Shape("d_model:512"), 128) is None


def test_slots_hold_the_sum_of_the_sizes_and_not_the_product():
    mesh = mtf.Mesh("data:2", optimizer_layout="d_model:data")
    variables = [
        mtf.Variable(mesh, shape, initializers.zeros, name)
        for name, shape in {
            "w": "d_model:128;d_ff:256",
            "qkv": "three:3;d_model:128;d_ff:256",
            "bias": "d_ff:256",
            "small": "d_model:4;d_ff:256",
        }.items()
    ]
    results = {
        s.name: (s.shape, s.placement)
        for s in optimizers.Adafactor(variables).variables
    }
    sharded = mtf.Placement("d_model:data")
    whole = mesh.replicated
    assert results == {
        "adafactor/w/row": (mtf.Shape("d_ff:256"), whole),
        "adafactor/w/column": (mtf.Shape("d_model:128"), sharded),
        "adafactor/qkv/row": (mtf.Shape("three:3;d_ff:256"), whole),
        "adafactor/qkv/column": (mtf.Shape("three:3;d_model:128"), sharded),
        "adafactor/bias/v": (mtf.Shape("d_ff:256"), whole),
        "adafactor/small/v": (mtf.Shape("d_model:4;d_ff:256"), sharded),
    }


def test_momentum_keeps_one_more_slot():
    variable = mtf.Variable(mtf.Mesh(""), "a:8;b:6", initializers.zeros, "w")
    slots = optimizers.Adafactor(
        [variable], beta_1=0.9, min_dim_size_to_factor=2
    ).slots["w"]
    assert {name: slot.shape for name, slot in slots.items()} == {
        "row": mtf.Shape("a:8"),
        "column": mtf.Shape("b:6"),
        "m": mtf.Shape("a:8;b:6"),
    }


@pytest.mark.parametrize("step, expected", [(0, 1e-2), (9_999, 1e-2), (39_999, 5e-3)])
def test_the_papers_rate(step, expected):
    mesh = mtf.Mesh("")
    rate = optimizers.relative_step(mtf.asarray(mesh, np.int32(step), ""))
    assert float(rate) == pytest.approx(expected, rel=1e-5)


def test_gradients_of_zero_change_nothing():
    mesh = mtf.Mesh("")
    variable = mtf.Variable(mesh, "a:8;b:6", initializers.ones, "w")
    optimizer = optimizers.Adafactor([variable], min_dim_size_to_factor=2)
    optimizer.apply_gradients(
        [mtf.zeros(mesh, variable.shape)],
        [variable],
        mtf.asarray(mesh, np.int32(0), ""),
    )
    np.testing.assert_array_equal(variable.numpy(), np.ones((8, 6)))


def test_half_floats_are_updated_in_float32():
    mesh = mtf.Mesh("")
    variable = mtf.Variable(
        mesh,
        "a:8;b:6",
        lambda *args: mtf.ones(mesh, "a:8;b:6", "bfloat16"),
        "w",
        dtype="bfloat16",
    )
    optimizer = optimizers.Adafactor([variable], 0.1, min_dim_size_to_factor=2)
    optimizer.apply_gradients(
        [mtf.ones(mesh, variable.shape, "bfloat16")],
        [variable],
        mtf.asarray(mesh, np.int32(0), ""),
    )
    assert {slot.dtype for slot in optimizer.variables} == {"float32"}
    np.testing.assert_array_equal(
        variable.numpy().astype("float32"),
        np.full(
            (8, 6), np.float32(mtf.cast(0.9 * mtf.ones(mesh, ""), "bfloat16").numpy())
        ),
    )
