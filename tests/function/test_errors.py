"""What errors say: what came, what clashes, the user's line, the way out, before
anything runs.
"""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.support.refusals import line_of, ones, refuses

HERE = r"test_errors\.py:\d+"


@pytest.fixture
def mesh():
    layout = "batch:data;heads:model;d_ff:model"
    return mtf.Mesh("data:2;model:2", layout, strict=True)


# Layouts


def test_two_dimensions_on_one_axis(mesh):
    x = mtf.ones(mesh, "batch:8;d:4")
    wq = mtf.ones(mesh, "d:4;heads:2")
    wi = mtf.ones(mesh, "d:4;d_ff:6")
    with refuses(
        mtf.LayoutError,
        'two dimensions of one tensor want mesh axis "model"',
        r"tensor +\[batch:8 heads:2 d_ff:6\]",
        r"from +mtf\.einsum, ",
        HERE,
        r"layout +batch:data; heads:model; d_ff:model",
        r"mtf\.rename\(x, \"d_ff\"",
    ) as error:
        mtf.einsum([x, wq, wi], "batch;heads;d_ff")
    assert 'mtf.einsum([x, wq, wi], "batch;heads;d_ff")' in line_of(
        str(error.value), __file__
    )
    layout, marks = re.search(r"( +layout .*)\n( +\^.*)\n", str(error.value)).groups()
    marked = "".join(c for c, m in zip(layout, marks.ljust(len(layout))) if m == "^")
    assert marked == "heads:model" + "d_ff:model"


def test_a_size_that_the_axis_does_not_divide(mesh):
    with refuses(
        mtf.LayoutError,
        '"batch" of size 7 cannot be split into 2',
        r"tensor +\[batch:7 d:3\]",
        HERE,
        "mesh +data:2;model:2",
        "layout +batch:data",
        "multiple of 2 .next: 8.",
        r"mtf\.rename\(x, \"batch\"",
    ) as error:
        mtf.zeros(mesh, "batch:7;d:3")
    assert "mtf.zeros" in line_of(str(error.value), __file__)


def test_arrays_and_variables_that_the_layout_cannot_hold(mesh):
    with refuses(mtf.LayoutError, '"batch" of size 3', r"mtf\.asarray", HERE):
        mtf.asarray(mesh, np.zeros(3), "batch")
    with refuses(
        mtf.LayoutError, '"heads" of size 5', r"variable +\[d:2 heads:5\]", "'wq'", HERE
    ):
        mtf.Variable(mesh, "d:2;heads:5", ones, "wq")
    with refuses(
        mtf.LayoutError, "two dimensions of one variable", '"model"', "'w'", HERE
    ):
        mtf.Variable(mesh, "heads:2;d_ff:2", ones, "w")


def test_inside_of_a_function_the_line_is_the_users_own(mesh):
    @mtf.function(mesh=mesh)
    def f():
        return mtf.ones(mesh, "heads:4;d_ff:8")

    with refuses(mtf.LayoutError, '"model"', r"mtf\.ones", HERE) as error:
        f()
    assert "return mtf.ones" in line_of(str(error.value), __file__)


@pytest.mark.parametrize(
    "dims, sizes, words",
    [
        ("batch;d", (7, 4), '"batch" of size 7'),
        ("heads;d_ff", (4, 4), 'mesh axis "model"'),
    ],
)
@pytest.mark.parametrize("mesh_known", [True, False])
def test_an_argument_that_the_layout_cannot_hold(mesh, dims, sizes, words, mesh_known):
    v = mtf.Variable(mesh, "other:4", ones, "v")

    @mtf.function(mesh=mesh if mesh_known else None, tokens=dims)
    def f(tokens):
        return mtf.reduce_sum(v.tensor()) + mtf.reduce_sum(tokens * 2.0)

    with refuses(mtf.LayoutError, words, "argument 'tokens'"):
        f(np.zeros(sizes, "float32"))


def test_an_argument_that_the_layout_cannot_hold_and_nobody_uses():
    mesh = mtf.Mesh("data:2", "batch:data", strict=True)

    @mtf.function(mesh=mesh, x="batch")
    def f(x):
        return mtf.ones(mesh, "")

    with refuses(mtf.LayoutError, '"batch" of size 7', "argument 'x'"):
        f(np.zeros(7, "float32"))


def test_a_rule_that_never_matched_warns_once_with_near_misses():
    mesh = mtf.Mesh("data:2", "bach:data")
    f = mtf.function(lambda x: x * 2.0, mesh=mesh, x="batch;d")
    with pytest.warns(
        mtf.LayoutWarning,
        match='(?s)"bach", which the program never has.*layout +bach:data.*dimensions '
        "+batch, d.*Did you mean batch",
    ) as caught:
        f(np.zeros((4, 4), "float32"))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(np.zeros((8, 4), "float32"))


def test_a_rule_that_never_matched_is_an_error_if_strict():
    mesh = mtf.Mesh("data:2", "bach:data", strict=True)
    f = mtf.function(lambda x: x * 2.0, mesh=mesh, x="batch;d")
    for _ in range(2):  # asking again does not help
        with refuses(mtf.LayoutError, '"bach"', "never has", "Did you mean batch"):
            f(np.zeros((4, 4), "float32"))


def test_rules_that_match_are_quiet():
    mesh = mtf.Mesh("data:2", "batch:data", variable_layout="d:data", strict=True)
    w = mtf.Variable(mesh, "d:4", ones, "w")
    f = mtf.function(lambda x: x * w, mesh=mesh, x="batch;d")
    assert f(np.ones((2, 4), "float32")).numpy().sum() == 8


def test_an_axis_that_the_mesh_lacks_counts_as_size_1():
    with pytest.warns(mtf.LayoutWarning, match="no axis 'modle'"):
        mesh = mtf.Mesh("data:2", "batch:data;heads:modle")
    assert len(mesh.notes) == 1
    for word in ("heads:modle", "no axis 'modle'", "counts as size 1"):
        assert word in mesh.notes[0]
    assert mtf.ones(mesh, "heads:3;batch:2").numpy().shape == (3, 2)


# Names, types and meshes


def test_inputs_joined_by_a_name_of_two_sizes(mesh):
    x = mtf.ones(mesh, "batch:4;d:4")
    w = mtf.ones(mesh, "d:5;e:2")
    with refuses(
        mtf.ShapeError,
        '"d"',
        "4",
        "5",
        "one size",
        r"\[batch:4 d:4\].*\[d:5 e:2\]",
        HERE,
    ):
        mtf.einsum([x, w], "batch;e")
    with refuses(
        mtf.ShapeError,
        "'d'",
        "4 and 5",
        r"mtf\.rename",
        r"\[batch:4 d:4\].*\[d:5\]",
        r"mtf\.add",
        HERE,
    ):
        mtf.add(x, mtf.ones(mesh, "d:5"))


def test_data_types_that_clash(mesh):
    x = mtf.ones(mesh, "d:4")
    n = mtf.ones(mesh, "d:4", "int32")
    with refuses(
        mtf.DTypeError,
        "float32 and int32",
        r"mtf\.cast",
        r"float32 \[d:4\].*int32 \[d:4\]",
        HERE,
    ) as error:
        mtf.multiply(x, n)
    assert "mtf.multiply(x, n)" in line_of(str(error.value), __file__)
    with refuses(mtf.DTypeError, "float32 and int32", r"mtf\.cast", HERE):
        mtf.einsum([x, n], "d")


def test_operators_are_called_by_names_that_there_are(mesh):
    x = mtf.ones(mesh, "d:4")
    n = mtf.ones(mesh, "d:4", "int32")
    for operator in ("*", ">", "==", "-", "/", "<="):
        with pytest.raises(mtf.DTypeError) as error:
            eval(f"x {operator} n", {"x": x, "n": n, "__name__": __name__})
        name = re.search(r"from +mtf\.(\w+), ", str(error.value)).group(1)
        assert hasattr(mtf, name), f"x {operator} n is named mtf.{name}"


def test_tensors_of_two_meshes(mesh):
    other = mtf.Mesh("data:2;model:2")
    x = mtf.ones(mesh, "d:4")
    y = mtf.ones(other, "d:4")
    with refuses(
        mtf.MeshError,
        "two meshes",
        "meshes",
        r"\[d:4\] \[d:4\]",
        r"mtf\.add",
        HERE,
        "one Mesh object",
        r"mtf\.asarray",
    ):
        mtf.add(x, y)
    with refuses(mtf.MeshError, "two meshes", "argument +y", "one Mesh object"):
        mtf.function(lambda x, y: x)(x, y)
    with refuses(mtf.MeshError, "two meshes", "argument +x"):
        mtf.function(lambda x: x, mesh=other)(x)


def test_a_variable_takes_no_value_of_another_mesh(mesh):
    v = mtf.Variable(mesh, "d_ff:4", ones, "v")
    with refuses(mtf.MeshError, "two meshes", HERE):
        v.assign(mtf.zeros(mtf.Mesh("data:4"), "d_ff:4"))


def test_values_that_a_variable_cannot_take(mesh):
    v = mtf.Variable(mesh, "d:4", ones, "v")
    with refuses(mtf.ShapeError, r"\[e:4\] does not fit a variable of \[d:4\]"):
        v.assign(mtf.ones(mesh, "e:4"))
    with refuses(mtf.ShapeError, r"\[d:4\]", r"\[5\]", HERE):
        v.assign(np.ones(5, "float32"))
    with refuses(mtf.DTypeError, "'v' is float32", r"int32 needs mtf\.cast", HERE):
        v.assign(mtf.ones(mesh, "d:4", "int32"))
    assert v.numpy().tolist() == [1] * 4


# Devices


def test_a_list_of_devices_that_is_too_short():
    with refuses(
        mtf.MeshError,
        "4 positions, but 1 devices",
        "mesh +data:4",
        "devices +/CPU:0",
        "one device for each position",
    ):
        mtf.Mesh("data:4", devices=["/CPU:0"])


@pytest.mark.parametrize("name", ["/device:CPU:99", "GPU:0", "nonsense"])
def test_a_device_that_does_not_exist(name):
    if name == "GPU:0" and tf.config.list_physical_devices("GPU"):
        pytest.skip("it is there")
    mesh = mtf.Mesh("data:8", devices=["CPU:0"] * 7 + [name])
    with refuses(
        mtf.MeshError,
        f"the device '{name}' of the mesh does not exist",
        "mesh +data:8",
        "existing +/device:CPU:0",
        r"mtf\.logical_devices\(8\)",
    ):
        mtf.ones(mesh, "d:4")


def test_logical_devices_of_another_count():
    with refuses(
        mtf.MeshError, "devices='logical:3' does not fit a mesh of 2", '"logical:2"'
    ):
        mtf.ones(mtf.Mesh("data:2", devices="logical:3"), "d:4")


def test_logical_devices_come_too_late():
    num_devices = len(tf.config.list_logical_devices("CPU"))
    with refuses(
        mtf.MeshError,
        f"started already, with {num_devices} logical",
        r"mtf\.logical_devices\(99\) at the top of the program",
    ):
        mtf.logical_devices(99)
    mtf.logical_devices(num_devices)  # as many as there are is no error


# Checkpoints


def test_a_checkpoint_of_another_model(mesh, tmp_path):
    saved = {
        name: mtf.Variable(mesh, "d:4", ones, name) for name in ("decoder/wq", "wo")
    }
    path = mtf.checkpoints.save(str(tmp_path), 1, saved)
    model = {
        "decoder/wqq": mtf.Variable(mesh, "d:4", ones, "decoder/wqq"),
        "wo": mtf.Variable(mesh, "d:8", ones, "wo"),
    }
    with refuses(
        mtf.CheckpointError,
        "another model",
        re.escape(path),
        r"not saved +decoder/wqq \[d:4\] \(close: decoder/wq\)",
        "not in model +decoder/wq",
        r"other shape +wo: \[d:4\] saved, \[d:8\] now",
        "configuration",
    ):
        mtf.checkpoints.restore(path, model)
    with refuses(mtf.CheckpointError, "absent", "does not exist", "latest"):
        mtf.checkpoints.restore(str(tmp_path / "absent"), saved)


def test_a_checkpoint_of_other_types_changes_nothing(mesh, tmp_path):
    saved = {name: mtf.Variable(mesh, "d:4", ones, name) for name in ("a", "b")}
    path = mtf.checkpoints.save(str(tmp_path), 1, saved)
    a = mtf.Variable(mesh, "d:4", lambda mesh, s, name: mtf.zeros(mesh, s), "a")
    b = mtf.Variable(
        mesh, "d:4", lambda mesh, s, name: mtf.zeros(mesh, s, "int32"), "b", "int32"
    )
    with refuses(mtf.CheckpointError, "b", "float32", "int32"):
        mtf.checkpoints.restore(path, {"a": a, "b": b})
    assert not a.numpy().any()
