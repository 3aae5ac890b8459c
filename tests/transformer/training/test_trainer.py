"""The trainer: copies of it, and moving averages in its checkpoints."""

from __future__ import annotations

import copy
import json

import gin
import numpy as np
import pytest

import meshtf as mtf
from tests.transformer.small_runs import configured, run_train, small
from transformer.convert.training_runs import read_run
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.evaluation import Evaluation
from transformer.training.load_trained import Trained
from transformer.training.trainer import Trainer

SIZES = {"d_model": 16, "d_ff": 32, "heads": 2, "d_kv": 8, "blocks": 2, "vocab": 32}
LAYOUT = "batch:data; d_ff:model; heads:model"


@pytest.fixture(autouse=True)
def clean_gin():
    yield
    gin.clear_config()


def batches(number):
    """Returns batches of drawn tokens."""
    random = np.random.default_rng(0)
    tokens = random.integers(1, 32, [number, 4, 8]).astype("int32")
    return [{"tokens": t, "targets": t[:, ::-1]} for t in tokens]


def trainer_on(axes, devices=None, **settings):
    """Returns the trainer of a small model."""
    mesh = mtf.Mesh(axes, LAYOUT, devices=devices, optional_axes="data;model")
    model = LanguageModel(mesh, Architecture(**SIZES))
    return Trainer(model, mtf.optimizers.AdamW, **settings)


@pytest.mark.parametrize(
    "axes, devices", [("data:2;model:2", None), ("stage:2", "spmd:cpu")]
)
@pytest.mark.parametrize("skip", [False, True])
def test_a_copy_goes_on_as_its_trainer_does(axes, devices, skip):
    trainer = trainer_on(
        axes, devices, ema_decay=0.9, skip_nonfinite_steps=skip, microbatches=2
    )
    first, *others = batches(3)
    trainer.step(first)
    duplicate = copy.deepcopy(trainer)
    losses = [float(trainer.step(batch)[0]) for batch in others]
    assert duplicate.steps_done == 1
    assert [float(duplicate.step(batch)[0]) for batch in others] == losses
    for name, variable in trainer.variables.items():
        np.testing.assert_equal(duplicate.variables[name].numpy(), variable.numpy())


def test_averages_resume_on_another_mesh(tmp_path):
    data = batches(4)
    trainer = trainer_on("data:2;model:2", ema_decay=0.9)
    for batch in data[:2]:
        trainer.step(batch)
    trainer.save(mtf.checkpoints.Saver(str(tmp_path)))
    resumed = trainer_on("data:4", "spmd:cpu", ema_decay=0.9)
    assert resumed.restore(tmp_path)
    for name, variable in trainer.variables.items():
        np.testing.assert_equal(resumed.variables[name].numpy(), variable.numpy())
    for batch in data[2:]:
        trainer.step(batch)
        resumed.step(batch)
    for name, variable in trainer.variables.items():
        np.testing.assert_allclose(
            resumed.variables[name].numpy(), variable.numpy(), rtol=2e-3, atol=2e-4
        )


def test_a_run_is_evaluated_and_read_with_its_averages(tmp_path, capsys):
    run = tmp_path / "run"
    settings = ["train.ema_decay = 0.5", "AdamW.learning_rate = 0.05"]
    code, out, err = run_train(capsys, run, small(tmp_path, "steps = 3", *settings))
    assert code == 0, err
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    scores = [json.loads(line) for line in lines if "held_out_loss" in line]
    configured(run)
    trained = Trained.of(str(run))
    loss = Evaluation(trained.model, trained.data, 4, num_examples=4)()["loss"]
    np.testing.assert_allclose(loss, scores[-1]["held_out_loss"], rtol=1e-5)
    _, path = mtf.checkpoints.latest(str(run))
    converted = read_run(run, mtf.Mesh(""))
    weights = read_run(run, mtf.Mesh(""))
    own_values = {v.name: v for v in weights.variables}
    mtf.checkpoints.restore(path, own_values, partly=True)
    averages = {v.name: v.numpy() for v in trained.model.variables}
    differences = []
    for variable in converted.variables:
        np.testing.assert_equal(variable.numpy(), averages[variable.name])
        own_value = own_values[variable.name].numpy()
        differences.append(np.abs(variable.numpy() - own_value).max())
    assert max(differences) > 1e-3
