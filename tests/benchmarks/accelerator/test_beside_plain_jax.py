"""`benchmarks.accelerator`: its modules and plain JAX compute equal losses on a CPU, in a process
that has neither TensorFlow nor meshtf.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys

import gin
import pytest

from benchmarks.accelerator.cases import CASES, selected, tiny
from benchmarks.accelerator.export import export_all
from benchmarks.accelerator.run import loss_error
from meshtf.layers.attention.dot_product import FUSED_LENGTH

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

FORECAST_KEYS = {"h200", "h100", "a100"}


@pytest.fixture(autouse=True)
def clean_gin():
    yield
    gin.clear_config()


def run(folder, *flags):
    """Runs all cases of a folder where TensorFlow and meshtf cannot be imported; returns the
    finished process, and the rows by name.
    """
    hidden = folder / "hidden"
    hidden.mkdir()
    for name in ("tensorflow", "meshtf", "transformer", "benchmarks"):
        (hidden / f"{name}.py").write_text(f"raise ImportError('no {name} here')")
    out = folder / "out"
    out.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(hidden),
        "OUT": str(out),
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, str(folder / "run.py"), "--rounds=2", "--steps=2", *flags],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    rows = json.loads((out / "accelerator.json").read_text())
    return done, {row["name"]: row for row in rows}


def check_row(row, rel):
    """Checks the losses of a row with plain JAX, which have as many steps."""
    assert "error" not in row and row["peer_note"] == "", row
    assert row["losses"] == pytest.approx(row["peer_losses"], rel=rel)
    first, last = row["losses"]
    assert math.isfinite(last) and last < first
    assert row["ratio"] == pytest.approx(row["ms"] / row["peer_ms"])
    assert row["tflops"] > 0 and row["compile_seconds"] > 0
    assert row["planned_peak"] > row["parameters"] * 12  # weights, m and v


def test_a_module_has_the_losses_of_plain_jax_without_tensorflow(tmp_path):
    export_all([tiny(case) for case in selected(["gpt2"])], str(tmp_path), "cpu")
    description = json.loads((tmp_path / "gpt2.json").read_text())
    assert description["platform"] == "cpu"
    assert set(description["forecast"]) == FORECAST_KEYS
    done, rows = run(tmp_path)
    assert done.returncode == 0, done.stderr
    check_row(rows["gpt2"], rel=1e-4)
    assert "| gpt2 | 2 |" in done.stdout and "cpu, jax" in done.stdout


@pytest.mark.slow
def test_every_case_has_the_losses_of_plain_jax(tmp_path):
    """The last losses, after eight updates, are equal as well: so the gradients and AdamW are."""
    kinds = [
        "llama_1b",
        "bert_large",
        "gpt2_xl",
        "gpt2_medium_recompute",
        "gpt2_experts",
    ]
    export_all([tiny(case) for case in selected(kinds)], str(tmp_path), "cpu")
    done, rows = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(rows) == kinds
    for row in rows.values():
        check_row(row, rel=1e-4)


@pytest.mark.slow
def test_fused_attention_in_bfloat16_and_dropout(tmp_path):
    """As at full size: attention is one op from this length on."""
    cases = [
        tiny(case, "bfloat16", length=FUSED_LENGTH)
        for case in selected(["gpt2", "gpt2_dropout"])
    ]
    export_all(cases, str(tmp_path), "cpu")
    done, rows = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    check_row(rows["gpt2"], rel=1e-2)
    row = rows["gpt2_dropout"]
    assert "no dropout" in row["peer_note"] and "no dropout" in done.stdout
    assert all(map(math.isfinite, row["losses"])) and "ratio" not in row


def test_a_bad_case_does_not_stop_the_others(tmp_path):
    names = ["gpt2", "gpt2_dropout"]
    export_all([tiny(case) for case in selected(names)], str(tmp_path), "cpu")
    (tmp_path / "gpt2.mlirbc").write_bytes(b"no module")
    done, rows = run(tmp_path)
    assert done.returncode == 1
    assert "deserialize" in rows["gpt2"]["error"] and "gpt2: " in done.stdout
    assert "error" not in rows["gpt2_dropout"]


def test_cases_are_skipped_when_the_time_is_over(tmp_path):
    export_all([tiny(case) for case in selected(["gpt2"])], str(tmp_path), "cpu")
    done, rows = run(tmp_path, "--seconds=0")
    assert done.returncode == 1
    assert "gpt2: skipped, since --seconds=0 are over" in done.stdout
    assert "skipped" in rows["gpt2"]["error"]


def test_attention_calls_kernels_of_cuda_unless_it_is_for_any_device(tmp_path):
    names = ["gpt2_medium", "gpt2_medium_any_device"]
    size = export_all(selected(names), str(tmp_path), "cuda")
    assert size < 2**20  # without initial values
    kernels = [b"cudnn" in (tmp_path / f"{name}.mlirbc").read_bytes() for name in names]
    assert kernels == [True, False]
    description = json.loads((tmp_path / "gpt2_medium.json").read_text())
    # 6 FLOPs for each weight of a product and each token, and those of attention; Kaplan et al.,
    # 2020, arXiv 2001.08361.
    tokens = 16 * 1024
    weights = 12 * 24 * 1024**2 + 50304 * 1024
    attention = 12 * 24 * 1024 * 1024
    expected_flops = tokens * (6 * weights + attention)
    assert description["model_flops"] == pytest.approx(expected_flops, rel=0.01)
    assert 8 * 2**30 < description["forecast_peak"] < 40 * 2**30


def test_losses_that_are_not_finite_or_differ_are_errors():
    row = {"losses": [5.0, 4.0], "peer_losses": [5.01, 4.5]}
    assert loss_error(row) == ""
    assert loss_error({"losses": [5.0, 6.0]}) == ""
    assert "plain JAX's 5.2" in loss_error({**row, "peer_losses": [5.2, 4.0]})
    assert "finite" in loss_error({**row, "losses": [5.0, math.nan]})


def test_cases_by_name():
    assert selected([]) == CASES
    assert len({case.name for case in CASES}) == len(CASES)
    with pytest.raises(ValueError, match="there is no case 'gpt3', but gpt2, "):
        selected(["gpt3"])
