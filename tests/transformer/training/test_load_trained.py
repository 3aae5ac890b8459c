"""Loading trained models: a damaged checkpoint is a warning, and the previous one is
loaded.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import gin
import numpy as np
import pytest

import meshtf as mtf
from transformer.cli import command_line
from transformer.training import training_run
from transformer.training.load_trained import Trained
from transformer.training.reporting import run_report

SMALL = [
    "Architecture.d_model = 16",
    "Architecture.d_ff = 32",
    "Architecture.blocks = 1",
    "ByteText.length = 16",
]
DATA = "variables.data-00000-of-00001"


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    """A folder with the checkpoints of steps 1 and 2, and what the first holds."""
    folder = tmp_path_factory.mktemp("runs") / "lm"
    gin.clear_config()
    command_line.configure(["lm_stdlib.gin"], SMALL)
    trainer, saver = training_run.Run().trainer, mtf.checkpoints.Saver(str(folder))
    values = {}
    for step in (1, 2):
        trainer.steps_done = step
        for v in trainer.model.variables:
            v.assign(v + 1.0)
        values[step] = {v.name: v.numpy() for v in trainer.model.variables}
        trainer.save(saver)
    run_report.write_config(str(folder))
    gin.clear_config()
    return folder, values


@pytest.fixture
def run(two_steps, tmp_path):
    shutil.copytree(two_steps[0], tmp_path / "lm")
    return tmp_path / "lm", two_steps[1]


def flip(path: Path) -> None:
    """Turns over a bit of each byte: most of a checkpoint is the optimizer's, and is
    not read.
    """
    path.write_bytes(bytes(b ^ 1 for b in path.read_bytes()))


def configured(folder):
    command_line.configure([f"{folder}/config.gin"], [])
    return Trained.of(str(folder))


def check(trained, step, values):
    assert trained.step == step
    for v in trained.model.variables:
        np.testing.assert_array_equal(v.numpy(), values[step][v.name])


def test_the_newest_is_taken(run, recwarn):
    check(configured(run[0]), 2, run[1])
    assert not [
        w for w in recwarn if issubclass(w.category, mtf.checkpoints.CheckpointWarning)
    ]


@pytest.mark.parametrize("file", [DATA, "variables.index", "manifest.json"])
def test_a_damaged_checkpoint_warns_and_the_previous_one_is_loaded(run, file):
    folder, values = run
    flip(folder / "step_00000002" / file)
    with pytest.warns(
        mtf.checkpoints.CheckpointWarning, match=rf"step_00000002(.|\n)*{file}"
    ):
        check(configured(folder), 1, values)


def test_only_damaged_checkpoints_are_an_error(run):
    for step in (1, 2):
        flip(run[0] / f"step_0000000{step}" / DATA)
    with (
        pytest.warns(mtf.checkpoints.CheckpointWarning),
        pytest.raises(mtf.checkpoints.DamageError, match=DATA),
    ):
        configured(run[0])
