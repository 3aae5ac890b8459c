"""Layouts of parts of a Keras model, by the paths of layers."""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import keras
import pytest

import meshtf as mtf
from meshtf.errors import ArgumentError, LayoutError, LayoutWarning, ParseError
from meshtf.keras.layer_settings.patterns import layers_within
from tests.keras.layer_settings.encoder import (
    adam,
    batch,
    distributed,
    encoder,
    trained,
)
from tests.keras.models import Trained, assert_equal, compiled

AXES = "data:2; model:4"
REGIONS: list[dict[str, Any]] = [
    {"layer_1": "length:model"},
    {"layer_0/(up|down)": "d_ff:model", "tokens": "vocab:model"},
    {"layer_1": "length:model", "layer_1/attention/.*": "length:; heads:model"},
    {r"layer_\d": "*:; batch:model"},
]


@functools.cache
def by_keras() -> Trained:
    """Returns what Keras makes of two steps."""
    return trained(compiled(encoder, adam))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("regions", REGIONS)
def test_it_trains_as_on_one_device(regions) -> None:
    """To 1e-9 in float64."""
    mesh = mtf.Mesh(AXES, "batch:data")
    model, _ = distributed(mesh, regions=regions)
    assert_equal(trained(model), by_keras(), 1e-9)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("regions", REGIONS)
def test_live(regions) -> None:
    """To 1e-9 in float64, on devices of jax."""
    mesh = mtf.Mesh(AXES, "batch:data; vocab:model", devices="spmd:cpu:8")
    model, _ = distributed(mesh, regions=regions)
    assert_equal(trained(model), by_keras(), 1e-9)


def sharded(op: Any, dim: str) -> bool | None:
    """Returns whether a dimension of an operation's output is sharded; None without it."""
    tensor = op.outputs[0]
    return dim in tensor.states if dim in dict(tensor.shape) else None


def test_operations_of_a_layer_follow_its_region() -> None:
    """The other layers have the mesh's layout, and gradients that of the forward pass."""
    mesh = mtf.Mesh(AXES, "batch:data")
    _, named = distributed(mesh, regions={"layer_1/(up|down)": "d_ff:model"})
    for phase in ("forward", "backward"):
        ops = [op for op in named.explain(batch()).ops if op.phase == phase]
        wide = [sharded(op, "d_ff") for op in ops if sharded(op, "d_ff") is not None]
        assert 0 < wide.count(True) <= len(wide) / 2


def test_variables_of_a_layer_follow_its_region() -> None:
    """And their slots; `variable_layout` holds as well."""
    mesh = mtf.Mesh(AXES, "batch:data", variable_layout="d_model:data")
    model, named = distributed(mesh, regions={"layer_1/up": "d_ff:model"})
    trained(model)
    layouts = {v.name: str(v.layout) for v in named.placed.variables.values()}
    by_region = [name for name, text in layouts.items() if "d_ff:model" in text]
    assert len(by_region) == 6  # kernel and bias, and two moments of each
    assert all("layer_1" in name and "up" in name for name in by_region)
    assert all("d_model:data" in text for text in layouts.values())


def test_explain_and_dimensions_tell_regions() -> None:
    """Before anything runs: the variables and slots of a layer are as large as in a run."""
    mesh = mtf.Mesh(AXES, "batch:data")
    regions = {"tokens": "vocab:model"}
    _, named = distributed(mesh, regions=regions)
    forecast = named.explain(batch())
    abstract = mtf.Mesh(AXES, "batch:data", devices="abstract")
    _, again = distributed(abstract, regions=regions)
    assert forecast.memory == again.explain(batch()).memory
    _, unsharded = distributed(mesh)
    less = unsharded.explain(batch()).memory.parameters - forecast.memory.parameters
    assert less == 3 / 4 * 16 * 8 * 8
    assert named.dimensions["vocab"].sharded == "model in tokens"
    assert named.dimensions["d_ff"].sharded == ""


def test_what_a_layer_within_says_holds_last() -> None:
    regions = {"layer_1": "length:model", "layer_1/up": "length:; d_ff:model"}
    mesh = mtf.Mesh(AXES, "batch:data")
    _, named = distributed(mesh, regions=regions)
    ops = named.explain(batch()).ops
    axes = {(sharded(op, "length"), sharded(op, "d_ff")) for op in ops}
    assert (True, None) in axes
    assert (False, True) in axes
    assert (True, True) not in axes


def test_search_keeps_regions() -> None:
    """A layout that is found has the time that `explain` gives it."""
    mesh = mtf.Mesh(AXES, "batch:data")
    regions = {"layer_1/.*": "length:model", "tokens": "vocab:model"}
    _, named = distributed(mesh, regions=regions)
    settings = {"devices": 8, "hardware": "h100", "axes": AXES}
    best = named.search(batch(), **settings).best[0]
    found = mtf.Mesh(devices="abstract", **best.mesh_settings)
    _, again = distributed(found, regions=regions)
    forecast = again.explain(batch(), hardware="h100")
    assert forecast.time.seconds == pytest.approx(best.seconds, rel=1e-6)


@pytest.mark.parametrize(
    "settings,error,text",
    [
        (
            {"regions": {"layer_1/upp": "d_ff:model"}},
            LayoutError,
            'a pattern "layer_1/upp" that matches no layer.\n  similar +layer_1/up',
        ),
        (
            {"regions": {"layer_.": "d_ff:model", "layer_1.*": "d_ff:"}},
            LayoutError,
            "two patterns of `regions` match the layer layer_1.",
        ),
        (
            {"regions": {"layer_1": "d_f:model"}},
            LayoutError,
            'region "layer_1" has a rule for "d_f".*\n.*\n  similar +d_ff',
        ),
        (
            {"regions": {"layer_1/(up|down)": "head:model"}},
            LayoutError,
            'region "layer_1/.up.down." has a rule for "head"',
        ),
        (
            {"regions": {"tokens": "vocab:model; d_ff:data"}},
            LayoutError,
            'rule for "d_ff", a name that no dimension of its layers has.'
            "[^=]*dimensions +batch, d_model, length, vocab",
        ),
        (
            {"regions": {"layer_1": "heads:model; d_head:model"}},
            LayoutError,
            'two dimensions of one variable want mesh axis "model"',
        ),
        ({"regions": {"layer_1": "d_ff"}}, ParseError, "pairs of name:value"),
        ({"regions": "layer_1"}, ArgumentError, "layouts by patterns of layers"),
        ({"regions": {"layer_[": "d_ff:"}}, ArgumentError, "no regular expression"),
        ({"recompute": "layer_7"}, ArgumentError, "similar +layer_1"),
        ({"recompute": 3}, ArgumentError, "a list of them, .* it is a int"),
    ],
)
def test_errors(settings, error, text) -> None:
    with pytest.raises(error) as raised:
        model, _ = distributed(mtf.Mesh(AXES, "batch:data"), **settings)
        model.train_on_batch(*batch())
    assert re.search(text, str(raised.value)), raised.value


def test_an_axis_that_the_mesh_lacks() -> None:
    """As in the mesh's own layout, it is refused unless it may be absent."""
    regions = {"head": "classes:modl"}
    with pytest.raises(LayoutError, match='names axis "modl".*\n.*\n  similar +model'):
        distributed(mtf.Mesh(AXES, "batch:data"), regions=regions)
    distributed(mtf.Mesh(AXES, "batch:data", optional_axes="modl"), regions=regions)


def test_what_a_layer_may_do_without() -> None:
    """The error of two dimensions on one axis names the layer and the region to give it."""
    mesh = mtf.Mesh(AXES, "length:data; d_ff:data")
    model, _ = distributed(mesh)
    with pytest.raises(LayoutError, match=r'regions={"(.*)": "d_ff:"}') as raised:
        model.train_on_batch(*batch())
    assert f"the layer {layer_in(raised.value)}\n" in str(raised.value)


def layer_in(error: LayoutError) -> str:
    """Returns the layer for which an error proposes a region."""
    match = re.search(r'regions={"(.*)":', str(error))
    assert match is not None
    return match.group(1)


def test_search_warns_that_axes_of_regions_may_be_absent() -> None:
    """Once, whatever meshes it tries; not if they are kept."""
    regions = {"tokens": "vocab:model"}
    _, named = distributed(mtf.Mesh(AXES, "batch:data"), regions=regions)
    for axes, count in ((None, 1), (AXES, 0)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            named.search(batch(), devices=8, hardware="h100", max_axes=1, axes=axes)
        texts = [str(w.message) for w in caught if w.category is LayoutWarning]
        assert len(texts) == count
        assert all("along model" in t and "vocab:model" in t for t in texts)


def test_layers_within_a_model() -> None:
    """Each once, an outer one before those within; also those that build nothing."""
    paths = [path for _, path in layers_within(encoder())]
    assert paths.count("layer_1/attention/query") == 1
    assert paths.index("layer_1") < paths.index("layer_1/up")
    inputs = keras.Input((4,))
    inner = [keras.layers.Dense(4, name="up"), keras.layers.ReLU(name="relu")]
    x = keras.layers.Add(name="sum")(
        [inputs, keras.Sequential(inner, name="block")(inputs)]
    )
    paths = [path for _, path in layers_within(keras.Model(inputs, x))]
    assert {"sum", "block", "block/up", "block/relu"} <= set(paths)
