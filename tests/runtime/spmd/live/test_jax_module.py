"""A jax that is missing, too old or broken: the error says what to install."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import meshtf as mtf
from meshtf.runtime.spmd.live import jax_module


@pytest.fixture(autouse=True)
def fresh_import():
    """Has the tests import jax again, and later ones as well."""
    jax_module.load_jax.cache_clear()
    yield
    jax_module.load_jax.cache_clear()


def test_without_jax_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(
        mtf.MeshError,
        match=r"(?s)needs jax, which is not installed.*pip install jax.*'\.\[spmd\]'",
    ):
        mesh = mtf.Mesh("data:4", devices="spmd:cpu")
        mtf.function(lambda x: x, mesh=mesh, x="batch")(np.ones(4, "float32"))


@pytest.mark.parametrize("version", ["0.4.30", "0.6.1rc1"])
def test_an_old_jax_is_to_be_upgraded(monkeypatch, version):
    old = types.ModuleType("jax")
    old.__version__ = version
    monkeypatch.setitem(sys.modules, "jax", old)
    with pytest.raises(
        mtf.MeshError,
        match=rf"(?s)needs jax 0.6.2 or later.*{version}.*--upgrade jax.*'\.\[spmd\]'",
    ):
        jax_module.load_jax()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("jaxlib is version 0.9.0, but this jax needs 0.10.2"),
        ModuleNotFoundError("jax requires jaxlib to be installed", name="jaxlib"),
    ],
)
def test_a_jax_that_cannot_be_imported_is_to_be_reinstalled(monkeypatch, error):
    class Broken:
        """Finds jax, whose import fails."""

        def find_spec(self, name, path=None, target=None):
            if name == "jax":
                raise error

    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(
        mtf.MeshError, match=f"(?s)cannot be imported.*{error}.*pip install --upgrade"
    ) as caught:
        jax_module.load_jax()
    assert caught.value.__suppress_context__


def test_a_version_for_developers_is_read(monkeypatch):
    jax = jax_module.load_jax()
    monkeypatch.setattr(jax, "__version__", "0.11.0.dev20260101+abc")
    jax_module.load_jax.cache_clear()
    assert jax_module.load_jax() is jax
