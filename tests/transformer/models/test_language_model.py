"""The language model under every layout: first values, dropout, ten steps of training,
all equal.

Adam divides by the root of a second moment, so near zero it makes a rounding error a
whole step in the other direction: for Adam the losses are compared, for plain descent
the variables too.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.block import Block
from transformer.models.language_model import LanguageModel

STEPS, BATCH, LENGTH = 10, 8, 8
SIZES = {"vocab": 16, "d_model": 16, "d_ff": 32, "heads": 4, "d_kv": 8, "blocks": 1}
PAIRS = [
    {"axes": "data:8", "layout": "batch:data"},
    {"axes": "model:4", "layout": "heads:model; d_ff:model; vocab:model"},
    {
        "axes": "data:4;model:2",
        "layout": "batch:data; heads:model; d_ff:model; vocab:model",
    },
    {
        "axes": "data:2;model:4",
        "layout": "batch:data; heads:model; d_ff:model; vocab:model",
    },
    {"axes": "data:4", "layout": "batch:data", "variable_layout": "d_model:data"},
    {
        "axes": "data:2;model:2",
        "layout": "batch:data; heads:model; d_ff:model",
        "variable_layout": "d_model:data",
    },
    {
        "axes": "data:2;fsdp:4",
        "layout": "batch:data+fsdp",
        "variable_layout": "d_model:fsdp+data",
        "devices": "separate:8",
    },
    {
        "axes": "data:2;model:2;inner:2",
        "layout": "batch:data; d_ff:model+inner; heads:model; vocab:model+inner",
    },
    {"axes": "data:2;model:2", "layout": "batch:data; length:model"},
    {"axes": "model:4", "layout": "d_model:model"},
    {"axes": "data:2;model:2", "layout": "kv_length:data; d_kv:model; d_ff:model"},
    {
        "axes": "model:2;data:2",
        "layout": "vocab:model; d_ff:model; heads:model; batch:data",
    },
    {"axes": "a:2;b:2;c:2", "layout": "batch:a; length:b; d_ff:c; heads:c"},
    {
        "axes": "data:4;model:2",
        "layout": "batch:data; heads:model; d_ff:model; vocab:model",
        "devices": "logical:8",
    },
]


def name_of(pair):
    return "; ".join(f"{value}" for value in pair.values())


def text(step):
    return (
        np.random.default_rng(step).integers(0, 16, (BATCH, LENGTH + 1)).astype("int32")
    )


def run(optimizer, steps=STEPS, model=None, **mesh):
    """Returns the losses and norms [steps, 2] of a small model, and its variables after
    training.
    """
    mesh = mtf.Mesh(**mesh)
    model = LanguageModel(
        mesh, Architecture(**{"dropout": 0.2, **SIZES, **(model or {})})
    )
    variables = model.trainable_variables
    optimizer = optimizer(variables)

    @mtf.function(mesh=mesh, batch=model.features, step="")
    def train(batch, step):
        with mtf.seed(7, step):
            loss = model.loss(batch, training=True)
        grads, norm = mtf.optimizers.clip_by_global_norm(
            mtf.gradients([loss], variables), 1.0
        )
        optimizer.apply_gradients(grads, variables, step)
        return loss, norm

    sequences = (text(step) for step in range(steps))
    curve = [
        train({"tokens": sequence[:, :-1], "targets": sequence[:, 1:]}, np.int32(step))
        for step, sequence in enumerate(sequences)
    ]
    curve = np.array([[float(x) for x in pair] for pair in curve])
    return curve, {v.name: v.numpy() for v in variables}


def adam(variables):
    return mtf.optimizers.AdamW(variables, 0.01, weight_decay=0.1)


def descent(variables):
    return mtf.optimizers.SGD(variables, 0.5)


@functools.cache
def on_one_device(optimizer):
    return run(optimizer, axes="")


def test_training_lowers_the_loss():
    curve, _ = on_one_device(adam)
    assert curve.shape == (STEPS, 2)
    assert curve[:3, 0].mean() > curve[-3:, 0].mean()


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_ten_steps_of_adam_have_the_same_losses(pair):
    np.testing.assert_allclose(run(adam, **pair)[0], on_one_device(adam)[0], rtol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_ten_steps_of_descent_have_the_same_variables(pair):
    curve, variables = run(descent, **pair)
    want_curve, expected = on_one_device(descent)
    np.testing.assert_allclose(curve, want_curve, rtol=1e-4)
    assert variables.keys() == expected.keys()
    for name, value in expected.items():
        scale = np.sqrt((value**2).mean())  # relative to a variable's own size
        np.testing.assert_allclose(
            variables[name], value, rtol=1e-4, atol=1e-4 * scale, err_msg=name
        )


@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_first_values_and_dropout_are_the_same(pair):
    def values(**mesh):
        model = LanguageModel(mtf.Mesh(**mesh), Architecture(**SIZES, dropout=0.5))
        with mtf.seed(3, 4):
            ones = mtf.ones(model.mesh, "batch:8;length:8;d_model:16")
            mask = model.dropout(ones, training=True)
        return {"mask": mask.numpy(), **{v.name: v.numpy() for v in model.variables}}

    have, expected = values(**pair), values(axes="")
    assert have.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(have[name], value, err_msg=name)


@pytest.mark.parametrize("change", [{"activation": "swiglu"}, {"tied": True}], ids=str)
def test_variants_train_the_same_under_layouts(change):
    have, _ = run(adam, 3, change, **PAIRS[2])
    np.testing.assert_allclose(have, run(adam, 3, change, axes="")[0], rtol=1e-4)


def test_no_position_sees_what_comes_after_it(rng):
    model = LanguageModel(mtf.Mesh(""), Architecture(**SIZES))
    tokens = rng.integers(0, 16, (1, 8)).astype("int32")
    changed = tokens.copy()
    changed[:, 5:] = (changed[:, 5:] + 1) % 16
    first, second = (
        model(mtf.asarray(model.mesh, x, "batch;length")).numpy()
        for x in (tokens, changed)
    )
    np.testing.assert_array_equal(first[:, :5], second[:, :5])
    assert (first[:, 5:] != second[:, 5:]).any(axis=-1).all()


def test_variables_are_named_by_their_path():
    names = {
        v.name for v in LanguageModel(mtf.Mesh(""), Architecture(**SIZES)).variables
    }
    assert "language_model/decoder/block_0/attention/query/kernel" in names
    assert "language_model/embedding/table" in names
    assert len(names) == 11


def test_an_unknown_activation_is_refused():
    with pytest.raises(
        ValueError, match="there is no activation 'gleu'. Did.*\n.*swiglu"
    ):
        Block(mtf.Mesh(""), Architecture(activation="gleu"), causal=True)
