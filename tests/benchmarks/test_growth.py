"""benchmarks.growth at tiny sizes: what is counted, and how it is told and drawn; no
times.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from benchmarks.growth import measure, theory
from benchmarks.growth.cases import GROUPS, PLAIN, Case
from benchmarks.growth.chart import WIDTH
from benchmarks.growth.panels import picture
from benchmarks.growth.planning import planning
from benchmarks.growth.worker import Runner
from benchmarks.step.cases.sizes import Config

TINY = Config(vocab=16, batch=1, length=8, d_model=8, d_ff=16, heads=2, layers=1)
TWO = {"devices": [1, 2], "layers": [1, 2], "experts": [4, 8], "tokens": [128, 256]}
TIMES = ("record_cpu", "plan_cpu", "explain_cpu")


class Here:
    """A case in this process, in the place of one of its own."""

    def __init__(self, case: Case, worker: str) -> None:
        assert worker == measure.WORKER
        self.case = Case.load(case.dump())
        assert self.case == case
        self.runner = Runner(case)

    def ask(self, request, argument):
        return getattr(self.runner, request)(argument)

    def stop(self):
        pass


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(measure, "Process", Here)
    monkeypatch.setattr(
        measure,
        "GROUPS",
        {
            panel: lambda sizes, make=make: make(sizes, TINY)
            for panel, make in GROUPS.items()
        },
    )


@pytest.mark.sampled(3, together="long runs")
@pytest.mark.parametrize("panel", TWO)
def test_a_panel_is_measured_described_and_drawn(panel, tiny):
    rows = measure.measure_panel(panel, TWO[panel], rounds=1, starts=1)
    for size in TWO[panel]:
        by_series = {row["series"]: row for row in rows if row["size"] == size}
        assert len(by_series) == len([row for row in rows if row["size"] == size]) >= 3
        assert (
            by_series[PLAIN]["first_ratio"] == by_series[PLAIN]["step_cpu_ratio"] == 1
        )
        assert all(
            row["step"] > 0 and row["traced"] > row["segments"]
            for row in by_series.values()
        )
        assert all(
            row["segments"] for row in by_series.values() if row["series"] != PLAIN
        )
    if panel == "layers":
        assert len({row["traced"] for row in rows if row["series"] == "scanned"}) == 1
        assert (
            len({row["traced"] for row in rows if row["series"] == "one by one"}) == 2
        )
    assert f"{max(TWO[panel])}  {PLAIN}" in measure.table(panel, rows)
    laws = [theory.fit_series(panel, column, rows) for column in theory.LAWS[panel]]
    assert theory.describe(panel, rows).count("off it by") == sum(map(len, laws))
    drawn = picture(panel, rows)
    points = sum(len(fit.points) for fits in laws for fit in fits.values())
    assert drawn.count("<circle") == points + len(
        {row["series"] for row in rows}
    )  # the legend
    for words in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text"):
        assert 0 < float(words.get("x")) < WIDTH


def test_of_several_starts_the_fastest_counts(monkeypatch):
    class Told:
        """A case whose first steps take 3, 1 and 2 seconds."""

        seconds_taken = iter((3.0, 1.0, 2.0, 9.0))

        def __init__(self, case: Case, worker: str) -> None:
            self.case = case

        def ask(self, request, argument):
            if request == "steps":
                return {"wall": [0.5], "cpu": [0.5]}
            first = next(self.seconds_taken)
            return {"first": first, "first_cpu": 2 * first, "outer": 7}

        def stop(self):
            pass

    monkeypatch.setattr(measure, "Process", Told)
    ((case, *_),) = GROUPS["tokens"]([128], TINY)
    (row,) = measure.measure_group([case], rounds=1, starts=3)
    assert (row["first"], row["first_cpu"], row["outer"]) == (1.0, 2.0, 7)


def test_segments_are_as_many_for_64_positions_as_for_8():
    by_size = {}
    for few_or_many in GROUPS["devices"]([8, 64], TINY):
        (case,) = (c for c in few_or_many if c.series == "one device, data x model")
        by_size[case.size] = Runner(case).first()
    few, many = by_size.values()
    assert few["segments"] == many["segments"] > 5
    assert many["traced"] - many["outer"] == few["traced"] - few["outer"]
    assert few["outer"] < many["outer"] < 8 * few["outer"]


def test_planning_does_not_grow_with_positions():
    rows = planning([8, 2048], 1, TINY)
    for series in ("data", "data x model"):
        few, many = (
            {k: v for k, v in row.items() if k not in ("size", *TIMES)}
            for row in rows
            if row["series"] == series
        )
        assert few == many and few["nodes"] > 50 and few["collectives"] > 5
    assert "points off it" in theory.describe("planning", rows)
    assert "2,048  data x model" in measure.table("planning", rows)


def test_curves_are_fitted_with_no_negative_factor():
    curve = theory.fit_curve(
        [(n, 3.0 + 2 * n * n) for n in (1, 2, 4, 8)], theory.SQUARE
    )
    assert curve.factors == pytest.approx((3, 0, 2), abs=1e-9)
    falling = theory.fit_curve([(1, 4.0), (2, 2.0), (4, 1.0)], theory.LINEAR)
    assert falling.factors[1] == 0 and falling.max_ratio([(4, 1.0)]) > 1
