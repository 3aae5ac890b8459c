"""A run begins with the weights of a converted model, or of another run, on any mesh; and
what does not fit is named.
"""

from __future__ import annotations

import json
import re

import gin
import numpy as np
import pytest
from safetensors.numpy import save_file

import meshtf as mtf
from tests.transformer.convert.families.numpy_llama import SIZES, draw
from tests.transformer.small_runs import run_train, small
from transformer.convert import read_model, read_run, write_model, write_run
from transformer.training.run_record import VOCABULARY

CONFIG = {
    **SIZES,
    "vocab_size": 256,
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 90,
    "eos_token_id": 91,
}


@pytest.fixture(autouse=True)
def without_settings():
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture
def converted(tmp_path):
    """The folder of a converted Llama of bytes."""
    source = tmp_path / "llama"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(CONFIG))
    save_file(draw(CONFIG), source / "model.safetensors", {"format": "pt"})
    (source / "tokenizer.json").write_text("{}")
    write_run(read_model(source, mtf.Mesh("")), tmp_path / "converted")
    return tmp_path / "converted"


def settings(tmp_path, path, *more):
    """Returns the settings of a small run that begins with a checkpoint."""
    lines = small(tmp_path, f"train.init_checkpoint = '{path}'")
    return [*(line for line in lines if not line.startswith("Architecture")), *more]


def tune(capsys, tmp_path, folder, path, *more):
    """Runs `transformer.train` with the sizes of the converted model."""
    files = ["lm_stdlib.gin", str(tmp_path / "converted" / "config.gin")]
    return run_train(capsys, folder, settings(tmp_path, path, *more), files)


def held_out_loss(output):
    """Returns the loss before training."""
    return re.search(r"held out (?:before training|at step 2): loss ([\d.]+)", output)[
        1
    ]


def test_a_run_begins_with_a_converted_model_on_any_mesh(converted, tmp_path, capsys):
    model = read_run(converted, mtf.Mesh(""))
    losses = set()
    for k, (axes, devices) in enumerate(
        (
            ("", None),
            ("data:2; model:2", None),
            ("data:2", "spmd:cpu"),
        )
    ):
        mesh = [f"Mesh.axes = '{axes}'", f"Mesh.devices = {devices!r}", "steps = 1"]
        folder = tmp_path / f"tuned{k}"
        code, output, err = tune(capsys, tmp_path, folder, converted, *mesh)
        assert code == 0, err
        assert f"a new run with the weights of {converted}/step_00000000" in output
        losses.add(held_out_loss(output))
    assert len(losses) == 1
    tuned = read_run(folder, mtf.Mesh(""))
    # One step of a small rate from where the converted model was.
    for before, after in zip(model.variables, tuned.variables):
        np.testing.assert_allclose(after.numpy(), before.numpy(), atol=0.02)
    write_model(tuned, tmp_path / "back")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (90, 91)
    assert (tmp_path / "back" / "tokenizer.json").read_text() == "{}"


def test_a_run_that_goes_on_keeps_its_own_weights(converted, tmp_path, capsys):
    folder = tmp_path / "tuned"
    _, first, _ = tune(capsys, tmp_path, folder, converted)
    # The folder may even be gone.
    code, output, err = tune(capsys, tmp_path, folder, "nowhere", "steps = 3")
    assert code == 0, err
    assert "continuing from step 2" in output and "with the weights" not in output
    assert held_out_loss(output) != held_out_loss(first)
    # The checkpoint of a run, and a path of one, count as well; slots are not read.
    code, output, err = tune(capsys, tmp_path, tmp_path / "second", folder)
    assert code == 0 and "with the weights of" in output, err
    path = folder / "step_00000002"
    code, output, err = tune(capsys, tmp_path, tmp_path / "third", path)
    assert code == 0 and f"with the weights of {path}" in output, err


@pytest.mark.parametrize(
    "setting, message",
    [
        ("Architecture.blocks = 3", "only in the model:\n.*block_2/"),
        ("Architecture.blocks = 1", "only in the checkpoint:\n.*block_1/"),
        ("Architecture.d_ff = 24", r"\[16, 20\] saved, \[d_model:16 d_ff:24\] now"),
    ],
)
def test_other_variables_are_named(setting, message, converted, tmp_path, capsys):
    code, _, err = tune(capsys, tmp_path, tmp_path / "tuned", converted, setting)
    assert code == 1 and re.search(message, err), err
    assert not (tmp_path / "tuned").exists() and "Traceback" not in err


def test_paths_that_are_no_checkpoints(converted, tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    for path, message in (
        ("llama", "transformer.convert --from=hf --model_dir="),
        ("nowhere", "there is no checkpoint of meshtf"),
        ("notes", "there is no checkpoint in"),
    ):
        folder = tmp_path / "tuned"
        code, _, err = tune(capsys, tmp_path, folder, tmp_path / path)
        assert code == 1 and message in err, err
        assert not folder.exists() and "Traceback" not in err


def test_another_vocabulary_is_refused(converted, tmp_path, capsys):
    model = read_run(converted, mtf.Mesh(""))
    path = mtf.checkpoints.save(
        str(tmp_path / "other"),
        0,
        {v.name: v for v in model.variables},
        extra={VOCABULARY: "wordpiece-0123"},
    )
    code, _, err = tune(capsys, tmp_path, tmp_path / "tuned", path)
    assert code == 1 and "was trained with another vocabulary" in err, err


def test_a_run_in_the_folder_of_a_converted_model(converted, tmp_path, capsys):
    code, _, err = tune(capsys, tmp_path, converted, converted)
    assert code == 1 and "Traceback" not in err
    assert "has no variable of AdamW: it is of a converted model" in err
    assert "train.init_checkpoint" in err
