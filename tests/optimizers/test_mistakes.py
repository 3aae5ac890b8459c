"""What optimizers cannot work with is refused, where all of them would go on or
TensorFlow stop.
"""

from __future__ import annotations

import pytest

import meshtf as mtf

opt = mtf.optimizers
EACH = [
    opt.SGD,
    lambda v, rate: opt.SGD(v, rate, momentum=0.9),
    opt.Adam,
    opt.AdamW,
    opt.LAMB,
    opt.Adafactor,
]


@pytest.fixture(name="w")
def _w():
    return mtf.Variable(mtf.Mesh(""), "d:4;e:4", mtf.layers.initializers.ones, name="w")


def step(w):
    return mtf.constant(w.mesh, 0, dtype="int32")


@pytest.mark.parametrize("make", EACH)
@pytest.mark.parametrize(
    "wrong",
    [
        mtf.reduce_sum,
        lambda g: mtf.rename(g, "e", "f"),
        lambda g: mtf.cast(g, "int32"),
        lambda g: g > 0.0,
    ],
)
def test_gradients_that_do_not_fit(make, wrong, w):
    with pytest.raises((mtf.ShapeError, mtf.errors.DTypeError), match="gradient"):
        make([w], 0.1).apply_gradients([wrong(w.tensor())], [w], step(w))
    assert w.numpy().min() == w.numpy().max() == 1


@pytest.mark.parametrize("make", EACH)
def test_rates_of_several_numbers(make, w):
    with pytest.raises(mtf.ShapeError, match="learning_rate must be a scalar"):
        make([w], lambda step: mtf.full(w.mesh, "e:4", 0.1)).apply_gradients(
            [w.tensor()], [w], step(w)
        )


@pytest.mark.parametrize("make", [opt.Adam, opt.AdamW, opt.LAMB, opt.Adafactor])
@pytest.mark.parametrize("beta", [-0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", ["beta_1", "beta_2"])
def test_shares_that_are_none(make, name, beta, w):
    with pytest.raises(mtf.errors.MeshtfError, match=name):
        make([w], 0.1, **{name: beta})


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan")])
def test_norms_that_are_none(norm, w):
    with pytest.raises(mtf.errors.MeshtfError, match="clip_norm"):
        opt.clip_by_global_norm([w.tensor()], norm)


def test_a_rule_that_makes_no_optimizer(w):
    with pytest.raises(mtf.errors.MeshtfError, match="rules"):
        opt.ParameterGroups([w], [("", lambda variables: None)])
