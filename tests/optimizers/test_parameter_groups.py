"""Optimizers chosen by names: each variable by the first rule, none left out."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers
from tests.support.optimizer_steps import LAYOUTS, train
from tests.support.refusals import refuses

SGD = optimizers.SGD


@pytest.mark.parametrize(
    "layout", ["one position", "rows and columns", "ZeRO-1 beside FSDP"]
)
def test_the_first_rule_counts(layout, rng):
    rules = [
        ("heads|bias", lambda vs: SGD(vs, 0.5)),
        ("heads|w", lambda vs: SGD(vs, 0.25)),
        ("", lambda vs: SGD(vs, lambda step: mtf.cast(step, "float32") + 1.0)),
    ]
    before, after, gradients = train(
        lambda vs: optimizers.ParameterGroups(vs, rules), LAYOUTS[layout], rng
    )
    rates = {"w": [0.25] * 4, "heads": [0.5] * 4, "bias": [0.5] * 4, "s": [1, 2, 3, 4]}
    for i, (name, steps) in enumerate(rates.items()):
        moved = sum(rate * grads[i] for rate, grads in zip(steps, gradients))
        np.testing.assert_allclose(
            after[i], before[i] - moved, rtol=1e-4, atol=1e-5, err_msg=name
        )


def variables(*names):
    mesh = mtf.Mesh("")
    return [mtf.Variable(mesh, "a:2;b:2", initializers.ones, name) for name in names]


def test_slots_go_by_their_variables_and_are_saved_once():
    results = optimizers.ParameterGroups(
        variables("w", "v", "b"),
        [
            ("b", lambda vs: SGD(vs, momentum=0.9)),
            ("v", lambda vs: optimizers.Adam(vs)),
            ("", lambda vs: optimizers.Adam(vs)),
        ],
    )
    assert sorted(v.name for v in results.variables) == [
        "parameter_groups/adam/v/m",
        "parameter_groups/adam/v/v",
        "parameter_groups/adam/w/m",
        "parameter_groups/adam/w/v",
        "parameter_groups/sgd/b/velocity",
    ]
    assert results.slots.keys() == {"w", "v", "b"}


def test_variables_without_gradient_and_parts_of_all():
    w, v = variables("w", "v")
    optimizer = optimizers.ParameterGroups(
        [w, v], [("w", lambda vs: SGD(vs, 0.5)), ("v", lambda vs: SGD(vs, 0.25))]
    )
    step = mtf.full(w.mesh, "", 0, "int32")
    ones = mtf.ones(w.mesh, w.shape)
    optimizer.apply_gradients([ones], [v], step)
    optimizer.apply_gradients([None, ones], [w, v], step)
    np.testing.assert_array_equal(w.numpy(), np.ones((2, 2)))
    np.testing.assert_array_equal(v.numpy(), np.full((2, 2), 0.5))
    with pytest.raises(
        mtf.PlanError, match="ParameterGroups was not made for variable 'u'"
    ):
        optimizer.apply_gradients([ones], variables("u"), step)


def test_a_variable_without_a_rule_and_a_rule_without_a_variable_are_refused():
    rule = lambda vs: SGD(vs, 0.5)  # noqa: E731
    with refuses(
        mtf.PlanError,
        "no rule matches variable 'w'",
        "rules +'v', 'u'",
        "End with a rule",
    ):
        optimizers.ParameterGroups(variables("v", "w"), [("v", rule), ("u", rule)])
    with refuses(mtf.PlanError, "the rule 'bais' has no variable", "variables +w"):
        optimizers.ParameterGroups(variables("w"), [("bais", rule), ("", rule)])
    with refuses(
        mtf.PlanError, "the rule 'w' has no variable"
    ):  # another one took it before
        optimizers.ParameterGroups(variables("w"), [("", rule), ("w", rule)])


def test_decay_by_name():
    w, bias = variables("layer/w", "layer/bias")
    optimizer = optimizers.AdamW(
        [w, bias], 0.1, weight_decay=0.5, decay_mask=optimizers.exclude_names("bias$")
    )
    optimizer.apply_gradients(
        [mtf.zeros(w.mesh, w.shape)] * 2, [w, bias], mtf.full(w.mesh, "", 0, "int32")
    )
    np.testing.assert_allclose(w.numpy(), np.full((2, 2), 0.95))
    np.testing.assert_array_equal(bias.numpy(), np.ones((2, 2)))
    usual = optimizers.AdamW([w, bias], 0.1, weight_decay=0.5).decay_mask
    assert usual(w) and not usual(bias)  # though it has two dimensions
    assert optimizers.match_names("r/b")(bias) and not optimizers.match_names("r/b")(w)
