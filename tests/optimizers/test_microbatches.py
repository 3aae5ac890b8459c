"""Gradient accumulation: the gradients of the whole batch, in every layout and number
of parts.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

LAYOUTS = [("", ""), ("batch:x;f:y", ""), ("batch:x", "d:x"), ("batch:x;f:y", "d:x")]


def gradients(layout, variable_layout, microbatches, seed, eager=False):
    """Returns loss and gradients of a small network, and the moves that it makes."""
    mesh = mtf.Mesh(
        "x:2;y:2", layout=layout, variable_layout=variable_layout, seed=seed
    )
    net = mtf.layers.FeedForward(mesh, "d:8", "f:16", name="net")
    unused = mtf.Variable(mesh, "d:8", mtf.layers.initializers.zeros, name="unused")
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=(16, 8)).astype("float32") for _ in range(2))

    def step(x, y):
        def loss_of(examples):
            return mtf.reduce_mean(mtf.square(net(examples["x"]) - examples["y"]))

        loss, grads = mtf.optimizers.accumulate_gradients(
            loss_of,
            [*net.trainable_variables, unused],
            {"x": x, "y": y},
            "batch",
            microbatches,
        )
        assert grads.pop() is None
        return [loss, *grads]

    args = [mtf.asarray(mesh, a, "batch;d") for a in (x, y)]
    program = mtf.function(step)
    results = (step if eager else program)(*args)
    return [g.numpy() for g in results], program.lower(*args).collectives


@pytest.mark.parametrize("layout, variable_layout", LAYOUTS)
@pytest.mark.parametrize("microbatches", [2, 8])
def test_microbatches_change_nothing(layout, variable_layout, microbatches, seed):
    want, _ = gradients("", "", 1, seed)
    for eager in (False, True):
        got, _ = gradients(layout, variable_layout, microbatches, seed, eager)
        for g, expected in zip(got, want, strict=True):
            np.testing.assert_allclose(g, expected, 1e-4, 1e-6)


def test_devices_add_up_once_after_the_last_part(seed):
    for microbatches in (1, 2, 8):
        _, collectives = gradients("batch:x", "", microbatches, seed)
        assert sorted(
            m for m in collectives if "[d:8 f:16]" in m or "[f:16 d:8]" in m
        ) == [
            "all_reduce over x of [d:8 f:16]",
            "all_reduce over x of [f:16 d:8]",
        ]
        assert not [
            m for m in collectives if "batch" in m
        ]  # parts stay where the batch was


def test_microbatches_that_do_not_divide_are_refused(seed):
    with pytest.raises(mtf.ShapeError, match=r'3 microbatches .* "batch" of size 16'):
        gradients("", "", 3, seed)
    mesh = mtf.Mesh("")
    with pytest.raises(mtf.ShapeError, match="batch"):
        mtf.optimizers.accumulate_gradients(
            lambda x: x, [], mtf.ones(mesh, "d:4"), "batch", 2
        )


def test_masks_and_moving_averages_are_those_of_the_whole_batch(seed):
    x = np.random.default_rng(seed).normal(1.0, 2.0, size=(16, 8)).astype("float32")

    def run(layout, microbatches, eager):
        mesh = mtf.Mesh("x:2", layout, seed=seed)
        norm = mtf.layers.BatchNorm(mesh, "d:8", momentum=0.5)

        def step(x):
            def loss_of(x):
                norm(x, training=True)
                return mtf.reduce_mean(mtf.square(mtf.dropout(x, 0.5)))

            with mtf.seed(seed):
                return mtf.optimizers.accumulate_gradients(
                    loss_of, [], x, "batch", microbatches
                )[0]

        loss = (step if eager else mtf.function(step))(mtf.asarray(mesh, x, "batch;d"))
        return float(loss), norm.moving_mean.numpy(), norm.moving_variance.numpy()

    want = run("", 1, False)
    np.testing.assert_allclose(want[2], 0.5 + 0.5 * x.var(0), 1e-5)
    for layout, microbatches, eager in (
        ("", 4, False),
        ("batch:x", 8, False),
        ("batch:x", 4, True),
    ):
        for y, expected in zip(run(layout, microbatches, eager), want):
            np.testing.assert_allclose(y, expected, 1e-5)


def test_how_many_microbatches_there_are_is_known_within():
    mesh = mtf.Mesh("")
    seen = []

    def loss_of(x):
        x = mtf.rename(x, "batch", "rows")
        seen.append(tuple(map(mtf.microbatches_of, ("batch", "rows", "length"))))
        return mtf.reduce_mean(x)

    x = mtf.asarray(mesh, np.ones((4, 2), "float32"), "batch;length")
    mtf.function(
        lambda x: mtf.optimizers.accumulate_gradients(loss_of, [], x, "batch", 2)[0],
        mesh=mesh,
    )(x)
    assert set(seen) == {(2, 2, 1)} and mtf.microbatches_of("batch") == 1
