"""`python -m meshtf export`: the step of a configuration as a folder, and
its errors.
"""

from __future__ import annotations

import json

import gin
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from transformer import export
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
    flags.FLAGS(["export"])

    def call(folder, *params, files=("lm_stdlib.gin",), argv=()):
        gin.clear_config()
        values = {
            "gin_file": [*files],
            "gin_param": [*SMALL, *params],
            "stablehlo": folder,
        }
        code = 0
        with flagsaver.flagsaver(**values):
            try:
                export.main(["export", *argv])
            except SystemExit as left:
                code = left.code
        return (code, *capsys.readouterr())

    yield call
    gin.clear_config()


def test_a_step_is_written_without_text_and_devices(call, tmp_path):
    folder = tmp_path / "new" / "step"
    code, out, err = call(
        str(folder),
        'data.python_library.folder = "/nope"',
        'Mesh.axes = "data:512;model:4"',
        "train.batch_size = 512",
    )
    assert (code, err) == (0, "")
    assert (
        "2048 (data:512;model:4)" in out and "batch_tokens [batch:512 length:8]" in out
    )
    assert {path.name for path in folder.iterdir()} == {
        "module.mlirbc",
        "manifest.json",
        "values.npz",
    }
    assert [path.name for path in folder.parent.iterdir()] == ["step"]


def test_first_values_are_those_of_a_run(call, tmp_path):
    settings = [
        "Mesh.seed = 3",
        "Architecture.tied = True",
        'Mesh.within_host = "model"',
    ]
    assert (
        call(
            str(tmp_path / "step"),
            *settings,
            files=("lm_stdlib.gin", "layouts/zero1.gin"),
        )[0]
        == 1
    )  # no axis "model"
    assert call(str(tmp_path / "step"), *settings)[0] == 0
    manifest = json.loads(
        (tmp_path / "step" / "manifest.json").read_text(encoding="utf-8")
    )
    values = np.load(tmp_path / "step" / "values.npz")
    gin.clear_config()
    command_line.configure(["lm_stdlib.gin"], [*SMALL, *settings])
    variables = training_run.Run().trainer.variables
    assert {x["name"] for x in manifest["inputs"] if x["kind"] != "argument"} == set(
        values
    )
    assert {x["name"] for x in manifest["inputs"] if x["kind"] == "parameter"} == {
        v.name for v in variables.values() if v.trainable
    }
    assert set(values) <= set(variables)
    for name, value in values.items():
        np.testing.assert_array_equal(value, variables[name].numpy(), err_msg=name)


def test_an_earlier_export_is_replaced_and_nothing_else(call, tmp_path):
    folder = tmp_path / "step"
    assert call(f"{folder}/")[0] == 0
    before = (folder / "module.mlirbc").read_bytes()
    assert call(f"{folder}/", "Architecture.blocks = 2")[0] == 0
    assert (folder / "module.mlirbc").read_bytes() != before
    (folder / "thesis.txt").touch()
    code, out, err = call(str(folder))
    assert (code, out) == (
        1,
        "",
    ) and "step: it exists, and is no earlier export." in err
    assert (folder / "thesis.txt").exists()


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
            ['Mesh.layout = "length:model; heads:model"'],
            "LayoutError: two dimensions of one tensor",
        ),
        (
            ["train.batch_size = 10", "Mesh.strict = True"],
            'LayoutError: dimension "batch" of size 10',
        ),
    ],
)
def test_errors_have_no_traceback_and_nothing_is_written(
    call, tmp_path, settings, message
):
    code, out, err = call(str(tmp_path / "step"), *settings)
    assert (code, out) == (1, "")
    assert err.startswith(message) and "In call to configurable" not in err
    assert not list(tmp_path.iterdir())


def test_the_folder_must_be_named(call):
    code, _, err = call(None)
    assert code == 1 and "--stablehlo=FOLDER" in err


def test_error_of_a_folder_that_cannot_be_written(call, tmp_path):
    (tmp_path / "file").touch()
    code, out, err = call(str(tmp_path / "file" / "step"))
    assert (code, out) == (1, "") and "cannot be written" in err


def test_what_is_no_flag_is_refused(call, tmp_path):
    code, _, err = call(str(tmp_path / "step"), argv=["lm_stdlib.gin"])
    assert code == 1 and "'lm_stdlib.gin' is not a flag" in err
