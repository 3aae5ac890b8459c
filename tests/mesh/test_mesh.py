"""Meshes: positions and groups, where a layout puts a shape, and what is refused."""

from __future__ import annotations

import pytest

from meshtf.errors import LayoutWarning, MeshError, ParseError
from meshtf.mesh import LayoutUse, Mesh, Placement
from meshtf.names import Shape


def test_positions_count_along_the_last_axis_first():
    mesh = Mesh("data:2;model:3")
    assert (mesh.size, mesh.axes, str(mesh)) == (
        6,
        {"data": 2, "model": 3},
        "data:2;model:3",
    )
    assert mesh.coords == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2))
    assert mesh.axis_index == {"data": 0, "model": 1}


def test_repr_has_layout_and_devices():
    assert repr(Mesh("")) == "Mesh('')"
    mesh = Mesh(
        "data:2", "batch:data", variable_layout="d:data", devices=["CPU:0", "CPU:1"]
    )
    assert repr(mesh) == (
        "Mesh('data:2', layout='batch:data', variable_layout='d:data', "
        "devices='CPU:0 ... CPU:1')"
    )
    assert repr(Mesh("data:2", devices="logical:2")).endswith("devices='logical:2')")


def test_groups_differ_only_along_their_axes():
    mesh = Mesh("data:2;model:3")
    assert mesh.groups("data") == ((0, 3), (1, 4), (2, 5))
    assert mesh.groups("model") == ((0, 1, 2), (3, 4, 5))
    assert mesh.groups("data", "model") == (tuple(range(6)),)
    # The coordinate along the last axis changes fastest.
    assert mesh.groups("model", "data") == ((0, 3, 1, 4, 2, 5),)
    assert mesh.groups() == tuple((p,) for p in range(6))


def test_a_mesh_of_one_position():
    mesh = Mesh("")
    assert (mesh.size, mesh.coords, mesh.replicated, str(mesh)) == (
        1,
        ((),),
        Placement(),
        "(one position)",
    )
    assert mesh.place(Shape("batch:8")) == (Placement(), ())


@pytest.mark.parametrize(
    "layout, shape, placement",
    [
        ("", "batch:8;d_ff:6", Placement()),
        ("batch:data", "batch:8;d_ff:6", Placement("batch:data")),
        (
            "batch:data;d_ff:model",
            "d_ff:6;batch:8",
            Placement("batch:data;d_ff:model"),
        ),
        ("batch:data;d_ff:model", "d_model:5", Placement()),
        (
            "batch:stage",
            "batch:8",
            Placement(),
        ),  # an axis that the mesh lacks
        ("batch:data;d_ff:data", "d_ff:6", Placement("d_ff:data")),
    ],
)
def test_where_a_layout_puts_a_shape(layout, shape, placement):
    assert Mesh("data:2;model:2", layout).place(Shape(shape)) == (placement, ())


def test_an_axis_of_size_one_cuts_nothing():
    assert Mesh("data:1;model:2", "batch:data").place(Shape("batch:7")) == (
        Placement(),
        (),
    )


def test_conflicts_are_reported():
    mesh = Mesh("data:2;model:4", "batch:data;d_ff:model;heads:model", strict=True)
    placement, conflicts = mesh.place(Shape("batch:5;d_ff:8;heads:8"))
    assert placement == Placement("d_ff:model")
    assert conflicts == (
        ("size", "batch", "data", ""),
        ("axis", "heads", "model", "d_ff"),
    )
    placement, conflicts = mesh.place(Shape("heads:8;d_ff:8"))
    assert (placement, conflicts[0].other) == (Placement("heads:model"), "heads")


def test_another_layout_for_one_shape():
    mesh = Mesh("data:2;model:2", "batch:data", variable_layout="d_model:data")
    assert mesh.place(Shape("d_model:4"))[0] == Placement()
    assert mesh.place(Shape("d_model:4"), mesh.variable_layout)[0] == Placement(
        "d_model:data"
    )
    assert mesh.variable_layout.axes("batch") == ("data",)  # further rules, not instead


def test_meshes_are_compared_by_identity():
    assert Mesh("data:2") != Mesh("data:2")


def test_an_axis_that_the_mesh_lacks_is_noted_once_with_near_misses():
    with pytest.warns(LayoutWarning):
        mesh = Mesh("data:2;model:2", "d_ff:modle", variable_layout="d_ff:modle")
    (note,) = mesh.notes
    assert (
        "d_ff:modle" in note
        and "counts as size 1" in note
        and "Did you mean model?" in note
    )


def test_rules_that_never_matched():
    mesh = Mesh("data:2;model:2", "batch:data;dff:model", variable_layout="vocab:model")
    use = LayoutUse(frozenset({"batch", "d_ff", "vocab"}))
    assert use.unmatched_rules(mesh) == {"dff": "d_ff"}
    region = LayoutUse(rules=frozenset({("vocbs", ("data",))}))
    assert (use | region).unmatched_rules(mesh) == {"dff": "d_ff", "vocbs": "vocab"}


def test_axes_that_no_rule_names():
    mesh = Mesh("data:2;model:2", "batch:modle", optional_axes="modle")
    region = LayoutUse(rules=frozenset({("d", ("data",))}))
    assert LayoutUse().unused_axes(mesh) == {"data": "", "model": "modle"}
    assert LayoutUse().shards_nothing(mesh)
    assert region.unused_axes(mesh) == {"model": "modle"}
    assert not region.shards_nothing(mesh)


@pytest.mark.parametrize(
    "axes, words",
    [
        ("data:2;data:4", "axis 'data' occurs twice in the mesh(.|\n)*Rename one"),
        ("data:x", "size of mesh axis 'data' must be a positive integer, not 'x'"),
        ("data:0", "must be a positive integer, not '0'"),
        ("data", "a mesh is written as pairs"),
        ("data:-1", "a mesh is written as pairs"),
    ],
)
def test_meshes_that_cannot_be_read(axes, words):
    with pytest.raises(ParseError, match=words):
        Mesh(axes)


def test_a_dimension_over_two_axes():
    mesh = Mesh("data:2;model:4", "batch:data+model")
    placement, conflicts = mesh.place(Shape("batch:16;d:3"))
    assert placement == Placement("batch:data+model") and not conflicts
    strict = Mesh("data:2;model:4", "batch:data+model", strict=True)
    _placement, conflicts = strict.place(Shape("batch:4"))
    assert [conflict.kind for conflict in conflicts] == ["size", "size"]


def test_the_axes_of_a_rule_may_be_in_another_order_than_the_mesh():
    mesh = Mesh("data:2;model:4;fsdp:2", "batch:model+data;d:fsdp")
    placement, conflicts = mesh.place(Shape("batch:16;d:4"))
    assert placement == Placement("batch:model+data;d:fsdp")
    assert not conflicts
    # An axis that the mesh lacks may be anywhere.
    optional = Mesh("data:2;model:2", "batch:pod+data+model", optional_axes="pod")
    placement, _conflicts = optional.place(Shape("batch:16"))
    assert placement == Placement("batch:data+model")


def test_devices_are_counted():
    with pytest.raises(
        MeshError, match="(?s)4 positions, but 2 devices.*one device for each"
    ):
        Mesh("data:2;model:2", devices=["/CPU:0", "/CPU:1"])
    assert Mesh("data:2", devices=["/CPU:0", "/CPU:0"]).devices == ["/CPU:0", "/CPU:0"]


@pytest.mark.parametrize(
    "devices, message",
    [
        ("cuda", 'no setting of devices.*"spmd:cuda".*"logical:4"'),
        ("spmd:cpu:8", '4 positions.*mesh  *data:2;model:2.*"spmd:cpu:4"'),
        ("spmd:cuda:x", '4 positions.*"spmd:cuda:4", or leave the count out'),
        ("spmd:8", '4 positions.*"spmd:cpu:4"'),
        ("spmd:cpu:", '4 positions.*"spmd:cpu:4"'),
        ("spmd:cpu:4:4", '4 positions.*"spmd:cpu:4"'),
    ],
)
def test_a_setting_of_devices_is_read_at_once(devices, message):
    with pytest.raises(MeshError, match=f"(?s){message}"):
        Mesh("data:2;model:2", devices=devices)
    for devices in ("spmd", "spmd:cuda", "spmd:cpu:4", "logical:4", "abstract"):
        assert Mesh("data:2;model:2", devices=devices).devices == devices
