"""Folders that are no checkpoints of ours are named, with the command that converts them, and
are not called damaged.
"""

from __future__ import annotations

import shutil

import pytest

import meshtf as mtf

DAMAGED = mtf.checkpoints.DamageError
FILES = {
    "google": ("bert_config.json", "vocab.txt", "bert_model.ckpt.index"),
    "hf": ("config.json", "model.safetensors"),
    "hf_shards": ("config.json", "model.safetensors.index.json"),
    "pickled": ("config.json", "pytorch_model.bin"),
    "tensorflow": (
        "checkpoint",
        "model.ckpt-7.index",
        "model.ckpt-7.data-00000-of-00001",
    ),
    "notes": ("notes.txt",),
    "empty": (),
}
SAYS = {
    "google": "transformer.convert --from=google_bert --model_dir={folder} ",
    "hf": "transformer.convert --from=hf --model_dir={folder} ",
    "hf_shards": "transformer.convert --from=hf --model_dir={folder} ",
    "pickled": "safe_serialization=True",
    "tensorflow": "model.ckpt-7 is a checkpoint of TensorFlow",
}


@pytest.fixture
def variable():
    return mtf.Variable(mtf.Mesh(""), "d:2", mtf.layers.initializers.zeros, name="w")


def make(tmp_path, kind):
    """Makes a folder with the files of a kind."""
    folder = tmp_path / kind
    folder.mkdir()
    for name in FILES[kind]:
        (folder / name).write_text("x")
    return folder


@pytest.mark.parametrize("kind", FILES)
def test_a_folder_of_another_kind(kind, tmp_path, variable):
    folder = make(tmp_path, kind)
    expected = SAYS.get(kind, "there is no checkpoint in {folder}")
    for read in (
        lambda: mtf.checkpoints.restore(str(folder), {"w": variable}),
        lambda: mtf.checkpoints.Manifest.read(str(folder)),
    ):
        with pytest.raises(mtf.CheckpointError) as caught:
            read()
        text = str(caught.value)
        assert expected.format(folder=folder) in text
        assert not isinstance(caught.value, DAMAGED)
        assert "damaged" not in text and "delete" not in text


@pytest.mark.parametrize("kind", SAYS)
def test_the_newest_of_such_a_folder(kind, tmp_path, variable):
    folder = make(tmp_path, kind)
    with pytest.raises(mtf.CheckpointError) as caught:
        mtf.checkpoints.restore_latest(str(folder), {"w": variable})
    assert SAYS[kind].format(folder=folder) in str(caught.value)
    # With a checkpoint in it, it is a folder of checkpoints.
    mtf.checkpoints.save(str(folder), 3, {"w": variable})
    assert mtf.checkpoints.restore_latest(str(folder), {"w": variable}).step == 3


def test_paths_of_files_in_it(tmp_path):
    google = make(tmp_path, "google")
    for name in ("bert_model.ckpt", "bert_model.ckpt.index"):
        text = mtf.checkpoints.foreign_format(str(google / name))
        assert SAYS["google"].format(folder=google) in text
        with pytest.raises(mtf.CheckpointError, match="--from=google_bert"):
            mtf.checkpoints.Manifest.read(str(google / name))
    assert mtf.checkpoints.foreign_format(str(google / "other")) == ""
    hf = make(tmp_path, "hf")
    text = mtf.checkpoints.foreign_format(str(hf / "model.safetensors"))
    assert SAYS["hf"].format(folder=hf) in text


def test_files_and_saved_models(tmp_path):
    (tmp_path / "weights.pt").write_text("x")
    with pytest.raises(mtf.CheckpointError, match="weights.pt is a file, but a") as e:
        mtf.checkpoints.Manifest.read(str(tmp_path / "weights.pt"))
    assert not isinstance(e.value, DAMAGED)
    (tmp_path / "export" / "variables").mkdir(parents=True)
    (tmp_path / "export" / "saved_model.pb").write_text("x")
    (tmp_path / "export" / "variables" / "variables.index").write_text("x")
    with pytest.raises(mtf.CheckpointError, match="variables of a SavedModel") as e:
        mtf.checkpoints.Manifest.read(str(tmp_path / "export" / "variables"))
    assert not isinstance(e.value, DAMAGED)


def test_our_own_folders(tmp_path, variable):
    path = mtf.checkpoints.save(str(tmp_path), 7, {"w": variable})
    assert mtf.checkpoints.foreign_format(path) == ""
    assert mtf.checkpoints.foreign_format(str(tmp_path)) == ""
    (tmp_path / "step_00000007" / "manifest.json").unlink()
    with pytest.raises(DAMAGED, match="manifest.json"):
        mtf.checkpoints.restore(path, {"w": variable})
    # By its files also under another name.
    moved = shutil.move(path, tmp_path / "mine")
    with pytest.raises(DAMAGED, match="manifest.json"):
        mtf.checkpoints.restore(str(moved), {"w": variable})
