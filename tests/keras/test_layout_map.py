"""`keras.distribution`'s layouts of variables on a mesh."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import meshtf as mtf
from meshtf.errors import ArgumentError, LayoutError, LayoutWarning
from tests.keras.test_roles import batch_of, transformer

DEVICES = keras.distribution.DeviceMesh(
    (4, 2), ("batch", "model"), [f"cpu:{k}" for k in range(8)]
)


def compiled(rules: dict[str, Any] | None = None, mesh: Any = DEVICES) -> Any:
    """Returns a compiled model, and what `distribute` returns; without rules None."""
    keras.utils.set_random_seed(0)
    model = transformer(dropout=0.0)
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    if rules is None:
        return model, None
    layout_map = keras.distribution.LayoutMap(DEVICES)
    for pattern, axes in rules.items():
        layout_map[pattern] = axes
    return model, mtf.keras.distribute(model, mesh, layout=layout_map)


def test_rules_are_layouts_of_variables() -> None:
    """Of variables and their slots; `d_model` is sharded along either axis."""
    rules = {
        ".*query/kernel": ("model", None, None),
        ".*attention_output/kernel": (None, None, "batch"),
    }
    model, named = compiled(rules)
    x, y = batch_of(model)
    model.fit(x, y, batch_size=8, verbose=0)
    assert str(named.placed.mesh.layout) == "batch:batch"
    layouts = {v.name: str(v.layout) for v in named.placed.variables.values()}
    sharded = {name: text for name, text in layouts.items() if text != "batch:batch"}
    for path, layout in (
        ("query_kernel", "d_model:model"),
        ("attention_output_kernel", "d_model:batch"),
    ):
        names = [name for name in sharded if path in name.replace(".", "_")]
        assert len(names) == 3, sharded  # the variable and two moments of Adam
        assert {sharded[name] for name in names} == {layout}
    assert len(sharded) == 6
    shardings = named.dimensions["d_model"].sharded.split("; ")
    assert any(text.startswith("model in ") for text in shardings), shardings


def test_it_trains_as_on_one_device() -> None:
    """The batch has all ids, since Keras leaves rows that no id names as they are."""
    rules = {
        ".*(query|key|value)/kernel": (None, "model", None),
        ".*embeddings": ("model", "batch"),
    }
    rng = np.random.default_rng(0)
    x, y = rng.permutation(60).reshape(6, 10), rng.integers(0, 3, 6)
    histories = []
    for model, _ in (compiled(), compiled(rules)):
        history = model.fit(x, y, batch_size=6, epochs=2, verbose=0).history
        histories.append(history["loss"])
    np.testing.assert_allclose(histories[1], histories[0], rtol=1e-9)


@pytest.mark.parametrize(
    "rules,text",
    [
        ({".*query/kernl": ("model", None, None)}, "query/kernel"),
        ({".*query/kernel": ("model", None)}, "has 2 axes, but .*query/kernel has 3"),
    ],
)
def test_rules_that_do_not_fit(rules: dict[str, Any], text: str) -> None:
    with pytest.raises(LayoutError, match=text):
        compiled(rules)


def test_axes_of_another_mesh() -> None:
    rules = {".*query/kernel": ("model", None, None)}
    with pytest.raises(LayoutError, match='"model", which the mesh lacks'):
        compiled(rules, mtf.Mesh("data:2; modl:4"))


@pytest.mark.parametrize(
    "settings",
    [
        {"layout": "batch:modle"},
        {"variable_layout": "d_model:modle"},
        {"optimizer_layout": "d_model:data+modle"},
    ],
)
def test_an_axis_that_the_mesh_lacks(settings: dict[str, str]) -> None:
    """A model does not train unsharded because of a misspelt axis."""
    axes = "data:2; model:4"
    with pytest.warns(LayoutWarning, match="no axis 'modle'"):
        mesh = mtf.Mesh(axes, **settings)
    with pytest.raises(LayoutError) as raised:
        mtf.keras.distribute(transformer(), mesh)
    for words in ('names axis "modle"', "similar  model", 'optional_axes="modle"'):
        assert words in str(raised.value)
    optional = mtf.Mesh(axes, optional_axes="modle", **settings)
    for mesh in (optional, mtf.Mesh("", **settings)):
        mtf.keras.distribute(transformer(), mesh)


def test_arguments() -> None:
    model, _ = compiled()
    with pytest.raises(ArgumentError, match="DeviceMesh, not a str"):
        mtf.keras.distribute(model, "data:8")
    with pytest.raises(ArgumentError, match="LayoutMap, not str"):
        mtf.keras.distribute(model, DEVICES, layout="heads:model")
