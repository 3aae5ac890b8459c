"""What `benchmarks.spmd` and `benchmarks.spmd.compiled` print."""

from __future__ import annotations

import math

import gin
import pytest

import meshtf as mtf
from benchmarks.harness.report import Row, table
from benchmarks.spmd import compiled
from benchmarks.spmd.compiled import (
    CASES,
    HEADER,
    OTHERS,
    compile_case,
    line,
    selected,
)
from benchmarks.spmd.ratios import live_ratios
from meshtf.runtime.spmd import CompiledProgram
from meshtf.runtime.spmd.compiled.hlo_schedule import HloCollective, HloSchedule


@pytest.fixture(autouse=True)
def clean_gin():
    yield
    gin.clear_config()


def row(name, seconds, **start):
    """Returns measurements of a case."""
    start = {"compile": seconds, "first": 2 * seconds, "memory": 100.0, **start}
    start |= {"compile_cpu": seconds, "first_cpu": seconds}
    steps = {"wall": [seconds] * 3, "cpu": [seconds] * 3}
    return Row(name, "lm", losses=[2.0, 1.0], step=steps, start=start)


def test_ratios_are_those_of_the_live_mesh_to_all_others():
    rows = [
        row("JAX", 2.0, device_memory=40.0),
        row("meshtf, live SPMD", 3.0, device_memory=50.0),
        row("meshtf, 8 logical devices", 1.0),
    ]
    assert live_ratios(rows).split("\n") == [
        "meshtf, live SPMD / JAX: step 1.50, compile 1.50, first 1.50, "
        "memory of a device 1.25",
        "meshtf, live SPMD / meshtf, 8 logical devices: step 3.00, compile 3.00, "
        "first 3.00",
    ]
    assert "compile" in table(rows, start_time="compile")


def test_every_model_has_rows():
    models = {case.model for case in CASES}
    small = {"gpt2", "gpt2_xl", "bert_base", "t5_base"}
    assert models == {*small, "llama2_7b", "llama2_70b", "gpt3_175b"}
    for case in [*CASES, *OTHERS]:
        devices = int(case.topology.partition(":")[2])
        sizes = [int(axis.partition(":")[2]) for axis in case.axes.split(";")]
        assert devices == math.prod(sizes)
    names = ["llama2_7b", "gpt2"]
    assert selected(names) == [case for case in CASES if case.model in names]
    assert selected([]) == CASES
    assert selected(["others"]) == OTHERS
    with pytest.raises(SystemExit, match="--models=gpt3: no row"):
        selected(["gpt3"])


def test_a_line_has_all_columns():
    row = compiled.Row(
        CASES[1],
        planned_peak=3 * 2**20,
        compiled_peak=2 * 2**20,
        planned_bytes=2**20,
        compiled_bytes=2**20,
        overlapped=0.25,
        communication=2e-3,
        exposed=0.5e-3,
    )
    assert line(row) == (
        "| gpt2 | FSDP | h100:8, data:8 | 64 | 3 | 2 | 1.50 | 1 | 1 | 1.00 | 25% | 2.0 | 0.5 |"
    )
    assert line(row._replace(planned_bytes=0, compiled_bytes=0)).split("|")[10] == " - "
    assert {text.count("|") for text in [*HEADER.split("\n"), line(row)]} == {14}


LARGEST = next(case for case in CASES if case.model == "llama2_70b")


@pytest.mark.parametrize("case", [CASES[1], LARGEST], ids=lambda case: case.model)
def test_a_row_is_of_the_planned_and_of_the_compiled_step(monkeypatch, case):
    gather = HloCollective("all_gather", "a", 6, 2, True, 3e-3, 1e-3)
    reduce = HloCollective("all_reduce", "b", 4, 1, False, 2e-3, 2e-3)

    def compile_for(self, topology):
        program = CompiledProgram(
            topology=topology,
            mesh=self.trainer.model.mesh,
            peak=10,
            arguments=5,
            schedule=HloSchedule((gather, reduce), seconds=1.0),
            seconds=2.0,
            hlo="",
        )
        return mtf.CompiledForecast(program, self.explain())

    monkeypatch.setattr("benchmarks.spmd.compiled.Run.compile_for", compile_for)
    row = compile_case(case)
    assert (row.compiled_peak, row.compiled_bytes, row.overlapped) == (10, 16, 0.75)
    assert (row.communication, row.exposed) == pytest.approx((8e-3, 4e-3))
    # Each device has a part of the weights, and does not fill its 80 GB.
    assert 2**30 < row.planned_peak < 70 * 2**30
    assert row.planned_bytes > 2**29
