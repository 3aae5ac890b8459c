"""The axes that stay within a host: those with the most communication, as many as fit."""

from __future__ import annotations

import gin
import pytest

import meshtf as mtf
from transformer.data import ByteText
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training import host_layout

LAYOUT = "batch:data; heads:model; d_ff:model; vocab:model; length:rows"


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def configured(axes, **mesh):
    """Gives gin a run whose batch is large, so that tensor parallelism moves most."""
    settings = {"axes": axes, "layout": LAYOUT, "optional_axes": "rows", **mesh}
    for name, value in settings.items():
        gin.bind_parameter(f"Mesh.{name}", value)
    for name, value in {
        "d_model": 16,
        "d_ff": 32,
        "heads": 2,
        "d_kv": 8,
        "blocks": 1,
    }.items():
        gin.bind_parameter(f"Architecture.{name}", value)
    gin.parse_config(
        "train.mesh = @Mesh()\ntrain.data = @ByteText()\ntrain.batch_size = 64"
    )
    assert ByteText and LanguageModel and Architecture


@pytest.mark.parametrize(
    "axes, workers, expected",
    [
        ("data:4;model:2", 2, ("model",)),
        ("model:2;data:4", 2, ("model",)),
        ("model:2;data:4", 1, None),
        ("model:2;data:4", 8, ()),
        ("model:2;data:2", 1, None),
        ("model:2;data:2", 3, ()),
    ],
)
def test_axes_with_the_most_communication_that_fit(axes, workers, expected):
    configured(axes)
    host_layout.keep_within_hosts(workers)
    said = gin.get_bindings("Mesh")
    assert said.get("within_host") == (expected or None)
    assert said.get("devices") is None


@pytest.mark.parametrize("mesh", [{"within_host": "data"}, {"devices": "logical:8"}])
def test_settings_of_placement_are_not_changed(mesh):
    configured("model:2;data:4", **mesh)
    before = gin.get_bindings("Mesh")
    host_layout.keep_within_hosts(2)
    assert gin.get_bindings("Mesh") == before


def test_several_axes_where_they_fit_together():
    mesh = mtf.Mesh("model:2;rows:2;data:2", devices="abstract")

    class Forecast:
        def bytes_moved(self, axis):
            return {"model": 3.0, "rows": 2.0, "data": 1.0}[axis]

    assert host_layout.axes_within_host(Forecast(), mesh, 2) == ("model", "rows")
    assert host_layout.axes_within_host(Forecast(), mesh, 4) == ("model",)
