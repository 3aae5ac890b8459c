"""The table of exposed communication."""

from __future__ import annotations

from meshtf.runtime.spmd.compiled.exposed_communication import exposed_communication
from meshtf.runtime.spmd.compiled.hlo_schedule import HloCollective, HloSchedule

GATHER = HloCollective(
    kind="all_gather",
    origin="lm/block",
    received=2**20,
    times=12,
    overlapped=False,
    seconds=1e-3,
    exposed_seconds=0.5e-3,
)


def test_rows_are_sums_by_kind_and_origin_with_the_most_exposed_first():
    hidden = GATHER._replace(times=3, overlapped=True, exposed_seconds=0.0)
    reduce = GATHER._replace(
        kind="all_reduce", origin="?", times=1, exposed_seconds=1.0
    )
    lines = exposed_communication(HloSchedule((GATHER, hidden, reduce), 2.5))
    assert lines == [
        "collective  from       MiB  exposed MiB     ms  exposed ms",
        "all_reduce  ?          1.0          1.0   1.00    1,000.00",
        "all_gather  lm/block  15.0         12.0  15.00        6.00",
        "communication 16.0 ms, of which 1,006.0 ms exposed; step modelled 2,500.0 ms",
    ]


def test_no_more_than_ten_rows():
    collectives = tuple(
        GATHER._replace(origin=f"layer_{i}", exposed_seconds=i * 1e-4)
        for i in range(12)
    )
    lines = exposed_communication(HloSchedule(collectives, 1.0))
    assert len(lines) == 1 + 10 + 1
    assert [line.split()[1] for line in lines[1:3]] == ["layer_11", "layer_10"]
    assert lines[10].split() == ["3", "others", "36.0", "36.0", "36.00", "3.60"]
    assert len(exposed_communication(HloSchedule(collectives[:10], 1.0))) == 12


def test_a_program_without_collectives_has_a_time():
    assert exposed_communication(HloSchedule((), 0.0123)) == ["step modelled 12.3 ms"]
