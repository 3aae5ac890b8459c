"""What a folder has besides tensors is there again after the way back: special ids, settings
of generation, the tokenizer, names of classes, and the data type.
"""

from __future__ import annotations

import json

import gin
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import meshtf as mtf
from tests.transformer.convert.references import Reference, write
from transformer.convert import read_model, read_run, write_model, write_run
from transformer.training.weights.read_weights import copy_source_files

MESH = mtf.Mesh("")
FILES = {
    "generation_config.json": b'{"temperature": 0.6, "eos_token_id": [91, 92]}',
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
}
SETTINGS = {"bos_token_id": 90, "eos_token_id": [91, 92], "temperature": 0.6}


@pytest.fixture(autouse=True)
def without_settings():
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture
def source(tmp_path):
    """A folder with a small Llama of bfloat16, its tokenizer and its settings."""
    folder = tmp_path / "in"
    folder.mkdir()
    reference = Reference("llama")
    write(reference, folder)
    change(folder, **SETTINGS)
    save_as(folder, ml_dtypes.bfloat16, reference.weights)
    for name, contents in FILES.items():
        (folder / name).write_bytes(contents)
    (folder / "README.md").write_text("not of the model")
    return folder


def change(folder, **settings):
    """Replaces settings of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def save_as(folder, dtype, weights):
    tensors = {name: x.astype(dtype) for name, x in weights.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def check_carried(folder):
    """Checks that a folder has the settings and files of `source`."""
    config = json.loads((folder / "config.json").read_text())
    assert {name: config[name] for name in SETTINGS} == SETTINGS
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert not (folder / "README.md").exists()
    return config


def test_in_python_there_and_back(source, tmp_path):
    assert write_model(read_model(source, MESH), tmp_path / "out") == "bfloat16"
    assert check_carried(tmp_path / "out")["dtype"] == "bfloat16"
    before, after = (
        load_file(folder / "model.safetensors") for folder in (source, tmp_path / "out")
    )
    assert {n: (x.dtype, x.tobytes()) for n, x in after.items()} == {
        n: (x.dtype, x.tobytes()) for n, x in before.items()
    }


def test_by_the_folder_of_a_run(source, tmp_path):
    write_run(read_model(source, MESH), tmp_path / "run")
    write_model(read_run(tmp_path / "run", MESH), tmp_path / "out")
    check_carried(tmp_path / "out")


def test_values_that_changed_are_not_rounded(source, tmp_path):
    model = read_model(source, MESH)
    model.variables[0].assign(model.variables[0] + 1e-3)
    assert write_model(model, tmp_path / "out") == "float32"
    assert check_carried(tmp_path / "out")["dtype"] == "float32"
    again = read_model(tmp_path / "out", MESH)
    assert again.variables[0].numpy().tobytes() == model.variables[0].numpy().tobytes()


def test_files_of_several_data_types_become_float32(source, tmp_path):
    tensors = load_file(source / "model.safetensors")
    name = "model.norm.weight"
    tensors[name] = np.full(16, 1.0 + 2**-20, np.float32)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    assert write_model(read_model(source, MESH), tmp_path / "out") == "float32"
    assert load_file(tmp_path / "out" / "model.safetensors")[name][0] == 1.0 + 2**-20


def test_names_of_classes(tmp_path):
    write(Reference("bert_classifier"), tmp_path)
    names = {
        "id2label": {"0": "no", "1": "maybe", "2": "yes"},
        "label2id": {"no": 0, "maybe": 1, "yes": 2},
    }
    change(tmp_path, **names)
    write_model(read_model(tmp_path, MESH), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {name: config[name] for name in names} == names


def test_a_run_that_begins_with_a_checkpoint_has_them_too(source, tmp_path):
    write_run(read_model(source, MESH), tmp_path / "run")
    copy_source_files(str(tmp_path / "run" / "step_00000000"), str(tmp_path / "tuned"))
    names = {path.name for path in (tmp_path / "tuned" / "hugging_face").iterdir()}
    assert names == {*FILES, "config.json"}
    copy_source_files(str(tmp_path / "absent" / "step_1"), str(tmp_path / "other"))
    copy_source_files(None, str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()
