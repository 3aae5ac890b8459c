"""Layouts: rules that are read, replaced and compared."""

from __future__ import annotations

import pytest

from meshtf.errors import ParseError
from meshtf.mesh import Layout


def test_a_layout_is_made_of_anything_that_maps_names_to_axes():
    layout = Layout("batch:data;d_ff:model")
    for same in (
        layout,
        {"batch": "data", "d_ff": "model"},
        [("d_ff", "model"), ("batch", "data")],
        "d_ff:model, batch:data",
    ):
        assert Layout(same) == layout
        assert hash(Layout(same)) == hash(layout)
    assert Layout("batch:data") != layout
    assert Layout() == Layout("") == Layout({})


def test_the_axes_of_a_name():
    layout = Layout("batch:data+model;d_ff:model")
    assert (layout.axes("batch"), layout.axes("d_ff"), layout.axes("heads")) == (
        ("data", "model"),
        ("model",),
        (),
    )
    assert dict(layout.items()) == {"batch": ("data", "model"), "d_ff": ("model",)}
    assert repr(layout) == "batch:data+model; d_ff:model"
    assert Layout(repr(layout)) == layout


def test_override_replaces_adds_and_takes_away():
    layout = Layout("batch:data;d_ff:model")
    assert layout.override("d_ff:; heads:model") == Layout("batch:data;heads:model")
    assert layout.override("d_ff:data") == Layout("batch:data;d_ff:data")
    assert layout.override({"d_ff": ""}) == Layout("batch:data")
    assert layout.override("") == layout
    assert layout == Layout("batch:data;d_ff:model")


def test_a_name_goes_to_one_place():
    with pytest.raises(
        ParseError, match="(?s)maps dimension 'batch' twice.*delete one"
    ):
        Layout("batch:data;batch:model")
    assert Layout("batch:data;batch:data") == Layout("batch:data")
    with pytest.raises(
        ParseError, match='(?s)names an axis twice.*"batch:data\\+model"'
    ):
        Layout("batch:data+model+data")


def test_a_layout_that_cannot_be_read():
    with pytest.raises(ParseError, match="a layout is written as pairs"):
        Layout("batch")
