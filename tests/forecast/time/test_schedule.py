"""When the steps of a program run: overlap, loops and pipelines, against numbers by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import meshtf as mtf
from meshtf.forecast.time.durations import Durations, Sizes
from meshtf.forecast.time.schedule import Schedule
from meshtf.hardware import Hardware, Link
from meshtf.partition import build
from meshtf.pipeline.schedule import one_f_one_b
from meshtf.pipeline.simulator import simulate

# One FLOP a nanosecond, one byte received a nanosecond, and no other cost.
PLAIN = Hardware(
    "plain",
    {"float32": 1e9},
    memory_bandwidth=1e30,
    links=(Link("all", None, 1e9, 0.0),),
)
SERIAL = dataclasses.replace(PLAIN, overlaps=False)
NS = 1e-9


def seconds(fn, *arrays, axes="", layout="", hardware=PLAIN, **shapes):
    """Returns the predicted time of a call."""
    mesh = mtf.Mesh(axes, layout, devices="abstract")
    forecast = mtf.explain(
        mtf.function(fn, mesh=mesh, **shapes), *arrays, hardware=hardware
    )
    return forecast.time


def test_a_matmul_takes_its_flops_and_an_all_reduce_its_bytes():
    x, w = np.zeros([8, 16], "float32"), np.zeros([16, 4], "float32")

    def product(x, w):
        return mtf.einsum([x, w], "a;b")

    one = seconds(product, x, w, x="a;k", w="k;b")
    assert one.seconds == pytest.approx(2 * 8 * 16 * 4 * NS)
    assert one.peak_share == pytest.approx(1)
    time = seconds(product, x, w, axes="m:4", layout="k:m", x="a;k", w="k;b")
    received = 2 * 3 / 4 * (8 * 4 * 4)
    assert time.matmuls == pytest.approx(2 * 8 * 16 * 4 / 4 * NS)
    assert dict(time.collectives) == {"m": pytest.approx(received * NS)}
    assert time.seconds == pytest.approx(time.matmuls + received * NS)
    assert time.exposed == pytest.approx(received * NS)


def test_a_collective_hides_behind_what_does_not_need_it():
    x, w = np.zeros([64, 64], "float32"), np.zeros([64, 64], "float32")

    def two_products(x, w, v):
        summed = mtf.einsum([x, w], "a;b")  # a partial sum over k
        other = mtf.matmul(v, mtf.rename(v, {"c": "d", "d": "e"}))
        return mtf.relu(summed), other

    settings = {"axes": "m:4", "layout": "k:m", "x": "a;k", "w": "k;b", "v": "c;d"}
    big = np.zeros([512, 512], "float32")
    hidden = seconds(two_products, x, w, big, **settings)
    serial = seconds(two_products, x, w, big, hardware=SERIAL, **settings)
    collectives = sum(dict(serial.collectives).values())
    assert serial.seconds == pytest.approx(
        serial.matmuls + serial.other_ops + collectives
    )
    assert hidden.seconds < serial.seconds - 0.5 * collectives


def test_a_loop_takes_its_iterations():
    def repeated(x):
        def body(carry, _):
            transposed = mtf.rename(carry, {"a": "b", "b": "c"})
            return mtf.rename(mtf.matmul(carry, transposed), "c", "b"), None

        y, _ = mtf.scan(body, x, length=5, dim="layers")
        return y

    x = np.zeros([4, 4], "float32")
    five = seconds(repeated, x, x="a;b")
    assert five.matmul_flops == 5 * 2 * 4**3
    assert five.matmuls == pytest.approx(five.matmul_flops * NS)
    assert five.seconds >= five.matmuls


@pytest.mark.parametrize("microbatches", [2, 4, 8])
def test_a_pipeline_is_idle_as_its_simulator_says(microbatches):
    stages = 4
    mesh = mtf.Mesh(f"stage:{stages}", devices="abstract")
    layers = [
        mtf.layers.FeedForward(mesh, "d_model:64", "d_ff:256", use_bias=False)
        for _ in range(stages)
    ]
    pipe = mtf.pipeline.GPipe(layers, stages, microbatches, cost=[1.0] * stages)
    variables = [v for layer in layers for v in layer.trainable_variables]

    @mtf.function(mesh=mesh, x="batch;d_model")
    def step(x):
        loss = pipe.loss(lambda y: mtf.reduce_mean(mtf.square(y)), x)
        return mtf.gradients([loss], variables)

    x = np.zeros([64 * microbatches, 64], "float32")
    time = mtf.explain(step, x, hardware=PLAIN).time
    ideal = simulate(one_f_one_b(stages, microbatches), forward=1, backward=2)
    assert time.bubble == pytest.approx(ideal.bubble, abs=0.02)


def contracted(x, w):
    """A sum over a sharded dimension."""
    return mtf.softmax(mtf.einsum([x, w], "a;b"), "b")


def normalized(x, w):
    """Shards that exchange statistics."""
    return mtf.softmax(x, "k") + mtf.reduce_max(w, "b")


def shifted(x, w):
    """Shards that exchange their ends."""
    return mtf.shift(x, "a", 3) + mtf.reduce_sum(w, "b")


@pytest.mark.parametrize("function", [contracted, normalized, shifted])
def test_arrays_of_sizes_give_what_each_mesh_gives(function):
    x, w = np.zeros([64, 64], "float32"), np.zeros([64, 32], "float32")

    def program(axes):
        mesh = mtf.Mesh(axes, "k:m; a:d", devices="abstract")
        fn = mtf.function(function, mesh=mesh, x="a;k", w="k;b")
        recorded = fn.record_call((x, w), {}).recorded
        return build(recorded.nodes, recorded.results, mesh)

    planned = program("d:4;m:4")
    sizes = {"d": np.array([2, 4, 8]), "m": np.array([8, 4, 2])}
    strides = {"d": sizes["m"], "m": np.array([1, 1, 1])}
    many = Schedule(
        planned, Durations(PLAIN, planned.mesh, Sizes(sizes, strides=strides))
    ).end
    for i in range(3):
        own = program(f"d:{sizes['d'][i]};m:{sizes['m'][i]}")
        assert many[i] == pytest.approx(Schedule(own, Durations(PLAIN, own.mesh)).end)
