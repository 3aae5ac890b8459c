"""Exact resume: a run that died and goes on has the losses, bit for bit, of one that
did not.

Usage:

    python -m pytest tests/transformer/training/test_resume.py --kills=30       # kill
    -9, in processes
"""

from __future__ import annotations

import functools
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import gin
import numpy as np
import pytest

import meshtf as mtf
from meshtf.checkpoints import CheckpointWarning, write
from transformer.data import ByteText, Corpus
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training import trainer, training_run
from transformer.training.interrupts import SAVED_EXIT_CODE
from transformer.training.reporting import metrics

ROOT = Path(__file__).resolve().parents[3]
MODEL = functools.partial(
    LanguageModel,
    architecture=Architecture(
        d_model=16, d_ff=32, heads=2, d_kv=8, blocks=1, dropout=0.1
    ),
)


class Killed(BaseException):
    """The process dies here."""


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    gin.bind_parameter("sample.max_new_tokens", 3)
    yield
    gin.clear_config()


def text():
    letters = np.random.default_rng(0).integers(97, 123, 3000).astype(np.uint8)
    return ByteText(
        lambda: Corpus("letters", letters[:-400], letters[-400:], ("a",), ("b",)), 16
    )


def train(folder, steps=12, axes="data:2", layout="batch:data", **settings):
    training_run.train(
        str(folder),
        **{
            "data": text(),
            "mesh": mtf.Mesh(axes, layout),
            "model": MODEL,
            "batch_size": 8,
            "steps": steps,
            "report_every": 1,
            "save_every": 4,
            "evaluate_every": 4,
        }
        | settings,
    )


def metric(folder, name="loss"):
    lines = [
        (line["step"], line[name]) for line in metrics.read(folder) if name in line
    ]
    assert len(dict(lines)) == len(lines), "a step twice"
    return dict(lines)


def last(folder, step=12):
    with open(
        Path(folder, f"step_{step:08d}", "variables.data-00000-of-00001"), "rb"
    ) as file:
        return file.read()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    gin.bind_parameter("sample.max_new_tokens", 3)
    folder = tmp_path_factory.mktemp("undisturbed")
    train(folder)
    return folder


def dies_in(monkeypatch, owner, name, count):
    """Lets the call of that number die."""
    real, calls = getattr(owner, name), iter(range(1000))

    def call(*args, **kwargs):
        if next(calls) == count:
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "owner, name, count, beside",
    [
        (trainer.Trainer, "step", 0, False),
        (trainer.Trainer, "step", 6, True),
        (write, "_write_files", 1, False),
        (write, "prune", 2, False),
        (metrics.Metrics, "_append", 9, False),
    ],
)
def test_a_killed_run_resumes_bit_for_bit(
    owner, name, count, beside, tmp_path, monkeypatch, undisturbed
):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        dies_in(patch, owner, name, count)
        train(tmp_path, async_save=beside)
    train(tmp_path, async_save=beside)
    for kind in ("loss", "gradient_norm", "held_out_loss"):
        before, after = metric(undisturbed, kind), metric(tmp_path, kind)
        assert {step: after[step] for step in before} == before
        assert kind != "loss" or list(after) == list(range(1, 13))
    assert last(tmp_path) == last(undisturbed)


@pytest.mark.sampled(2, together="resumed runs")
def test_a_damaged_checkpoint_only_costs_time(tmp_path, undisturbed):
    train(tmp_path, steps=8)
    data = tmp_path / "step_00000008" / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-1] + b"\x07")
    with pytest.warns(
        CheckpointWarning, match="step_00000008 is damaged: variables.data"
    ):
        train(tmp_path)
    assert metric(tmp_path) == metric(undisturbed)
    assert last(tmp_path) == last(undisturbed)


@pytest.mark.sampled(2, together="resumed runs")
def test_the_position_in_the_data_survives_another_batch(tmp_path):
    train(tmp_path, steps=4)
    run = training_run.Run(text(), mtf.Mesh(""), MODEL, batch_size=16, steps=6)
    run.trainer.restore(tmp_path)
    assert (run.trainer.steps_done, run.trainer.examples_done) == (4, 32)
    seen = []
    run.data.batches = lambda batch, start=0, real=run.data.batches: (
        seen.append(start),
        real(batch, start),
    )[1]
    run.train(str(tmp_path))
    assert seen == [32]
    run.trainer.restore(tmp_path)
    assert run.trainer.examples_done == 32 + 2 * 16


@pytest.mark.sampled(2, together="resumed runs")
def test_another_seed_is_a_warning(tmp_path):
    train(tmp_path, steps=1)
    with pytest.warns(
        CheckpointWarning, match="saved with seed 0, and this run has seed 5"
    ):
        train(tmp_path, steps=2, seed=5)


def test_a_second_run_in_a_folder_is_refused(tmp_path):
    with mtf.checkpoints.only_run(str(tmp_path)):
        with pytest.raises(
            mtf.CheckpointError, match=f"in use by process {os.getpid()}"
        ):
            train(tmp_path)


def test_a_full_disk_does_not_stop_a_run(tmp_path, undisturbed, monkeypatch):
    real, hard = trainer.Trainer.step, resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard[1]))

    def step(self, batch):
        limited(
            {5: 400, 10: hard[0]}.get(
                self.steps_done, resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            )
        )  # from step 6 to step 10 nothing grows beyond 400 B
        return real(self, batch)

    monkeypatch.setattr(trainer.Trainer, "step", step)
    try:
        with pytest.warns(CheckpointWarning, match="step 8 could not be written"):
            train(tmp_path)
    finally:
        limited(hard[0])
    assert metric(tmp_path) == metric(undisturbed)  # the file has its lines, if later
    assert last(tmp_path) == last(undisturbed)


# In processes of their own


def command(folder, steps, *more):
    params = [
        f"data.text_files.pattern='{folder.parent}/*.txt'",
        "ByteText.corpus=@data.text_files",
        "ByteText.length=16",
        "Architecture.d_model=16",
        "Architecture.d_ff=32",
        "Architecture.heads=2",
        "Architecture.d_kv=8",
        "Architecture.blocks=1",
        "Architecture.dropout=0.1",
        f"train.steps={steps}",
        "train.batch_size=8",
        "train.report_every=1",
        "train.save_every=5",
        "train.deterministic=True",
        "train.async_save=True",
        "sample.max_new_tokens=1",
        *more,
    ]
    return [
        sys.executable,
        "-m",
        "transformer.train",
        f"--model_dir={folder}",
        *(f"--gin_param={p}" for p in params),
    ]


def start(folder, steps):
    return subprocess.Popen(
        command(folder, steps),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.STDOUT,
        env={"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ,
    )


def wait_for_step(folder, step, process):
    def reached():
        there = (folder / metrics.FILE).exists()
        return there and any(line["step"] >= step for line in metrics.read(folder))

    while process.poll() is None and not reached():
        time.sleep(0.02)


@pytest.fixture
def corpus(tmp_path):
    for k in range(4):
        letters = np.random.default_rng(k).integers(97, 123, 4000).astype(np.uint8)
        (tmp_path / f"{k}.txt").write_bytes(letters.tobytes())
    return tmp_path


@pytest.mark.sampled(2, together="resumed runs")
@pytest.mark.slow
def test_sigterm_saves_and_the_same_command_resumes(corpus):
    process = start(corpus / "run", 4000)
    wait_for_step(corpus / "run", 3, process)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == SAVED_EXIT_CODE == 75, output
    step = mtf.checkpoints.latest(str(corpus / "run"))[0]
    assert f"continues from step {step}" in output and step >= 3
    assert list(metric(corpus / "run"))[-1] == step
    again = start(corpus / "run", step + 2)
    output = again.communicate(timeout=300)[0]
    assert again.returncode == 0 and f"continuing from step {step}" in output, output
    assert list(metric(corpus / "run")) == list(range(1, step + 3))


@pytest.mark.sampled(3, together="several processes")
@pytest.mark.slow
def test_killed_runs_go_on_bit_for_bit(corpus, request, seed, capsys):
    steps, kills, draw = 200, request.config.getoption("--kills"), random.Random(seed)
    process = start(corpus / "whole", steps)
    output = process.communicate(timeout=600)[0]
    assert process.returncode == 0, output
    died, runs = 0, 0
    while died < kills:
        folder = corpus / f"killed_{runs}"
        runs += 1
        for at in sorted(draw.sample(range(1, steps), min(3, kills - died))):
            process = start(folder, steps)
            wait_for_step(folder, at, process)
            time.sleep(draw.random() * 0.05)
            process.kill()
            process.communicate()
            died += process.returncode == -signal.SIGKILL
        process = start(folder, steps)
        output = process.communicate(timeout=600)[0]
        assert process.returncode == 0, output
        assert metric(folder) == metric(corpus / "whole")
        assert (
            metric(folder, "held_out_loss")[steps]
            == metric(corpus / "whole", "held_out_loss")[steps]
        )
        assert last(folder, steps) == last(corpus / "whole", steps)
    with capsys.disabled():
        print(f"\n{died} kills in {runs} runs, all as if nothing had been")
