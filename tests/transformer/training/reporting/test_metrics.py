"""Metrics: complete lines, no step twice after a restart, and runs without TensorBoard."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from transformer.training.reporting import metrics


def write(folder, steps, first_step=0):
    with metrics.Metrics(folder, first_step, print_line=lambda line: None) as out:
        for step in steps:
            out.write(step, loss=10.0 / step)


def test_every_line_is_on_disk_before_the_next(tmp_path):
    with metrics.Metrics(tmp_path, print_line=lambda line: None) as out:
        out.write(1, loss=2.0, accuracy=0.5)
        text = (tmp_path / metrics.FILE).read_text()
        assert json.loads(text) == {"step": 1, "loss": 2.0, "accuracy": 0.5}


def test_a_resumed_run_writes_no_step_twice(tmp_path):
    write(tmp_path, range(1, 8))
    write(tmp_path, range(5, 10), first_step=4)
    assert [line["step"] for line in metrics.read(tmp_path)] == list(range(1, 10))
    assert [path.name for path in tmp_path.glob("*.new")] == []


def test_a_fresh_run_starts_a_fresh_file(tmp_path):
    write(tmp_path, range(1, 4))
    write(tmp_path, range(1, 3))
    assert [line["step"] for line in metrics.read(tmp_path)] == [1, 2]


def test_a_line_cut_off_by_a_crash_is_dropped(tmp_path):
    write(tmp_path, [1, 2])
    with open(tmp_path / metrics.FILE, "a", encoding="utf-8") as file:
        file.write('{"step": 3, "lo')
    assert [line["step"] for line in metrics.read(tmp_path)] == [1, 2]
    write(tmp_path, [3], first_step=2)
    assert [line["step"] for line in metrics.read(tmp_path)] == [1, 2, 3]


def test_what_is_not_finite_is_null(tmp_path):
    with metrics.Metrics(tmp_path, print_line=lambda line: None) as out:
        out.write(1, loss=float("nan"), norm=float("inf"))
    assert metrics.read(tmp_path) == [{"step": 1, "loss": None, "norm": None}]
    assert metrics.curve(tmp_path) == ""


def test_without_tensorboard_a_message_is_printed_once(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lines = []
    with metrics.Metrics(tmp_path, print_line=lines.append) as out:
        for step in (1, 2, 3):
            out.write(step, loss=1.0)
    assert len(lines) == 1 and "pip install tensorboard" in lines[0]
    assert len(metrics.read(tmp_path)) == 3 and not list(tmp_path.glob("events*"))


def test_events_hold_the_numbers(tmp_path):
    pytest.importorskip(
        "tensorboard", reason="events need TensorBoard; `make test` installs it"
    )
    write(tmp_path, [1, 2])
    events = [
        event
        for path in tmp_path.glob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
    ]
    seen = {
        (event.step, value.tag): float(tf.make_ndarray(value.tensor))
        for event in events
        for value in event.summary.value
    }
    assert seen == {(1, "loss"): 10.0, (2, "loss"): 5.0}


def test_progress_lines_have_rate_and_time_left():
    lines, times = [], iter([0.0, 10.0, 12.0])
    progress = metrics.Progress(
        last_step=100,
        tokens_per_step=50,
        print_line=lines.append,
        clock=lambda: next(times),
    )
    for step, loss, rate in ((1, 3.0, None), (11, 2.5, 50.0), (31, 2.0, 500.0)):
        speed = progress.speed(step)
        assert (speed and speed.tokens_per_second) == (rate and pytest.approx(rate))
        progress.report(step, loss, speed)
    assert lines == [
        "step   1/100  loss 3.0000",
        "step  11/100  loss 2.5000  1.0 s/step  50 tokens/s  1 min 29 s left",
        "step  31/100  loss 2.0000  100 ms/step  500 tokens/s  7 s left",
    ]


def test_progress_tells_the_share_of_the_peak_and_remarks():
    said = []
    progress = metrics.Progress(9, 50, print_line=said.append, clock=lambda: 0.0)
    speed = metrics.Speed(0.5, 100.0)
    progress.report(8, 2.0, speed, flops_utilization=0.431, remarks=["8 experts: ..."])
    assert said == [
        "step 8/9  loss 2.0000  500 ms/step  100 tokens/s  43.1% of peak FLOPs  0 s left",
        "     8 experts: ...",
    ]


def test_a_curve_goes_from_the_first_number_to_the_last(tmp_path):
    write(tmp_path, range(1, 200))
    assert metrics.curve(tmp_path, width=10).startswith("loss 10.0000 █")
    assert metrics.curve(tmp_path, width=10).endswith("▁ 0.0503")
    assert metrics.bars([1.0, 1.0, 1.0]) == "▁▁▁"
