"""benchmarks.regret: tiny models, drawn layouts, and scores of known times."""

from __future__ import annotations

import json

import pytest

from benchmarks.regret import candidates, measured
from benchmarks.regret.scores import score
from meshtf.hardware import Hardware, Link

TINY = {
    "vocab": 32,
    "d_model": 8,
    "d_ff": 16,
    "heads": 8,
    "d_kv": 2,
    "blocks": 1,
    "batch": 16,
    "length": 8,
}


def test_layouts_are_predicted_and_measured(tmp_path):
    link = Link("all", None, bandwidth=1e9, latency=1e-5)
    profile = Hardware("machine", {"float32": 1e10}, 1e10, (link,), overlaps=False)
    lines = []
    options = measured.Options(
        devices=None, layouts=2, calibrating=1, rounds=2, sizes=TINY
    )
    (scores,) = measured.run(
        ["lm"],
        options,
        profile=profile,
        json_path=str(tmp_path / "times.json"),
        report=lines.append,
    )
    assert scores.regret >= 1.0 and scores.regret_of_five == 1.0
    rows = json.loads((tmp_path / "times.json").read_text())["lm"]
    assert [row["judged"] for row in rows] == [True, True, False]
    assert all(row["measured"] > 0 and row["predicted"] > 0 for row in rows)
    assert all(row["wall_seconds"] > 0 for row in rows)
    assert any("the same layout twice" in line for line in lines)


@pytest.mark.parametrize("model", candidates.RULES)
def test_the_draw_has_different_layouts_and_no_excluded_one(model):
    drawn = candidates.draw(model, seed=1, count=12, is_legal=lambda _: True)
    assert len(set(drawn)) == 12
    others = candidates.draw(
        model, seed=1, count=12, is_legal=lambda _: True, excluded=drawn
    )
    assert not set(drawn) & set(others)


def test_regret_is_that_of_the_layout_predicted_fastest():
    scores = score([1.0, 2.0, 3.0], [2.0, 1.0, 4.0])
    assert scores.regret == 2.0
    assert scores.regret_of_five == 1.0
    assert scores.rank_correlation == pytest.approx(0.5)
    assert scores.worst_error == 1.0
