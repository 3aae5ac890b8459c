"""Programs that run op by op: what a subclass gets to see, and what is stored."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.partition import build
from meshtf.runtime.placed.executor import schedule_for_devices
from meshtf.runtime.placed.op_by_op import OpByOpExecutor


class Observer(OpByOpExecutor):
    """Notes what runs; checks what is stored."""

    def __init__(self, mesh, segments):
        super().__init__(mesh, segments)
        self.titles = []

    def _after_op(self, compute):
        assert all(value in self.values for value in (*compute.ins, *compute.outs))
        self.titles.append(compute.title)

    def _after_read(self, read):
        self.titles.append(read.reads[0].name)

    def _update(self, write):
        super()._update(write)
        self.titles.append(write.title)

    def _call(self, segment):
        before = len(self.values)
        super()._call(segment)
        assert len(self.values) == before + len(segment.outs)


@pytest.mark.parametrize("axes", ["", "m:2"])
def test_each_op_is_seen_in_order_and_only_results_stay(axes):
    mesh = mtf.Mesh(axes, "d:m")
    count = mtf.Variable(mesh, "d:4", mtf.layers.initializers.ones, name="count")

    def step():
        x = mtf.exp(count + 1.0)
        count.assign(mtf.log(x))
        return mtf.reduce_sum(x)

    recorded = mtf.function(step, mesh=mesh).record_call((), {}).recorded
    program = build(recorded.nodes, recorded.results, mesh)
    executor = Observer(mesh, schedule_for_devices(program))
    ((loss, *_),) = executor.run(program.results)
    assert executor.titles == [
        "count",
        "add",
        "exp",
        "log",
        "reduce",
        "write",
    ]
    np.testing.assert_allclose(loss, 4 * np.exp(2.0), rtol=1e-6)
    np.testing.assert_allclose(count.numpy(), [2.0] * 4, rtol=1e-6)
