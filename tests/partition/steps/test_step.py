"""What a new kind of step costs: one class, and one entry for each runtime. It is then run,
exported and forecast like any other.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import meshtf as mtf
from meshtf.graph import Op, apply
from meshtf.mesh import Placement
from meshtf.partition import CollectiveStep, Value
from meshtf.partition.build import PLANNERS
from meshtf.runtime.placed.executor import PlacedExecutor
from meshtf.runtime.spmd.module import stablehlo_collectives
from meshtf.runtime.spmd.module.replica import Replica

X = np.arange(24, dtype="float32").reshape(3, 8)
SWAPPED = np.concatenate([X[:, 4:], X[:, :4]], axis=1)


class Swap(Op):
    """Exchanges the halves of a dimension."""

    def output_specs(self, x):
        return (x,)

    def gradient(self, dy, y, x):
        return (apply(Swap(), dy),)


@dataclasses.dataclass(frozen=True, eq=False)
class SwapStep(CollectiveStep):
    """Each of two devices receives the other's shard."""

    axes: tuple[str, ...]
    src: Value
    out: Value
    node: object

    kind = "swap"
    computes_node = True

    def received(self, sizes):
        return sizes.local_bytes(self.src)


def plan_swap(builder, node):
    placement = Placement("d:halves")
    src = builder.reshard_to(node.inputs[0], placement, node)
    out = Value(src.spec, placement)
    builder.steps.append(SwapStep(("halves",), src, out, node))
    builder.add_tensor(node.outputs[0], {placement: out}, placement)


def swap_on_tensorflow(executor, step):
    shards = executor.values[step.src]
    swapped = list(shards)
    for first, second in executor.mesh.groups(*step.axes):
        swapped[first] = executor._send(shards[second], second, first)
        swapped[second] = executor._send(shards[first], first, second)
    return [swapped]


def swap_on_xla(executor, step):
    pairs = [
        pair
        for first, second in executor.mesh.groups(*step.axes)
        for pair in ((first, second), (second, first))
    ]
    return [stablehlo_collectives.permute(executor.values[step.src], pairs)]


@pytest.fixture
def swaps(monkeypatch):
    """The new step is known to the planner and to both runtimes."""
    monkeypatch.setitem(PLANNERS, Swap, plan_swap)
    monkeypatch.setitem(PlacedExecutor.table, SwapStep, swap_on_tensorflow)
    monkeypatch.setitem(Replica.table, SwapStep, swap_on_xla)


def recorded(devices=None):
    mesh = mtf.Mesh("halves:2; data:2", "d:halves; batch:data", devices=devices)
    w = mtf.Variable(mesh, "d:8", "ones", name="w")

    @mtf.function(x="batch; d")
    def f(x):
        y = apply(Swap(), x) * w
        (dw,) = mtf.gradients([mtf.reduce_sum(y)], [w])
        return apply(Swap(), x), dw

    return f


@pytest.mark.parametrize("devices", [None, "spmd"])
def test_a_new_collective_runs(swaps, devices):
    y, dw = recorded(devices)(X)
    np.testing.assert_array_equal(y.numpy(), SWAPPED)
    np.testing.assert_array_equal(dw.numpy(), SWAPPED.sum(axis=0))


def test_a_new_collective_runs_in_loops(swaps):
    mesh = mtf.Mesh("halves:2; data:2", "d:halves; batch:data")

    @mtf.function(x="batch; d", mesh=mesh)
    def f(x):
        def body(carry, _):
            return apply(Swap(), carry) + x, mtf.reduce_sum(carry)

        return mtf.scan(body, x, mtf.range(mesh, "steps:3"), dim="steps")

    y, _ = f(X)
    np.testing.assert_array_equal(y.numpy(), 2 * X + 2 * SWAPPED)


def test_a_new_collective_is_exported(swaps):
    export = mtf.export(recorded(), X)
    assert b"collective_permute" in export.module


def test_a_new_collective_is_forecast(swaps):
    forecast = mtf.explain(recorded(), X, hardware="h100")
    swapped = [c for op in forecast.ops for c in op.collectives if c.kind == "swap"]
    # The shard of a device: half of the columns of float32.
    assert [c.bytes for c in swapped] == [3 * 4 * 4] * 2
    assert all(c.seconds > 0 for c in swapped)
    assert "swap halves" in str(forecast)
    assert dict(forecast.time.collectives)["halves"] > 0


def test_a_step_waits_for_what_exists():
    @mtf.function(x="batch; d")
    def f(x):
        return mtf.exp(mtf.exp(x))

    x = mtf.asarray(mtf.Mesh("data:2", "batch:data"), X, "batch; d")
    program = f.lower(x).program
    other, step = Value(None, ()), program.steps[-1]
    waiting = dataclasses.replace(step, waits_for=(other, *step.inputs))
    assert waiting.dependencies == (*step.inputs, other, *step.inputs)
    assert waiting.waiting_for(step.inputs).waits_for == step.inputs
    assert step.waiting_for(()) is step
