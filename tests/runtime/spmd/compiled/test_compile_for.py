"""Programs compiled for devices that are not there; CPU devices stand in for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import meshtf as mtf
from meshtf.runtime.spmd.live.jax_host import cpu_mesh
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.module_call import ModuleCall

MODULE = "meshtf.runtime.spmd.compiled.compile_for"
X = np.ones([8, 8], "float32")


@pytest.fixture
def cpus(monkeypatch):
    devices = list(cpu_mesh(4, "data").devices.flat)
    monkeypatch.setattr(f"{MODULE}.absent_devices", lambda _topology: devices)


def function():
    mesh = mtf.Mesh(
        "data:4", "batch:data", variable_layout="d:data", devices="abstract"
    )
    w = mtf.Variable(mesh, "d:8;e:16", "normal", "w")

    @mtf.function(x="batch;d")
    def f(x):
        loss = mtf.reduce_mean(mtf.einsum([x, w], "batch;e"))
        w.assign(w - mtf.gradients([loss], [w])[0])
        return loss

    return f


def test_a_forecast_is_beside_what_xla_makes_of_it(cpus):
    comparison = mtf.compile_for(function(), X, topology="h100:4")
    assert comparison.planned_bytes["all_gather"] == 2 * 8 * 16 * 4 * 3 / 4 / 2
    assert comparison.compiled_bytes["all_gather"] > 0
    assert comparison.overlapped == 0
    text = str(comparison)
    assert text.startswith("compiled for h100:4, data:4, in ")
    assert "0% of their bytes move while a matrix product runs" in text


def test_the_forecast_beside_it_is_of_the_memory_under_xla(cpus):
    mesh = mtf.Mesh("data:4", "batch:data", devices="abstract")
    f = mtf.function(lambda x: mtf.softmax(x * 2, "d") + 1, mesh=mesh, x="batch;d")
    peak = mtf.compile_for(f, X, topology="h100:4").forecast.memory.peak
    assert (
        f.explain(X).memory.peak
        < peak
        == f.forecast_call((X,), {}, under_xla=True).memory.peak
    )


def test_no_program_for_other_devices_is_cached(cpus, tmp_path):
    config = load_jax().config
    before = config.jax_persistent_cache_min_compile_time_secs
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    seconds = []

    def compiled(*_args, **_settings):
        seconds.append(config.jax_persistent_cache_min_compile_time_secs)
        raise load_jax().errors.JaxRuntimeError("INTERNAL: no tiles for %dot.1\nmore")

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"{MODULE}.ModuleCall", compiled)
            with pytest.raises(
                mtf.PlanError,
                match=r"(?s)XLA does not compile f for 'h100:4'.*no tiles",
            ):
                mtf.compile_for(function(), X, topology="h100:4")
        assert config.jax_persistent_cache_min_compile_time_secs == 0.0
    finally:
        config.update("jax_persistent_cache_min_compile_time_secs", before)
    assert seconds == [float("inf")]


def test_the_program_of_a_tpu_is_read_from_the_file_of_its_compiler(cpus, monkeypatch):
    folders = []

    class TpuCall(ModuleCall):
        """A call whose program jax cannot print, and the compiler has written."""

        def __init__(self, *, options, **settings):
            super().__init__(**settings)
            folders.append(Path(options["xla_dump_to"]))
            file = folders[0] / "module_0003.jit_f.cl_1.after_optimizations.txt"
            file.write_text(str(self.compiled.as_text()) + "// as written")

        @property
        def hlo(self):
            raise load_jax().errors.JaxRuntimeError("INTERNAL: async-update has 3")

    monkeypatch.setattr(f"{MODULE}.platform_of_device", lambda _device: "tpu")
    monkeypatch.setattr(f"{MODULE}.ModuleCall", TpuCall)
    comparison = mtf.compile_for(function(), X, topology="v5e:4")
    assert comparison.compiled.hlo.endswith("// as written")
    assert comparison.compiled_bytes["all_gather"] > 0
    assert not folders[0].exists()


def test_a_missing_compiler_is_told_before_anything_is_recorded():
    mesh = mtf.Mesh("data:8", "batch:data", devices="abstract")
    recorded = []
    f = mtf.function(lambda x: recorded.append(x) or x, mesh=mesh, x="batch;d")
    with pytest.raises(mtf.MeshError, match="nothing here compiles for 'v5e:8'"):
        mtf.compile_for(f, X, topology="v5e:8")
    assert not recorded
