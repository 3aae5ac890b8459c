"""Exposed communication of small scheduled programs, and of one that XLA compiled."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.hardware import Hardware, Link, as_hardware
from meshtf.runtime.spmd.compiled.hlo_schedule import schedule_of_hlo
from tests.runtime.spmd.compiled.hlo_texts import (
    ADD,
    DONE,
    MATMUL,
    OP_NAME,
    PRODUCT,
    START,
    module,
)

MIB = 2**20
# A matmul of 4096 x 4096 x 4096 takes 2 ms, 64 MiB of memory 1 ms, 14 MiB on links 1 ms.
DEVICE = Hardware(
    "device",
    matmul_flops={"float32": 2 * 4096**3 / 2e-3},
    memory_bandwidth=64 * MIB / 1e-3,
    links=(Link("all", None, bandwidth=14 * MIB / 1e-3, latency=0.0),),
)
MS = 1e-3


def schedule(*lines: str, computations: str = PRODUCT, hardware: Hardware = DEVICE):
    return schedule_of_hlo(module("\n".join(lines), computations), hardware)


def test_a_collective_behind_a_product_is_hidden():
    result = schedule(START, MATMUL, DONE)
    (gather,) = result.collectives
    assert (gather.kind, gather.times, gather.overlapped) == ("all_gather", 1, True)
    assert gather.origin == "lm/block/wi"
    assert (gather.received, gather.exposed_bytes) == (14 * MIB, 0)
    assert gather.seconds == pytest.approx(1 * MS)
    assert gather.exposed_seconds == 0
    assert result.seconds == pytest.approx(2 * MS)
    assert result.communication_seconds == pytest.approx(1 * MS)


def test_a_collective_beside_nothing_is_exposed():
    result = schedule(MATMUL, START, DONE)
    (gather,) = result.collectives
    assert not gather.overlapped
    assert gather.exposed_bytes == gather.total_bytes == 14 * MIB
    assert result.exposed_seconds == pytest.approx(1 * MS)
    assert result.seconds == pytest.approx(3 * MS)


def test_a_copy_hides_time_but_no_bytes():
    # Of 192 MiB read and written 3 ms, behind which the gather of 1 ms ends.
    result = schedule(START, ADD, DONE)
    (gather,) = result.collectives
    assert gather.exposed_bytes == 14 * MIB
    assert gather.exposed_seconds == 0
    assert result.seconds == pytest.approx(3 * MS)


def test_a_synchronous_collective_is_exposed_with_what_is_before_it_on_the_links():
    reduce = "  %sum = f32[7,131072] all-reduce(%x), replica_groups={}, to_apply=%add"
    first, second = schedule(START, reduce, DONE).collectives
    # An all_reduce of 3.5 MiB receives 2 x 7/8 of them, behind the gather.
    assert first.kind == "all_reduce"
    assert first.received == pytest.approx(2 * 7 / 8 * 3.5 * MIB)
    assert first.seconds == pytest.approx(2 * 7 / 8 * 3.5 / 14 * MS)
    assert first.exposed_seconds == pytest.approx(1 * MS + first.seconds)
    assert (second.kind, second.exposed_seconds) == ("all_gather", 0)


def test_a_latency_counts_once_a_collective():
    link = Link("all", None, bandwidth=14 * MIB / 1e-3, latency=1e-3)
    hardware = Hardware("device", DEVICE.matmul_flops, 1e12, (link,))
    (gather,) = schedule(START, DONE, hardware=hardware).collectives
    # The first message, and one for each doubling of eight devices.
    assert gather.seconds == pytest.approx(1 * MS + 4 * MS)


LOOP = (
    "  %loop = (s32[], f32[512,1024], f32[4096,4096]) while(%init), condition=%test, "
    'body=%body, backend_config={"known_trip_count":{"n":"12"}}'
)


def body(*lines: str) -> str:
    return "\n".join(
        [
            PRODUCT,
            "%body (state: (s32[], f32[512,1024])) -> (s32[], f32[512,1024]) {",
            "  %state = (s32[], f32[512,1024], f32[4096,4096]) parameter(0)",
            "  %w = f32[512,1024]{1,0} get-tuple-element(%state), index=1",
            "  %x = f32[4096,4096]{1,0} get-tuple-element(%state), index=2",
            *lines,
            "  ROOT %out = (s32[], f32[512,1024], f32[4096,4096]) tuple(%i, %w, %x)",
            "}",
        ]
    )


def test_a_loop_runs_as_often_as_it_says():
    exposed = schedule(LOOP, computations=body(MATMUL, START, DONE))
    (gather,) = exposed.collectives
    assert (gather.times, gather.total_bytes) == (12, 12 * 14 * MIB)
    assert gather.exposed_bytes == gather.total_bytes
    assert exposed.exposed_seconds == pytest.approx(12 * MS)
    assert exposed.seconds == pytest.approx(12 * 3 * MS)
    hidden = schedule(LOOP, computations=body(START, MATMUL, DONE))
    assert hidden.collectives[0].exposed_bytes == hidden.exposed_seconds == 0
    assert hidden.seconds == pytest.approx(12 * 2 * MS)


def test_a_loop_hides_a_collective_if_it_has_a_product():
    (gather,) = schedule(START, LOOP, DONE, computations=body(MATMUL)).collectives
    assert gather.overlapped
    assert gather.exposed_seconds == 0
    (gather,) = schedule(START, LOOP, DONE, computations=body(ADD)).collectives
    assert not gather.overlapped
    assert gather.exposed_seconds == 0


def test_an_asynchronous_copy_runs_beside_products_and_delays_no_collective():
    start = "  %copy = (f32[4096,4096], f32[4096,4096], u32[]) copy-start(%x)"
    done = "  %copied = f32[4096,4096] copy-done(%copy)"
    assert schedule(start, MATMUL, done).seconds == pytest.approx(2 * MS)
    # 64 MiB are read, and written.
    assert schedule(start, done).seconds == pytest.approx(2 * MS)
    result = schedule(start, START, MATMUL, done, DONE)
    assert result.exposed_seconds == 0
    assert result.seconds == pytest.approx(2 * MS)


def test_a_copy_to_the_memory_of_a_core_is_read_once():
    arrays = "f32[4096,4096]{1,0:T(8,128)}, f32[4096,4096]{1,0:T(8,128)S(1)}"
    start = f"  %copy = ({arrays}, u32[]{{:S(2)}}) copy-start(%x)"
    done = "  %copied = f32[4096,4096]{1,0:T(8,128)S(1)} copy-done(%copy)"
    assert schedule(start, done).seconds == pytest.approx(1 * MS)


def test_an_async_start_has_its_collective_in_a_computation():
    scatter = """
%scatter (p1: f32[4096,1024]) -> f32[512,1024] {
  %p1 = f32[4096,1024]{1,0} parameter(0)
  ROOT %scattered = f32[512,1024]{1,0} reduce-scatter(%p1), replica_groups={{0,1,2,3,4,5,6,7}}
}
"""
    types = "((f32[4096,1024]), f32[512,1024])"
    lines = [
        f"  %start = {types} async-start(%x), calls=%scatter",
        f"  %update = {types} async-update(%start)",
        MATMUL,
        "  %done = f32[512,1024] async-done(%update)",
    ]
    (collective,) = schedule(*lines, computations=PRODUCT + scatter).collectives
    assert collective.kind == "reduce_scatter"
    assert (collective.received, collective.overlapped) == (14 * MIB, True)


def test_merged_collectives_without_a_name_have_that_of_what_reads_them():
    start = START.replace(f', metadata={{op_name="{OP_NAME}"}}', "")
    done = "  %done = f32[4096,1024] all-gather-done(%start)"
    view = f'  %view = f32[4194304] bitcast(%done), metadata={{op_name="{OP_NAME}"}}'
    assert schedule(start, done, view).collectives[0].origin == "lm/block/wi"
    assert schedule(start, done).collectives[0].origin == "?"


class Layer(mtf.Module):
    """tanh(x * w), with a weight from d to e, whose name is d again."""

    def __init__(self, mesh):
        super().__init__("layer")
        with self.scope():
            normal = mtf.layers.initializers.normal(1.0)
            self.w = mtf.Variable(mesh, "d:8;e:8", normal, name="w")

    def __call__(self, x):
        y = mtf.einsum([x, self.w], "batch;e")
        return mtf.rename(mtf.tanh(y), {"e": "d"})


def test_a_program_that_xla_compiled():
    mesh = mtf.Mesh(
        "data:4", "batch:data", variable_layout="d:data", devices="spmd:cpu"
    )
    layers = mtf.layers.Repeat(lambda: Layer(mesh), "layers:3", name="stack")

    @mtf.function(x="batch;d")
    def f(x):
        loss = mtf.reduce_mean(layers(x))
        w = layers.layer.w
        w.assign(w - mtf.gradients([loss], [w])[0])
        return loss

    x = np.ones([8, 8], "float32")
    f(x)
    (module,) = f.lower(x).live_executable._modules.values()
    result = schedule_of_hlo(module.compiled.hlo, as_hardware("h100"))
    forecast = mtf.explain(f, x)
    received: dict[str, float] = {}
    for collective in result.collectives:
        assert collective.origin != "?"
        assert collective.exposed_seconds <= collective.seconds * (1 + 1e-9)
        kind = collective.kind
        received[kind] = received.get(kind, 0) + collective.total_bytes
    for kind in ("all_gather", "reduce_scatter"):
        assert received[kind] == forecast.bytes_moved(kind) > 0
    assert result.seconds > result.communication_seconds > 0
    gathers = [x for x in result.collectives if x.kind == "all_gather"]
    assert {(x.origin, x.times) for x in gathers} == {
        ("stack/layer", 3),
        ("gradients/stack/layer", 3),
    }
