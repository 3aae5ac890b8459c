"""Devices that jax lacks: each error names the cause and the cure."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import meshtf as mtf
from meshtf.runtime.spmd.live import jax_module
from meshtf.runtime.spmd.live.jax_host import cpu_mesh, devices_of_platform


def run_on(mesh):
    mtf.function(lambda x: x, mesh=mesh, x="batch")(np.ones(4, "float32"))


@pytest.mark.parametrize(
    "devices, cure",
    [
        ("spmd:cuda", r"pip install -e '\.\[cuda\]'.*nvidia-smi.*\"spmd:cpu\" runs"),
        ("spmd:tpu", r"pip install -e '\.\[tpu\]'.*\"spmd:cpu\" runs"),
        ("spmd:nothing", 'Platforms are "spmd:cpu", "spmd:cuda"'),
    ],
)
def test_a_platform_without_devices(devices, cure):
    platform = devices.partition(":")[2]
    problem = f"jax has no devices of the platform '{platform}'"
    with pytest.raises(mtf.MeshError, match=f"(?s){problem}.*jax  .*{cure}"):
        run_on(mtf.Mesh("data:2", devices=devices))


def test_a_platform_that_the_environment_leaves_out(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(mtf.MeshError, match="JAX_PLATFORMS=cpu\n.*Unset JAX_PLATFORMS"):
        devices_of_platform(mtf.Mesh("data:2", devices="spmd:cuda"))


def test_only_a_platform_without_plugin(monkeypatch):
    def no_platform(platform=None):
        raise AssertionError

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax_module.load_jax(), "devices", no_platform)
    with pytest.raises(
        mtf.MeshError, match="(?s)jax cannot use any devices.*Unset JAX_PLATFORMS"
    ) as caught:
        devices_of_platform(mtf.Mesh("data:2", devices="spmd"))
    assert caught.value.__suppress_context__


def test_too_few_cpu_devices(monkeypatch):
    mesh = mtf.Mesh("data:17", devices="spmd:cpu")
    problem = "(?s)17 positions, but jax has 16 devices.*"
    with pytest.raises(
        mtf.MeshError,
        match=problem + "XLA_FLAGS=.*Set --xla_force_host_platform_device_count=17",
    ):
        run_on(mesh)
    monkeypatch.delenv("XLA_FLAGS")
    with pytest.raises(
        mtf.MeshError,
        match=problem + r'largest mesh first.*update\("jax_num_cpu_devices", 17\)',
    ):
        cpu_mesh(17, "device")


@pytest.mark.slow
def test_jax_has_started_with_one_device():
    program = """
import jax
jax.devices()
import meshtf as mtf
v = mtf.Variable(mtf.Mesh("data:8", devices="spmd:cpu"), "d:8", "ones", "v")
try:
    v.numpy()
except mtf.MeshError as error:
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert "8 positions, but jax has 1 device of the platform 'cpu'" in run.stdout
    assert "jax has started already" in run.stdout
