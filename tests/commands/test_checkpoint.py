"""python -m meshtf checkpoint: what it prints, writes, and leaves with."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import meshtf as mtf
from meshtf.checkpoints.inspection import report
from meshtf.commands import checkpoint as command
from tests.checkpoints.models import variables


def run(*words):
    with flagsaver.flagsaver():
        return command.main(flags.FLAGS(["checkpoint", *map(str, words)]))


@pytest.fixture
def folder(tmp_path):
    model_state = variables("fsdp of 8", seed=1)
    model_state.pop("half")
    mtf.checkpoints.save(str(tmp_path / "run"), 100, model_state, extra={"epoch": 3})
    model_state["table"].assign(
        model_state["table"].numpy() + np.float32(0.5) * (np.arange(16) == 3)[:, None]
    )
    model_state["new"] = model_state.pop("steps")
    model_state["first/wi"] = mtf.Variable(
        mtf.Mesh(""), "d_model:8; d_ff:4", mtf.layers.initializers.normal(), "w"
    )
    mtf.checkpoints.save(str(tmp_path / "run"), 200, model_state)
    return tmp_path / "run"


def test_a_checkpoint_is_told(folder, tmp_path, capsys):
    assert (
        run("inspect", folder / "step_00000100", f"--json={tmp_path}/report.json") == 0
    )
    said = capsys.readouterr().out
    assert re.search(r"step +100\nextra +epoch 3\n", said)
    assert re.search(r"second/wi +d_model:8; d_ff:12 +bfloat16 +8 +192\n", said)
    assert re.search(r"adam/table/\w+ +vocab:16; d_model:8 +float32 +8 +512\n", said)
    assert re.search(r"variables.index +[\d,]+  [0-9a-f]{8}  as it was written\n", said)
    report_data = json.loads((tmp_path / "report.json").read_text())
    assert report_data["step"] == 100 and {
        t["name"] for t in report_data["tensors"]
    } >= {
        "table",
        "steps",
    }


def test_a_folder_of_a_run_is_its_newest(folder, capsys):
    assert run("inspect", folder) == 0
    assert "step_00000200\n" in capsys.readouterr().out


def flip_bit(path, byte):
    text = bytearray(path.read_bytes())
    text[byte] ^= 4
    path.write_bytes(text)


def test_damage_is_told(folder, capsys):
    flip_bit(folder / "step_00000200" / "variables.data-00000-of-00001", 70)
    assert run("inspect", folder) == 1
    said = capsys.readouterr().out
    assert re.search(r"data-00000-of-00001 .*DAMAGED: its slice of table", said)
    assert run("diff", folder / "step_00000100", folder) == 1
    assert "DamageError" in capsys.readouterr().err


def test_an_index_that_is_damaged_says_nothing_of_other_files(folder, capsys):
    flip_bit(folder / "step_00000200" / "variables.index", 20)
    assert run("inspect", folder) == 1
    said = capsys.readouterr().out
    assert re.search(r"variables.index .*DAMAGED: its sum is", said)
    assert re.search(
        r"data-00000-of-00001 .*unknown: variables.index, which has its sums", said
    )


def test_two_checkpoints_are_compared(folder, capsys):
    assert run("diff", folder / "step_00000100", folder / "step_00000200") == 1
    said = capsys.readouterr().out
    for pattern in (
        r"only in the first:\n  steps\n",
        r"only in the second:\n  new\n",
        r"first/wi: \[d_model:8 d_ff:12\] in the first, \[d_model:8 d_ff:4\] in the second",
        r"table +0\.5 +8 of 128\n",
        r"\d tensors are equal",
    ):
        assert re.search(pattern, said), pattern
    assert run("diff", folder, folder / "step_00000200") == 0
    assert "differ" not in capsys.readouterr().out


def test_numbers_are_compared_some_at_a_time(folder, monkeypatch):
    paths = folder / "step_00000100", folder / "step_00000200"
    report_data = report.compare(*map(str, paths))
    monkeypatch.setattr(report, "MAX_CHUNK_BYTES", 12)
    assert report.compare(*map(str, paths)) == report_data


@pytest.mark.parametrize(
    "words, code, text",
    [
        (("inspect",), 2, "FOLDER"),
        (("look", "x"), 2, "FOLDER"),
        (("inspect", "absent"), 2, "there is no folder absent"),
    ],
)
def test_what_cannot_be_done_is_said(words, code, text, capsys):
    assert run(*words) == code
    assert text in capsys.readouterr().err
