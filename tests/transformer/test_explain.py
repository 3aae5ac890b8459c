"""`python -m meshtf explain`: the forecast of what `transformer.train` would run; its
errors.
"""

from __future__ import annotations

import json

import gin
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import meshtf as mtf
from transformer import explain
from transformer.cli import command_line
from transformer.training import training_run

SMALL = [
    "Architecture.d_model = 16",
    "Architecture.d_ff = 32",
    "Architecture.blocks = 1",
    "train.batch_size = 8",
    "ByteText.length = 8",
]


@pytest.fixture
def call(capsys):
    """Calls the command with files and settings; returns its exit code, stdout and
    stderr.
    """
    flags.FLAGS(["explain"])

    def call(*params, files=("lm_stdlib.gin",), argv=(), **saved):
        gin.clear_config()
        values = {
            "gin_file": [*files],
            "gin_param": [*SMALL, *params],
            "json": None,
            "html": None,
            "device_memory": None,
            "depth": 3,
        }
        with flagsaver.flagsaver(**(values | saved)), pytest.raises(SystemExit) as left:
            explain.main(["explain", *argv])
        return (left.value.code, *capsys.readouterr())

    yield call
    gin.clear_config()


def test_a_configuration_is_explained_without_text_and_devices(call):
    code, out, err = call(
        'data.python_library.folder = "/nope"',
        'Mesh.axes = "data:2048;model:4"',
        "train.batch_size = 4096",
    )
    assert (code, err) == (0, "")
    assert "training_step on 8192 devices" in out
    assert "all_reduce model" in out and "adamupdate" in out


def test_it_is_the_forecast_of_what_is_trained(call, tmp_path):
    plan = tmp_path / "plan.json"
    assert call(json=str(plan), files=("lm_stdlib.gin", "layouts/zero1.gin"))[0] == 0
    saved = json.loads(plan.read_text(encoding="utf-8"))
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    gin.clear_config()
    command_line.configure(["lm_stdlib.gin", "layouts/zero1.gin"], SMALL)
    run = training_run.Run()
    tokens = np.zeros((8, 8), np.int32)
    batch = {"tokens": tokens, "targets": tokens}
    real = run.trainer.explain(batch)
    assert saved["memory"] == vars(real.memory)
    assert [op["title"] for op in saved["ops"]] == [op.title for op in real.ops]
    collectives = [
        move.partition(" of ")[0]
        for move in run.trainer._step.lower(batch, np.int32(0)).collectives
    ]
    assert sorted(collectives) == sorted(
        f"{m.kind} over {m.axis}" for m in real.collectives
    )


def test_defaults_and_settings_of_train_are_those_of_a_run(call):
    gin.clear_config()
    settings = [
        *SMALL,
        "train.clip_norm = 0.5",
        "train.optimizer = @SGD",
        'Mesh.axes = ""',
    ]
    _, out, _ = call(*settings)
    assert "adamupdate" not in out and "optimizer state              0" in out
    assert "[batch:8 length:8 d_model:16]" in out


@pytest.mark.parametrize(
    "memory, code, text",
    [("1GiB", 0, "fits, "), ("10KiB", 3, "does not fit, "), ("10 bits", 1, "40GiB")],
)
def test_the_memory_of_a_device_decides_the_exit_code(call, memory, code, text):
    exit_code, out, err = call(device_memory=memory)
    assert exit_code == code
    assert text in (err if code == 1 else out)


def test_the_depth_of_modules_is_chosen(call):
    _, out, _ = call(depth=4)
    assert "modules, 4 names deep" in out
    assert "language_model/decoder/block_*/feed_forward " in out
    assert "names deep" not in call(depth=0)[1]


def test_a_page_is_saved(call, tmp_path):
    page = tmp_path / "plan.html"
    assert call(html=str(page))[0] == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_error_of_a_file_that_cannot_be_written(call, tmp_path):
    (tmp_path / "file").touch()
    code, out, err = call(json=str(tmp_path / "file" / "plan.json"))
    assert code == 1 and "cannot be written" in err and "plan.json" in err


def test_a_refused_program_is_shown_as_far_as_it_goes(call, tmp_path):
    plan = tmp_path / "plan.json"
    code, out, err = call('Mesh.layout = "length:model; heads:model"', json=str(plan))
    assert (code, err) == (1, "")
    assert "mask_bias" in out and "!! the plan ends here" in out
    assert (
        "!! LayoutError: two dimensions of one tensor" in out
        and "attention_mask.py" in out
    )
    assert "two dimensions" in json.loads(plan.read_text(encoding="utf-8"))["error"]


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            ["Architecture.d_modle = 64"],
            "ConfigError: Configurable 'Architecture' doesn't have a",
        ),
        (
            ['Mesh.layout = "batch:data;length:data"'],
            "LayoutError: two dimensions of one",
        ),
        (
            ["train.batch_size = 10", "Mesh.strict = True"],
            'LayoutError: dimension "batch" of size 10',
        ),
        (['Mesh.axes = "data:four"'], "ParseError: the size of mesh axis 'data'"),
    ],
)
def test_errors_of_configuration_and_layout_have_no_traceback(call, settings, message):
    code, out, err = call(*settings)
    assert (code, out) == (1, "")
    assert err.startswith(message) and "In call to configurable" not in err


def test_required_settings_are_named(call, tmp_path):
    file = tmp_path / "mine.gin"
    file.write_text("train.batch_size = 8\n", encoding="utf-8")
    code, _, err = call(files=[str(file)])
    assert code == 1 and err.startswith("ConfigError: Required bindings for `train`")
    assert "mesh" in err


def test_what_is_no_flag_is_refused(call):
    code, _, err = call(argv=["lm_stdlib.gin"])
    assert code == 1 and "'lm_stdlib.gin' is not a flag" in err


def test_hardware_gives_the_time_and_a_trace(call, tmp_path):
    path = tmp_path / "step.json"
    _, out, _ = call(hardware="h100", trace=str(path), depth=0)
    assert "time on h100" in out
    assert "of peak FLOPs" in out
    assert "80.0 GiB device memory: fits" in out
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {"matmul", "op", "update"} <= {event["cat"] for event in spans}
    assert all(event["dur"] >= 0 for event in spans)


def test_the_runtime_is_that_of_the_configured_devices(call):
    for devices, runtime in (
        ("spmd:cuda:8", "spmd"),
        ("spmd", "spmd"),
        (None, "placed"),
    ):
        _, out, _ = call(f"Mesh.devices = {devices!r}", depth=0)
        assert f"under the {runtime} runtime:" in out
    _, out, _ = call(hardware="h100", depth=0)
    assert "under the spmd runtime:" in out


def test_misspelt_rules_are_warnings_and_errors_of_a_strict_mesh(call):
    layout = 'Mesh.layout = "batch:data; head:model; dff:model"'
    with pytest.warns(mtf.LayoutWarning, match="Did you mean heads"):
        code, out, _ = call(layout)
    assert code == 0 and "memory" in out
    code, _, err = call(layout, "Mesh.strict = True")
    assert code == 1 and "Did you mean heads?" in err
