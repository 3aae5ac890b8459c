"""What a forecast announces is what crosses between devices, to the byte.

The count is TensorFlow's: sizes of the `_Recv`s in its partitioned graphs, on logical
devices that are treated as if each had memory of its own (see `benchmarks.spmd.device_traffic`).
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from benchmarks.spmd.device_traffic import collective_bytes, crossings, forecast_bytes
from benchmarks.step.layouts import LAYOUTS, SMALL, Case
from meshtf.runtime.placed.collectives import ring
from meshtf.runtime.placed.collectives.primitives import combine, send
from meshtf.runtime.tf_internals.switches import private

pytestmark = pytest.mark.skipif(
    not private("call_options"),
    reason="the public way calls a program within another, whose graphs are not told",
)


def agree(fn, *args):
    """Holds a forecast to the count, and returns the bytes of each move, of all devices
    together.
    """
    forecast = fn.explain(*args)
    results = crossings(fn, *args)
    assert collective_bytes(results) == forecast_bytes(forecast)
    assert (
        sum(c.bytes for c in results if c.is_collective)
        == forecast.bytes_moved() * forecast.positions
    )
    return collective_bytes(results)


def mlp(axes, layout, variable_layout=""):
    """A step of a network of two layers without biases, and a batch for it: nothing
    moves twice.
    """
    positions = np.prod([int(axis.split(":")[1]) for axis in axes.split(";")])
    mesh = mtf.Mesh(axes, layout, variable_layout, devices=f"separate:{positions}")
    first = mtf.layers.initializers.normal(0.5)
    w = [
        mtf.Variable(mesh, shape, first, name)
        for name, shape in {
            "w1": "d_model:16;d_ff:32",
            "w2": "d_ff:32;d_model:16",
        }.items()
    ]

    @mtf.function(mesh=mesh, x="batch;d_model")
    def step(x):
        y = mtf.einsum(
            [mtf.relu(mtf.einsum([x, w[0]], "batch;d_ff")), w[1]], "batch;d_model"
        )
        for v, grad in zip(w, mtf.gradients([mtf.reduce_sum(mtf.square(y))], w)):
            v.assign(v - 0.1 * grad)

    return step, np.ones((24, 16), "f")


ALL_REDUCE = 2  # times n (p - 1) / p for one device, n (p - 1) for all


@pytest.mark.parametrize(
    "axes, layout, expected",
    [
        ("data:4", "", {}),
        ("data:4", "batch:data", {"data": ALL_REDUCE * 3 * (2 * 16 * 32 * 4)}),
        ("model:4", "d_ff:model", {"model": ALL_REDUCE * 3 * (24 * 16 * 4)}),
        # three pieces of 512 numbers: one element more or less
        ("data:3", "batch:data", {"data": ALL_REDUCE * 2 * (2 * 16 * 32 * 4)}),
        (
            "data:2;model:2",
            "batch:data;d_ff:model",
            {
                "data": ALL_REDUCE * 1 * (2 * 16 * 16 * 4) * 2,
                "model": ALL_REDUCE * (12 * 16 * 4) * 2,
            },
        ),
    ],
)
def test_the_counts_of_two_layers_are_those_of_the_ring(axes, layout, expected):
    step, x = mlp(axes, layout)
    assert agree(step, x) == {
        ("all_reduce", axis): size for axis, size in expected.items()
    }


@pytest.mark.parametrize(
    "axes, layout, variable_layout",
    [
        ("data:4", "batch:data", "d_model:data"),
        ("rows:2;cols:2", "d_ff:rows;d_model:cols", ""),
        ("data:2;rows:2;cols:2", "batch:data;d_ff:rows;d_model:cols", ""),
        # Updates change the order of the axes: devices exchange shards.
        ("data:2;fsdp:4", "batch:data+fsdp", "d_model:fsdp+data"),
    ],
)
def test_two_layers_of_other_layouts(axes, layout, variable_layout):
    assert agree(*mlp(axes, layout, variable_layout))


def test_a_tensor_more_is_seen(monkeypatch):
    def wasteful(xs, devices, kind):
        first_shard, *rest = ring_all_reduce(xs, devices, kind)
        received = send(xs[1], devices[1], devices[0])
        return [combine("sum", first_shard, received, devices[0]), *rest]

    ring_all_reduce = ring.all_reduce
    step, x = mlp("data:2", "batch:data")
    expected = forecast_bytes(step.explain(x))["all_reduce", "data"]
    monkeypatch.setattr(ring, "all_reduce", wasteful)
    assert collective_bytes(crossings(step, x)) == {
        ("all_reduce", "data"): expected + 2 * 16 * 32 * 4
    }


def test_arguments_are_no_moves_and_results_stay():
    mesh = mtf.Mesh("data:4", "batch:data", devices="separate:4")
    double = mtf.function(lambda x: x + x, mesh=mesh, x="batch")
    results = crossings(double, np.ones(8, "f"))
    assert {c.kind for c in results} == {"load"}
    assert not any(c.is_collective for c in results) and not forecast_bytes(
        double.explain(np.ones(8, "f"))
    )


def test_a_program_that_has_run_is_not_counted():
    mesh = mtf.Mesh("data:2", "batch:data", devices="separate:2")
    double = mtf.function(lambda x: x + x, mesh=mesh, x="batch")
    double(np.ones(8, "f"))
    with pytest.raises(ValueError, match="make it anew"):
        crossings(double, np.ones(8, "f"))


# One kind of move at a time.

OPS = {
    "pad": lambda x: mtf.pad(x, "length", 3, 5),
    "slice": lambda x: mtf.slice(x, "length", 3, 16),
    "concat": lambda x: mtf.concat([x, x], "length"),
    "shift": lambda x: mtf.shift(x, "length", -9),
    "roll": lambda x: mtf.roll(x, "length", 4),
    "sort": lambda x: mtf.sort(mtf.flatten(x, "length;batch", "length"), "length"),
    "softmax": lambda x: mtf.softmax(x, "length"),
    "two told": lambda x: mtf.layer_norm(x, "length"),
    "max": lambda x: mtf.reduce_max(x, "length"),
    "integers": lambda x: mtf.reduce_sum(mtf.cast(x, "int32"), "length"),
    "bfloat16": lambda x: mtf.reduce_sum(mtf.cast(x, "bfloat16"), "length"),
    "all_to_all": lambda x: mtf.replicate(mtf.split(x, "batch", "seq")),
}


@pytest.mark.parametrize("axes", ["seq:4", "data:2;seq:4"])
@pytest.mark.parametrize("name", OPS)
def test_each_kind_of_move(name, axes):
    mesh = mtf.Mesh(
        axes, "length:seq", devices=f"separate:{4 if axes == 'seq:4' else 8}"
    )
    fn = mtf.function(
        lambda x: mtf.relu(OPS[name](mtf.relu(x))), mesh=mesh, x="batch;length"
    )
    assert agree(fn, np.ones((4, 24), "f"))


# The language model


def test_a_language_model_on_four_positions():
    step, args = Case("data:2; model:2", LAYOUTS["data and tensor, 4x2"].layout).build(
        SMALL, devices="separate:4"
    )
    kinds = {kind for kind, _ in agree(step, *args)}
    assert kinds == {"all_reduce", "gather_statistics"}


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_language_model(name):
    step, args = LAYOUTS[name].build(SMALL, devices="separate:8")
    assert agree(step, *args)
