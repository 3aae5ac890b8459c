"""Paths that cannot be written are refused before any work is done, with the name of
the setting.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import gin
import pytest

from tests.transformer.small_runs import run_train, small
from transformer.data import DataError
from transformer.data.atomic_files import check_folder, check_writable

ROOT = Path(__file__).resolve().parents[3]
KNOWN = ("step_*", "config.gin")


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def read_only(monkeypatch, folder, number=errno.EROFS):
    """Lets nothing be made in a folder."""
    real = os.open

    def refuses(path, *args, **kwargs):
        if Path(path).parent == folder:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuses)


def test_what_can_be_written_leaves_nothing(tmp_path):
    check_writable(tmp_path / "a" / "b.txt", "--output")
    check_writable(tmp_path / "a" / "b", "--output", folder=True)
    check_writable(tmp_path, "--output", folder=True)
    (tmp_path / "there.txt").write_text("before")
    check_writable(tmp_path / "there.txt", "--output")
    assert [path.name for path in tmp_path.iterdir()] == ["there.txt"]


@pytest.mark.parametrize(
    "target, folder, says",
    [
        ("file", True, "file is no folder"),
        ("file/below", True, "file is no folder"),
        ("file/below/it.txt", False, "file is no folder"),
        ("dangling/x", True, "is no folder"),
        ("folder", False, "is a folder, where a file"),
    ],
)
def test_a_path_of_another_kind_is_refused(tmp_path, target, folder, says):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=f"--output=.*{says}(.|\n)*Name a") as error:
        check_writable(tmp_path / target, "--output", folder)
    assert str(tmp_path / target) in str(error.value)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_path_that_cannot_be_created_is_refused(tmp_path, monkeypatch, number):
    read_only(monkeypatch, tmp_path, number)
    for target in (tmp_path / "new" / "file.txt", tmp_path / "file.txt"):
        with pytest.raises(
            DataError, match=f"cannot be written: {tmp_path}: {os.strerror(number)}"
        ):
            check_writable(target, "--output")


@pytest.mark.skipif(
    not os.path.isdir("/proc/self"), reason="a file system that takes no files"
)
def test_a_place_that_takes_no_files():
    with pytest.raises(
        DataError, match="--model_dir=/proc/x cannot be written: /proc: "
    ):
        check_folder("/proc/x", "--model_dir", KNOWN)


def test_a_folder_of_something_else(tmp_path):
    check_folder(tmp_path / "new", "--model_dir", KNOWN)
    check_folder(tmp_path, "--model_dir", KNOWN)
    (tmp_path / ".hidden").write_text("x")
    check_folder(tmp_path, "--model_dir", KNOWN)
    for k in range(7):
        (tmp_path / f"photo_{k}.jpg").write_text("x")
    with pytest.raises(
        DataError,
        match="is not the folder of a run; it has photo_0.jpg, .* and 2 more.\n.*empty",
    ):
        check_folder(tmp_path, "--model_dir", KNOWN)
    (tmp_path / "step_00000003").mkdir()
    check_folder(tmp_path, "--model_dir", KNOWN)  # notes beside a run


@pytest.mark.parametrize(
    "kind, says",
    [
        ("file", "is no folder"),
        ("below a file", "is no folder"),
        ("occupied", "is not the folder of a run; it has x"),
        ("read only", "Read-only file system"),
    ],
)
def test_training_refuses_its_folder_at_the_start(
    tmp_path, capsys, monkeypatch, kind, says
):
    params = small(tmp_path)
    target = {"below a file": tmp_path / "it" / "run"}.get(kind, tmp_path / "it")
    if kind in ("file", "below a file"):
        (tmp_path / "it").write_text("x")
    elif kind == "occupied":
        target.mkdir()
        (target / "x.txt").write_text("x")
    else:
        read_only(monkeypatch, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run_train(capsys, target, params)
    assert code == 1 and not out and f"model_dir={target}" in err and says in err, err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "command",
    [
        ["transformer.train_vocabulary", "--output={}"],
        ["meshtf", "export", "--stablehlo={}"],
        ["meshtf", "explain", "--json={}"],
        ["transformer.tokenize", "--task=x", "--output={}"],
        ["transformer.convert", "--from=hf", "--model_dir=x", "--output={}"],
    ],
    ids=str,
)
def test_commands_ask_before_they_work(tmp_path, command):
    (tmp_path / "file").write_text("x")
    flags = [part.format(tmp_path / "file" / "x") for part in command]
    done = subprocess.run(
        [sys.executable, "-m", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1 and "file is no folder" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not done.stdout


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "command",
    [
        ["transformer.train_vocabulary", "--output=x"],
        ["examples.bert.make_tasks", "--output_dir=x"],
        ["transformer.convert", "--from=hf", "--model_dir=x", "--output=x"],
        [
            "examples.bert.create_pretraining_data",
            "--input_file=x",
            "--output_file=x",
            "--vocab_file=x",
        ],
    ],
    ids=str,
)
def test_programs_that_heed_no_gin_refuse_it(command):
    done = subprocess.run(
        [sys.executable, "-m", *command, "--gin_param=Mesh.axes='data:2'"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1 and "this program has no gin settings" in done.stderr
