"""Links that collectives cross, by the devices that their text names."""

from __future__ import annotations

import pytest

from meshtf.hardware import Hardware, Link, as_hardware
from meshtf.runtime.spmd.compiled.hlo_collectives import transfers
from meshtf.runtime.spmd.compiled.hlo_costs import HloCosts
from meshtf.runtime.spmd.compiled.hlo_text import parse_hlo
from tests.runtime.spmd.compiled.hlo_texts import module

HOST = Link("host", 8, bandwidth=100.0, latency=0.0)
NETWORK = Link("network", None, bandwidth=1.0, latency=0.0)
DEVICE = Hardware("device", {"float32": 1.0}, 1.0, links=(HOST, NETWORK))


def seconds(opcode: str, groups: str, hardware: Hardware = DEVICE) -> float:
    """Returns the seconds of a collective whose result has 400 bytes."""
    text = module(f"  %y = f32[100] {opcode}(%w), {groups}").replace("=8\n", "=64\n")
    program = parse_hlo(text)
    collective = program.entry.by_name["y"]
    (transfer,) = transfers(collective, collective, program.entry, program)
    return HloCosts(program, hardware).transfer_seconds(transfer)


@pytest.mark.parametrize(
    "groups",
    [
        "replica_groups={{0,1,2,3},{4,5,6,7}}",
        "replica_groups=[16,4]<=[64]",
        "replica_groups=@mesh['data'=16,'model'=4] {'model'}",
        "replica_groups=mesh['a'=64] {'a':(16)4}",
    ],
)
def test_neighbours_share_a_host(groups):
    assert seconds("all-gather", groups) == pytest.approx(3 / 4 * 400 / 100)


@pytest.mark.parametrize(
    "groups",
    [
        "replica_groups={{0,16,32,48},{1,17,33,49}}",
        "replica_groups=[16,4]<=[4,16]T(1,0)",
        "replica_groups=mesh['data'=4,'model'=16] {'data'}",
        "replica_groups=mesh['a'=64] {'a':(1)4}",
        "replica_groups=mesh['b'=16,'a'=4], device_ids=([4,16]T(1,0)) {'a'}",
        "replica_groups=mesh['a'=64] {'a':(1)2,'a':(2)2}",
    ],
)
def test_devices_of_several_hosts_use_the_network(groups):
    assert seconds("all-gather", groups) == pytest.approx(3 / 4 * 400 / 1)


def test_pairs_cross_the_network_if_one_does():
    ring = "source_target_pairs={{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}}"
    assert seconds("collective-permute", ring) == pytest.approx(400 / 100)
    stages = "source_target_pairs={{0,8},{8,16}}"
    assert seconds("collective-permute", stages) == pytest.approx(400 / 1)


def test_a_group_of_one_takes_no_time():
    assert seconds("all-reduce", "replica_groups={{0},{1}}") == 0


def test_rates_are_those_of_the_profile():
    h100 = as_hardware("h100")
    link = h100.links[0]
    rounds = 1 + 2 * 3  # of an all_reduce among eight, in a tree
    expected = 2 * 7 / 8 * 400 / link.bandwidth + rounds * link.latency
    groups = "replica_groups=[8,8]<=[64]"
    assert seconds("all-reduce", groups, h100) == pytest.approx(expected)
