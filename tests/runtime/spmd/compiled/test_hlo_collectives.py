"""Collectives read from the text of a scheduled program."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import meshtf as mtf
from meshtf.hardware import as_hardware
from meshtf.runtime.spmd.compiled.absent_devices import absent_devices
from meshtf.runtime.spmd.compiled.hlo_schedule import schedule_of_hlo

H100 = as_hardware("h100")


class Collective(NamedTuple):
    """What a test says of a collective."""

    kind: str
    received: float
    times: int
    overlapped: bool


def collectives_of_hlo(text: str) -> list[Collective]:
    return [
        Collective(x.kind, x.received, x.times, x.overlapped)
        for x in schedule_of_hlo(text, H100).collectives
    ]


HLO = """HloModule step, is_scheduled=true, num_partitions=8

%product (p0: f32[8,8]) -> f32[8,8] {
  %p0 = f32[8,8]{1,0} parameter(0)
  ROOT %dot.1 = f32[8,8]{1,0} dot(%p0, %p0), lhs_contracting_dims={1}
}

%sums (p1: f32[8]) -> f32[8] {
  ROOT %p1 = f32[8]{0} parameter(0)
}

%body (state: (s32[], bf16[4,2])) -> (s32[], bf16[4,2]) {
  %state = (s32[], bf16[4,2]{1,0}) parameter(0)
  %x = bf16[4,2]{1,0} get-tuple-element(%state), index=1
  %start.1 = ((bf16[4,2]{1,0}), (bf16[16,2])) all-gather-start(%x), replica_groups={{0,1,2,3}}
  %matmul = f32[8,8]{1,0} fusion(%y), kind=kOutput, calls=%product
  %done.1 = bf16[16,2]{1,0} all-gather-done(%start.1)
  ROOT %out = (s32[], bf16[4,2]{1,0}) tuple(%i, %x)
}

ENTRY %main (a: f32[8], b: (s32[], bf16[4,2])) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %b = (s32[], bf16[4,2]{1,0}) parameter(1)
  %loop = (s32[], bf16[4,2]) while(%b), body=%body, backend_config={"known_trip_count":{"n":"12"}}
  %start.2 = f32[8]{0} all-reduce-start(%a), replica_groups=[1,8]<=[8], to_apply=%add
  %cast = f32[8]{0} fusion(%a), kind=kLoop, calls=%sums
  %done.2 = f32[8]{0} all-reduce-done(%start.2)
  ROOT %scattered = f32[1]{0} reduce-scatter(%done.2), replica_groups={{0,1,2,3,4,5,6,7}}
}
"""


def test_kinds_bytes_iterations_and_what_runs_beside():
    assert collectives_of_hlo(HLO) == [
        Collective("all_gather", received=48, times=12, overlapped=True),
        Collective("all_reduce", received=56, times=1, overlapped=False),
        Collective("reduce_scatter", received=28, times=1, overlapped=False),
    ]


TPU_HLO = """HloModule step, is_scheduled=true, num_partitions=8

%start (p0: bf16[2,8]) -> (bf16[16,8], u32[]) {
  %p0 = bf16[2,8]{1,0} parameter(0)
  ROOT %gather.0 = bf16[16,8]{1,0:T(8,128)} all-gather(%p0), replica_groups={{0,1,2,3,4,5,6,7}}
}

%product (p1: f32[8,8]) -> f32[8,8] {
  ROOT %convolution.1 = f32[8,8]{1,0} convolution(%p1, %p1), dim_labels=bf_io->bf
}

%beside (p2: f32[8,8]) -> f32[8,8] {
  %gather.1 = bf16[16,8]{1,0:T(8,128)} all-gather(%p0), replica_groups={{0,1,2,3,4,5,6,7}}
  ROOT %fusion.1 = f32[8,8]{1,0} fusion(%p2), kind=kOutput, calls=%product
}

%done (p3: bf16[2,8]) -> bf16[16,8] {
  %gather.2 = bf16[16,8]{1,0:T(8,128)} all-gather(%p3), replica_groups={{0,1,2,3,4,5,6,7}}
  ROOT %custom-call.1 = bf16[16,8]{1,0} custom-call(%gather.2), custom_call_target="Done"
}

%body (state: (s32[], bf16[2,8])) -> (s32[], bf16[2,8]) {
  %a = bf16[2,8]{1,0} get-tuple-element(%state), index=1
  %async-collective-start.4 = (bf16[16,8], u32[]{:S(2)}) fusion(%a), kind=kCustom, calls=%start
  %fusion.2 = f32[8,8]{1,0} fusion(%b), kind=kCustom, calls=%beside
  %async-collective-done.4 = bf16[16,8]{1,0} fusion(%a), kind=kCustom, calls=%done
  ROOT %out = (s32[], bf16[2,8]{1,0}) tuple(%i, %a)
}

%condition (tested: (s32[], bf16[2,8])) -> pred[] {
  %constant.3 = s32[]{:T(128)} constant(12), metadata={op_name="loop"}
  %i.1 = s32[]{:T(128)} get-tuple-element(%tested), index=0
  ROOT %less = pred[]{:T(512)} compare(%i.1, %constant.3), direction=LT
}

ENTRY %main (b: (s32[], bf16[2,8])) -> (s32[], bf16[2,8]) {
  %b = (s32[], bf16[2,8]{1,0}) parameter(0)
  ROOT %loop = (s32[], bf16[2,8]) while(%b), condition=%condition, body=%body
}
"""


def test_collectives_of_tpus_are_chains_of_fusions():
    gather = Collective("all_gather", received=2 * 14 * 8, times=12, overlapped=True)
    assert collectives_of_hlo(TPU_HLO) == [gather]
    alone = TPU_HLO.replace(
        "%fusion.2 = f32[8,8]{1,0} fusion", "%copy.2 = f32[8,8] copy"
    )
    assert collectives_of_hlo(alone) == [gather._replace(overlapped=False)]
    unknown = TPU_HLO.replace("direction=LT", "direction=NE")
    assert collectives_of_hlo(unknown) == [gather._replace(times=1)]


@pytest.mark.parametrize(
    "groups, received",
    [
        ("mesh['data'=2,'model'=4] {'model'}", 2 * 32 * 3 / 4),
        ("mesh['data'=2,'model'=4] {'data','model'}", 2 * 32 * 7 / 8),
        ("mesh['axis_0'=8], device_ids=([4,2]T(1,0)) {'axis_0':(2)2}", 2 * 32 / 2),
        ("{}", 2 * 32 * 7 / 8),  # all devices
        ("[2,4]<=[8]", 2 * 32 * 3 / 4),
    ],
)
def test_groups_of_devices_in_all_forms(groups, received):
    text = HLO.replace("replica_groups=[1,8]<=[8]", f"replica_groups={groups}")
    (all_reduce,) = [x for x in collectives_of_hlo(text) if x.kind == "all_reduce"]
    assert all_reduce.received == received


def test_unknown_groups_are_refused_and_not_counted_as_nothing():
    text = HLO.replace("replica_groups=[1,8]<=[8]", "replica_groups=new<8>")
    with pytest.raises(mtf.PlanError, match="(?s)start.2.*not written as expected"):
        collectives_of_hlo(text)


def test_a_chain_of_fusions_has_its_collectives_in_fusions_of_its_last():
    inner = TPU_HLO.replace(
        "%done (p3",
        """%inner (p4: bf16[2,8]) -> bf16[16,8] {
  %gather.3 = bf16[16,8]{1,0} all-gather(%p4), replica_groups={{0,1,2,3,4,5,6,7}}
}

%done (p3""",
    ).replace(
        "%gather.2 = bf16[16,8]{1,0:T(8,128)} all-gather(%p3), replica_groups={{0,1,2,3,4,5,6,7}}",
        "%gather.2 = bf16[16,8]{1,0} fusion(%p3), kind=kCustom, calls=%inner",
    )
    assert collectives_of_hlo(inner) == collectives_of_hlo(TPU_HLO)
    nothing = inner.replace("all-gather(%p4)", "copy(%p4)")
    with pytest.raises(mtf.PlanError, match="async-collective-done.4"):
        collectives_of_hlo(nothing)


def test_a_compiled_program_receives_what_was_planned():
    mesh = mtf.Mesh(
        "data:4", "batch:data", variable_layout="d:data", devices="spmd:cpu"
    )
    w = mtf.Variable(mesh, "d:8;e:16", "normal", "w")

    @mtf.function(x="batch;d")
    def f(x):
        loss = mtf.reduce_mean(mtf.einsum([x, w], "batch;e"))
        w.assign(w - mtf.gradients([loss], [w])[0])
        return loss

    x = np.ones([8, 8], "float32")
    f(x)
    (module,) = f.lower(x).live_executable._modules.values()
    received: dict[str, float] = {}
    for collective in collectives_of_hlo(module.compiled.hlo):
        kind = collective.kind
        received[kind] = received.get(kind, 0) + collective.received * collective.times
    forecast = mtf.explain(f, x)
    for kind in ("all_gather", "reduce_scatter"):
        assert received[kind] == forecast.bytes_moved(kind) > 0


@pytest.mark.parametrize(
    "topology, message",
    [
        ("h10:8", r"(?s)unknown.*h100, v5e, v5p.*close to +h100.*h100:8"),
        ("v5e:7", "unknown"),
        ("h100", "unknown"),
        ("v5e:8", r"(?s)nothing here compiles.*libtpu.*'\.\[tpu\]'"),
        ("h100:8", r"(?s)nothing here compiles.*jax-cuda12-pjrt"),
    ],
)
def test_what_cannot_be_compiled_for_is_refused(topology, message):
    with pytest.raises(mtf.MeshError, match=message):
        absent_devices(topology)


def test_a_mesh_of_another_size_is_refused(monkeypatch):
    mesh = mtf.Mesh("data:4", "batch:data", devices="abstract")
    monkeypatch.setattr(
        "meshtf.runtime.spmd.compiled.compile_for.absent_devices", lambda _: [0] * 8
    )
    f = mtf.function(lambda x: x, mesh=mesh, x="batch")
    with pytest.raises(mtf.MeshError, match="(?s)'v5e:8' has 8 devices.*4 positions"):
        mtf.compile_for(f, np.ones(4, "float32"), topology="v5e:8")
