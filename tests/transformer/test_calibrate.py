"""`python -m meshtf calibrate`: a profile, with the factors of a configuration."""

from __future__ import annotations

import gin
import pytest
from absl import flags
from absl.testing import flagsaver

import meshtf as mtf
from meshtf.hardware import Hardware, Link, as_hardware
from tests.transformer.small_runs import small
from transformer import calibrate
from transformer.training.step_calibration import meshes_like


@pytest.fixture(name="profile")
def replace_measurements(monkeypatch):
    """A known profile in place of measured rates; returns what was asked for."""
    calls = []

    def known(devices, positions, report):
        calls.append((devices, positions))
        report("rates")
        link = Link("all", None, bandwidth=1e9, latency=1e-5)
        return Hardware("known", {"float32": 1e10}, 1e10, (link,), overlaps=False)

    monkeypatch.setattr(mtf.calibration, "calibrate", known)
    return calls


def run(capsys, **values):
    """Runs the command; returns its exit code, stdout and stderr."""
    gin.clear_config()
    flags.FLAGS(["calibrate"])
    try:
        with flagsaver.flagsaver(**values), pytest.raises(SystemExit) as left:
            calibrate.main(["calibrate"])
    finally:
        gin.clear_config()
    return (left.value.code, *capsys.readouterr())


def run_for_two_devices(capsys, tmp_path, path):
    """Runs the command for two local sizes of a search over two devices."""
    return run(
        capsys,
        gin_param=small(tmp_path, "Architecture.blocks = 3", "train.batch_size = 8"),
        save=str(path),
        devices=2,
        mesh_devices="spmd:cpu:1",
        calibrated_sizes=2,
        memory="1GiB",
    )


def test_rates_alone_are_written(tmp_path, capsys, profile):
    path = tmp_path / "machine.json"
    code, out, _ = run(capsys, save=str(path), mesh_devices="logical:2", positions=2)
    assert code == 0 and f"wrote {path}" in out
    assert profile == [("logical:2", 2)]
    assert not as_hardware(path).work_factors


def test_steps_of_a_configuration_give_factors(tmp_path, capsys, profile):
    path = tmp_path / "machine.json"
    settings = small(tmp_path, 'Mesh.axes = "data:2;model:1"')
    code, out, err = run(
        capsys,
        gin_param=settings,
        save=str(path),
        calibrated_meshes=2,
        calibrated_steps=2,
    )
    assert (code, err) == (0, "")
    assert "data:2;model:1" in out and "data:1;model:2" in out
    assert profile == [(None, 2)]
    factors = as_hardware(path).work_factors
    assert factors["matmul"] > 0


def test_local_sizes_of_the_best_layouts_are_measured(tmp_path, capsys, profile):
    path = tmp_path / "machine.json"
    code, out, _ = run_for_two_devices(capsys, tmp_path, path)
    assert code == 0 and "ops of one of 2 devices" in out
    assert profile == [("spmd:cpu:1", 8)]
    steps = as_hardware(path).local_steps
    assert len(steps) == 2 and all(step.factor > 0 for step in steps)
    assert steps[0].sizes != steps[1].sizes
    assert {"batch", "length", "d_ff"} <= set(steps[0].sizes)


def test_rates_are_kept_and_other_sizes_measured_if_a_local_step_fails(
    tmp_path, capsys, profile, monkeypatch
):
    path = tmp_path / "machine.json"
    measure = mtf.calibration.measure_local_step
    rates_were_written = []

    def fail_at_first(*args, **kwargs):
        rates_were_written.append(path.exists())
        if len(rates_were_written) == 1:
            raise mtf.PlanError("no memory for the step.\nway out")
        return measure(*args, **kwargs)

    monkeypatch.setattr(mtf.calibration, "measure_local_step", fail_at_first)
    code, out, _ = run_for_two_devices(capsys, tmp_path, path)
    assert code == 0 and ": no memory for the step." in out
    assert rates_were_written == [True, True]
    assert len(as_hardware(path).local_steps) == 1


def test_an_error_is_reported_if_each_local_step_fails(
    tmp_path, capsys, profile, monkeypatch
):
    path = tmp_path / "machine.json"

    def fail(*args, **kwargs):
        raise mtf.PlanError("no memory for the step.")

    monkeypatch.setattr(mtf.calibration, "measure_local_step", fail)
    code, _, err = run_for_two_devices(capsys, tmp_path, path)
    assert code == 1 and "no memory for the step." in err
    assert as_hardware(path).matmul_flops == {"float32": 1e10}


def test_local_sizes_need_a_model_and_spmd_devices(tmp_path):
    flags.FLAGS(["calibrate"])
    settings = small(tmp_path)
    for values in (
        {"mesh_devices": "spmd:cpu:1"},
        {"gin_param": settings},
        {"gin_param": settings, "mesh_devices": "logical:8"},
    ):
        with flagsaver.flagsaver(devices=8, **values):
            assert "--devices needs a configuration" in calibrate.usage_error([])


def test_meshes_have_the_same_axes_and_size():
    meshes = list(meshes_like({"data": 4, "model": 2}))
    assert meshes[0] == {"data": 4, "model": 2}
    assert len(meshes) == 4
    assert all(mesh["data"] * mesh["model"] == 8 for mesh in meshes)
