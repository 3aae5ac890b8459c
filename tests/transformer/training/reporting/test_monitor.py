"""Monitoring of a run: shares of time, the status file, profiles."""

from __future__ import annotations

import json

import gin
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.hardware import Hardware, Link
from tests.transformer.small_runs import run_train, small
from transformer.data import ByteText, Corpus
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training import training_run
from transformer.training.reporting import metrics
from transformer.training.reporting.monitor import Monitor


class Clock:
    """Seconds that go on when told so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def status(folder):
    return json.loads((folder / "status.json").read_text())


def test_shares_are_those_of_the_time_since_the_report_before(tmp_path):
    clock = Clock()

    def slow():
        for batch in range(4):
            clock.now += 1.0  # each batch is a second late
            yield batch

    with Monitor(tmp_path, steps=10, flops=6e9, peak_flops=4e9, clock=clock) as monitor:
        assert status(tmp_path)["state"] == "starting"
        results = []
        for step, _ in enumerate(monitor.batches(slow()), 1):
            clock.now += 3.0  # and a step takes three
            results.append(monitor.report(step, loss=1.5))
        assert results[0] == {}
        assert (
            results[1:]
            == [{"input_share": 0.25, "model_flops_utilization": 6e9 / 4.0 / 4e9}] * 3
        )
        values = status(tmp_path)
        assert (values["state"], values["step"], values["steps"], values["loss"]) == (
            "training",
            4,
            10,
            1.5,
        )
        assert values["seconds_left"] == 6 * 4.0
    assert status(tmp_path)["state"] == "done" and status(tmp_path)["step"] == 4


@pytest.mark.parametrize(
    "error, state",
    [(KeyboardInterrupt(), "interrupted"), (ValueError("bad luck"), "failed")],
)
def test_the_status_file_has_interrupts_and_errors(tmp_path, error, state):
    with pytest.raises(type(error)), Monitor(tmp_path, steps=1):
        raise error
    assert status(tmp_path)["state"] == state
    assert status(tmp_path).get("error") == (
        "ValueError: bad luck" if state == "failed" else None
    )


def test_what_is_no_finite_number_is_null(tmp_path):
    with Monitor(tmp_path, steps=2) as monitor:
        monitor.report(1, loss=float("nan"), gradient_norm=float("inf"))
        assert "NaN" not in (tmp_path / "status.json").read_text()
        assert (
            status(tmp_path)["loss"] is None
            and status(tmp_path)["gradient_norm"] is None
        )


def test_the_status_file_names_lost_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(
        mtf, "lost_workers", lambda: ["worker 1 at h:4000: it does not answer"]
    )
    with pytest.raises(tf.errors.UnavailableError), Monitor(tmp_path, steps=1):
        raise tf.errors.UnavailableError(None, None, "recvmsg: reset\nand much more")
    assert status(tmp_path)["error"] == "lost: worker 1 at h:4000: it does not answer"


@pytest.mark.slow
def test_a_run_is_watched_and_profiled(tmp_path, capsys):
    gin.clear_config()
    gin.bind_parameter("sample.max_new_tokens", 3)
    letters = np.frombuffer(b"def f(x):\n  return x + 1\n" * 60, np.uint8)
    data = ByteText(
        lambda: Corpus("letters", letters[:-400], letters[-400:], ("a",), ("b",)), 16
    )
    small = Architecture(d_model=16, d_ff=32, heads=2, d_kv=8, blocks=1)
    training_run.train(
        str(tmp_path),
        data=data,
        mesh=mtf.Mesh("data:2", "batch:data"),
        model=lambda mesh: LanguageModel(mesh, small),
        batch_size=8,
        steps=6,
        report_every=2,
        profile=(3, 4),
        peak_flops=1e12,
    )
    gin.clear_config()
    lines = metrics.read(tmp_path)
    shares = [line for line in lines if "input_share" in line]
    assert len(shares) == 3 and all(0 <= line["input_share"] <= 1 for line in shares)
    assert all(0 < line["model_flops_utilization"] < 1 for line in shares)
    (profile,) = [line for line in lines if "profiled_compute_seconds" in line]
    assert profile["step"] == 4 and profile["profiled_compute_seconds"] > 0
    assert list(tmp_path.rglob("*.xplane.pb"))
    assert "profile of steps 3 to 4: compute" in capsys.readouterr().out
    assert status(tmp_path)["state"] == "done"


def test_predicted_and_measured_steps_are_reported(tmp_path, capsys):
    profile = tmp_path / "machine.json"
    link = Link("all", None, bandwidth=1e9, latency=1e-5)
    Hardware("machine", {"float32": 1e10}, 1e10, (link,)).save(profile)
    settings = small(tmp_path, "steps = 3", f"train.hardware = '{profile}'")
    code, out, _ = run_train(capsys, tmp_path / "run", settings)
    assert code == 0 and "predicted for machine" in out
    assert "a step took" in out and "MiB predicted" in out
    lines = metrics.read(tmp_path / "run")
    (line, *_) = (x for x in lines if "predicted_step_seconds" in x)
    assert line["step_seconds"] > 0 and line["predicted_step_seconds"] > 0
    assert line["predicted_memory"] > 0
    values = status(tmp_path / "run")
    assert values["predicted_memory"] == line["predicted_memory"]


def test_without_a_profile_nothing_is_compared(tmp_path):
    monitor = Monitor(tmp_path, steps=2)
    monitor.report(1)
    monitor.report(2)
    assert monitor.comparison() == ""
