"""Programs whose layouts are searched for in tests."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import meshtf as mtf
from meshtf.hardware import Hardware, Link, MeasuredLocalStep, MeasuredMatmul
from meshtf.layout_search.space import STAGE, structures, structures_of_axes


def mlp(sizes):
    """Returns (build, arguments) of a training step of two layers."""

    def build(mesh, microbatches=1):
        layer = mtf.layers.FeedForward(
            mesh,
            f"d_model:{sizes['d_model']}",
            f"d_ff:{sizes['d_ff']}",
            use_bias=False,
        )
        variables = layer.trainable_variables
        optimizer = mtf.optimizers.AdamW(variables, 1e-3)

        @mtf.function(mesh=mesh, x="batch;d_model", step="")
        def train_step(x, step):
            loss, grads = mtf.optimizers.accumulate_gradients(
                lambda xs: mtf.reduce_mean(mtf.square(layer(xs["x"]))),
                variables,
                {"x": x},
                dim="batch",
                microbatches=microbatches,
            )
            optimizer.apply_gradients(grads, variables, step)
            return loss

        return train_step

    x = np.zeros([sizes["batch"], sizes["d_model"]], "float32")
    return build, (x, np.int32(0))


class Residual(mtf.Module):
    """A layer of a stack: a feed-forward layer, and its input."""

    def __init__(self, mesh, name="residual"):
        super().__init__(name)
        self.feed_forward = mtf.layers.FeedForward(
            mesh, "d_model:16", "d_ff:64", use_bias=False
        )

    def __call__(self, x):
        return x + self.feed_forward(x)


def head_of(mesh):
    """Returns the last layer of a stack, which costs as much as 1.5 others."""
    return mtf.layers.Dense(mesh, "d_model:16", "vocab:192", use_bias=False)


def stack(
    mesh,
    microbatches=1,
    recompute=False,
    is_longer=False,
    with_head=False,
    make_optimizer=mtf.optimizers.AdamW,
):
    """Returns a training step of four scanned layers, with clipped gradients; with one more
    op if `is_longer`.
    """
    layers = mtf.layers.Repeat(lambda: Residual(mesh), "layers:4", recomputed=recompute)
    variables = [*layers.trainable_variables]
    if with_head:
        head = head_of(mesh)
        variables += head.trainable_variables
    optimizer = make_optimizer(variables, 1e-3)

    def loss_of(examples):
        y = layers(examples["x"])
        if with_head:
            y = head(y)
        if is_longer:
            y = mtf.exp(y)
        return mtf.reduce_mean(mtf.square(y))

    @mtf.function(mesh=mesh, x="batch;d_model", step="")
    def train_step(x, step):
        loss, grads = mtf.optimizers.accumulate_gradients(
            loss_of, variables, {"x": x}, dim="batch", microbatches=microbatches
        )
        grads, _ = mtf.optimizers.clip_by_global_norm(grads, 1.0)
        optimizer.apply_gradients(grads, variables, step)
        return loss

    return train_step


def stages_of(names, max_axes, sets=None):
    """Yields the structures of pipelines with up to `max_axes` further axes."""
    stored = (names.variables, names.scanned, names.unsharded)
    flat = dict.fromkeys(s.axes for s in structures(names.sets(), max_axes, *stored))
    for pairs in flat:
        for dims in sets or names.sets_of_stages():
            axes = {STAGE: dims, **dict(pairs)}
            yield from structures_of_axes(axes, *stored, STAGE)


STACK_ARGUMENTS = (np.zeros([64, 16], "float32"), np.int32(0))


def drawn_measurements(draw: random.Random, peak: float) -> dict[str, Any]:
    """Returns measured matmuls of some sizes, and measured times of elements."""
    sizes = [(8, 16, 64), (64, 64, 16), (16, 16, 16)]
    return {
        "matmuls": tuple(
            MeasuredMatmul(
                1, m, n, k, "float32", 2 * m * n * k / (peak * draw.uniform(0.1, 1.2))
            )
            for m, n, k in sizes
        ),
        "element_counts": (64, 1024),
        "element_seconds": {
            name: [10 ** draw.uniform(-10, -8) for _ in range(2)]
            for name in ("elementwise", "gelu")
        },
    }


def drawn_hardware(draw: random.Random) -> Hardware:
    """Returns hardware with drawn rates of ops and links, some with measured local steps, and
    some with measured matmuls and elements.
    """
    local_steps = tuple(
        MeasuredLocalStep(
            {"batch": draw.choice((2, 16)), "d_ff": draw.choice((8, 64))},
            factor=draw.uniform(0.5, 2.0),
        )
        for _ in range(draw.choice((0, 3)))
    )
    peak = 10 ** draw.uniform(9, 13)
    measured: dict[str, Any] = {}
    if draw.random() < 0.5:
        measured = drawn_measurements(draw, peak)
    return Hardware(
        "drawn",
        {"float32": peak},
        memory_bandwidth=10 ** draw.uniform(8, 12),
        op_seconds=draw.choice((0.0, 1e-6)),
        overlaps=draw.random() < 0.5,
        fuses=draw.random() < 0.5,
        local_steps=local_steps,
        **measured,
        links=(
            Link("host", 2, 10 ** draw.uniform(8, 11), 1e-6),
            Link("network", None, 10 ** draw.uniform(7, 10), 1e-5),
        ),
    )
