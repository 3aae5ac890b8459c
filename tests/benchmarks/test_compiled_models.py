"""What `benchmarks.spmd.compiled` compiles and prints."""

from __future__ import annotations

import pytest

import meshtf as mtf
from benchmarks.spmd.compiled import (
    CASES,
    HEADER,
    Row,
    compile_case,
    line,
    selected,
)
from meshtf.runtime.spmd import CompiledProgram
from meshtf.runtime.spmd.compiled.hlo_collectives import HloCollective


def test_every_model_has_rows():
    models = {case.model for case in CASES}
    small = {"gpt2", "gpt2_xl", "bert_base", "t5_base"}
    assert models == {*small, "llama2_7b", "llama2_70b"}
    for case in CASES:
        devices = int(case.topology.partition(":")[2])
        sizes = [int(axis.partition(":")[2]) for axis in case.axes.split(";")]
        assert devices == sizes[0] * sum(sizes[1:] or [1])
    names = ["llama2_7b", "gpt2"]
    assert selected(names) == [case for case in CASES if case.model in names]
    assert selected([]) == CASES
    with pytest.raises(SystemExit, match="--only=gpt3: no row"):
        selected(["gpt3"])


def test_a_line_has_all_columns():
    row = Row(
        CASES[1],
        planned_peak=3 * 2**20,
        compiled_peak=2 * 2**20,
        planned_bytes=2**20,
        compiled_bytes=2**20,
        overlapped=0.25,
    )
    assert line(row) == (
        "| gpt2 | FSDP | h100:8, data:8 | 64 | 3 | 2 | 1.50 | 1 | 1 | 1.00 | 25% |"
    )
    assert line(row._replace(planned_bytes=0, compiled_bytes=0)).split("|")[10] == " - "
    assert {text.count("|") for text in [*HEADER.split("\n"), line(row)]} == {12}


@pytest.mark.parametrize("case", [CASES[1], CASES[-1]], ids=lambda case: case.model)
def test_a_row_is_of_the_planned_and_of_the_compiled_step(monkeypatch, case):
    def compile_for(self, topology):
        compiled = CompiledProgram(
            topology=topology,
            mesh=self.trainer.model.mesh,
            peak=10,
            arguments=5,
            collectives=(
                HloCollective("all_gather", received=6, times=2, overlapped=True),
                HloCollective("all_reduce", received=4, times=1, overlapped=False),
            ),
            seconds=2.0,
            hlo="",
        )
        return mtf.CompiledForecast(compiled, self.explain())

    monkeypatch.setattr("benchmarks.spmd.compiled.Run.compile_for", compile_for)
    row = compile_case(case)
    assert (row.compiled_peak, row.compiled_bytes, row.overlapped) == (10, 16, 0.75)
    # Each device has a part of the weights, and does not fill its 80 GB.
    assert 2**30 < row.planned_peak < 70 * 2**30
    assert row.planned_bytes > 2**29
