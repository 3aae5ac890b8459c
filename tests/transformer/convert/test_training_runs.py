"""Folders of training runs: config.gin and a checkpoint, of converted and of trained models."""

from __future__ import annotations

import subprocess
import sys

import gin
import pytest
from safetensors.numpy import load_file

import meshtf as mtf
from tests.transformer.convert.references import NAMES, Reference, write
from tests.transformer.convert.test_hugging_face import values
from transformer.convert import read_model, read_run, write_run
from transformer.training.training_run import Trainer

BRANCH_OPS = mtf.Mesh("")


@pytest.fixture(autouse=True)
def without_settings():
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_read_as_it_was_written(name, tmp_path):
    write(Reference(name), tmp_path)
    model = read_model(tmp_path, BRANCH_OPS)
    write_run(model, tmp_path / "run")
    again = read_run(tmp_path / "run", mtf.Mesh("model:2", "vocab:model"))
    assert type(again) is type(model) and again.architecture == model.architecture
    assert values(again) == values(model)


def test_encoders_and_decoders_of_different_depth(tmp_path):
    write(Reference("t5"), tmp_path)
    model = read_model(tmp_path, BRANCH_OPS)
    other = type(model)(
        BRANCH_OPS,
        model.architecture,
        type(model.architecture)(**{**vars(model.architecture), "blocks": 1}),
    )
    write_run(other, tmp_path / "run")
    assert read_run(tmp_path / "run", BRANCH_OPS).decoder.architecture.blocks == 1


def test_optimizer_slots_are_not_converted(tmp_path):
    write(Reference("gpt2"), tmp_path)
    model = read_model(tmp_path, BRANCH_OPS)
    write_run(model, tmp_path / "run")
    trainer = Trainer(model, mtf.optimizers.AdamW)
    trainer.steps_done = 7
    model.variables[0].assign(model.variables[0] + 1.0)
    trainer.save(mtf.checkpoints.Saver(str(tmp_path / "run")))
    assert values(read_run(tmp_path / "run", BRANCH_OPS)) == values(model)


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(mtf.CheckpointError, match="no config.gin"):
        read_run(tmp_path, BRANCH_OPS)


def test_nothing_is_written_over(tmp_path):
    write(Reference("gpt2"), tmp_path)
    with pytest.raises(mtf.CheckpointError, match="is not overwritten"):
        write_run(read_model(tmp_path, BRANCH_OPS), tmp_path)


@pytest.mark.slow
def test_the_command_in_both_directions(tmp_path):
    write(Reference("t5_1_1"), tmp_path)
    convert(
        tmp_path, "--from=hf", f"--model_dir={tmp_path}", "--output=run", "--scanned"
    )
    assert (
        "Architecture.scanned = True" in (tmp_path / "run" / "config.gin").read_text()
    )
    convert(tmp_path, "--to=hf", "--model_dir=run", "--output=again")
    there, again = (
        load_file(folder / "model.safetensors")
        for folder in (tmp_path, tmp_path / "again")
    )
    assert {n: w.tobytes() for n, w in there.items()} == {
        n: w.tobytes() for n, w in again.items()
    }
    refused = convert(tmp_path, "--to=hf", "--model_dir=again", "--output=out", code=1)
    assert (
        "CheckpointError: again has no config.gin" in refused
        and "Traceback" not in refused
    )


def convert(folder, *flags, code=0):
    """Runs the command in a folder; returns what it says where errors are told."""
    done = subprocess.run(
        [sys.executable, "-m", "transformer.convert", *flags],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    return done.stderr
