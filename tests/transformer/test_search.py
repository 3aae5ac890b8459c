"""`python -m meshtf search`: the fastest layouts of a configuration, and its errors."""

from __future__ import annotations

import gin
import pytest
from absl import flags
from absl.testing import flagsaver

import meshtf as mtf
from tests.transformer.small_runs import run_train, small
from transformer import search
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
    """Calls the command with flags; returns its stdout and stderr."""
    flags.FLAGS(["search"])

    def call(*params, **saved):
        gin.clear_config()
        values = {
            "gin_file": ["lm_stdlib.gin"],
            "gin_param": [*SMALL, *params],
            "devices": 8,
            "hardware": "h100",
            "max_axes": 2,
            "axes": None,
            "microbatches": ["1", "2"],
            "recompute": "no",
        }
        with flagsaver.flagsaver(**(values | saved)):
            search.main(["search"])
        return capsys.readouterr()

    yield call
    gin.clear_config()


@pytest.mark.sampled(1, together="first choices")
def test_the_first_choice_is_a_gin_file(call, tmp_path):
    path = tmp_path / "best.gin"
    out, err = call(save=str(path), recompute="both")
    assert "layouts on 8 devices (h100" in out
    assert "recompute=" in out
    check_saved(path)


def check_saved(path, *params):
    """Compares the forecast of a saved choice with the time that is written beside it."""
    gin.clear_config()
    command_line.configure(["lm_stdlib.gin", str(path)], [*SMALL, *params])
    with gin.unlock_config():
        gin.bind_parameter("Mesh.devices", "abstract")
    forecast = training_run.Run().explain(None, "h100")
    text = path.read_text(encoding="utf-8")
    assert forecast.positions == 8
    assert f"# {forecast.time.seconds:.4g} s a step" in text


def test_a_pipeline_is_a_gin_file_that_trains(call, tmp_path, capsys):
    path = tmp_path / "pipeline.gin"
    blocks = "Architecture.blocks = 4"
    out, _ = call(
        blocks,
        stages=["2"],
        microbatches=["2"],
        rules="batch:data",
        storage=["replicated"],
        max_axes=1,
        save=str(path),
    )
    assert "Mesh(..., microbatches=2)" in out
    text = path.read_text(encoding="utf-8")
    assert "layers:stage" in text
    assert "Mesh.microbatches = 2" in text
    assert "Architecture.scanned = True" in text
    check_saved(path, blocks)
    gin.clear_config()
    params = small(tmp_path, *SMALL, blocks)
    files = ("lm_stdlib.gin", str(path))
    code, out, err = run_train(capsys, tmp_path / "run", params, files)
    assert code == 0, err
    assert "in total; checkpoint" in out


def test_a_configuration_that_cannot_be_scanned_says_so(call, capsys):
    experts = ["Architecture.blocks = 4", "Architecture.moe_every = 2"]
    with pytest.raises(SystemExit):
        call(*experts, stages=["2"], gin_file=["lm_stdlib.gin", "moe.gin"])
    error = capsys.readouterr().err
    assert "scanned" in error
    assert "Traceback" not in error


def test_what_is_fixed_and_why_another_is_slower(call):
    out, _ = call(
        axes="data:4;model:2",
        rules="batch:data; heads:model; d_ff:model; vocab:model",
        why_not="length:seq",
    )
    rows = [line for line in out.splitlines() if "batch:data" in line]
    assert rows
    assert all("data:4;model:2" in row for row in rows)
    assert "Why not length:seq?" in out
    assert "of the first choice" in out


def test_a_pipeline_pays_where_memory_is_short(call):
    sizes = {"blocks": 8, "d_model": 128, "d_ff": 1024}
    shape = [f"Architecture.{name} = {size}" for name, size in sizes.items()]
    fixed = {"max_axes": 1, "storage": ["replicated"], "rules": "batch:data"}
    out, _ = call(*shape, stages=["1", "4"], **fixed)
    assert "data:8 | batch:data" in out
    out, _ = call(*shape, stages=["1", "4"], memory="40MiB", **fixed)
    assert "data:8" not in out
    assert "stage:4;data:2 | layers:stage; batch:data" in out


def test_errors_are_messages(call, capsys):
    with pytest.raises(SystemExit):
        call(memory="1KiB")
    assert "no layout fits into" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        call(hardware="h10o")
    assert "there is no profile of hardware" in capsys.readouterr().err


def test_usage_needs_devices_and_hardware():
    flags.FLAGS(["search"])
    assert "--devices=N" in search.usage_error(["search"])
    with flagsaver.flagsaver(devices=8, hardware="h100", measure=2):
        assert "--mesh_devices" in search.usage_error(["search"])


@pytest.mark.sampled(1, together="first choices")
@pytest.mark.parametrize("mesh_devices", ["spmd:cpu:8", "logical:8"])
def test_the_first_choices_run(call, mesh_devices):
    out, _ = call(measure=2, mesh_devices=mesh_devices)
    assert "measured" in out
    assert mtf.__version__
