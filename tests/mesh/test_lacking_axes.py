"""Misspelt mesh axes: in rules, in the mesh itself, in `stages`; what may be absent is
quiet.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import gin
import numpy as np
import pytest

import meshtf as mtf
from meshtf.mesh import Mesh
from tests.support.refusals import ones, refuses
from transformer.cli import command_line, config_files

WRONG = [
    (
        {"layout": "batch:dta"},
        "layout rule batch:dta: .* has no axis 'dta'.*Did you mean data",
    ),
    ({"variable_layout": "d:modle"}, "layout rule d:modle.*Did you mean model"),
    (
        {"optimizer_layout": "d:nowhere"},
        'd:nowhere.*may be absent.*optional_axes="nowhere"',
    ),
    ({"stages": "stge"}, "stages='stge': the mesh has no axis"),
]


@pytest.mark.parametrize("wrong, words", WRONG)
def test_an_axis_that_the_mesh_lacks(wrong, words):
    with pytest.warns(mtf.LayoutWarning, match=f"(?s){words}") as caught:
        Mesh("data:2;model:2", **wrong)
    assert [Path(w.filename) for w in caught] == [Path(__file__)]  # once, at this line
    with refuses(mtf.LayoutError, words):
        Mesh("data:2;model:2", strict=True, **wrong)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "optional", ["dta;modle;nowhere;stge", ["dta", "modle", "nowhere", "stge"]]
)
def test_what_may_be_absent_is_quiet(strict, optional, recwarn):
    for wrong, _ in WRONG:
        mesh = Mesh("data:2;model:2", strict=strict, optional_axes=optional, **wrong)
        assert "counts as size 1" in mesh.notes[0]
        Mesh("", strict=strict, **wrong)  # one position: nothing is sharded
        Mesh("data:1", strict=strict, **wrong)
    assert not recwarn.list


def test_rules_of_a_region():
    mesh = Mesh("data:2", "batch:data")
    with (
        pytest.warns(mtf.LayoutWarning, match="layout rule d:dat: .*has no axis 'dat'"),
        mtf.layout("d:dat"),
    ):
        mtf.ones(mesh, "batch:4;d:4")
    strict = Mesh("data:2", "batch:data", strict=True)
    with (
        refuses(mtf.LayoutError, "layout rule d:dat", "Did you mean data"),
        mtf.layout("d:dat"),
    ):
        mtf.ones(strict, "batch:4;d:4")


LAYING = [
    lambda x: mtf.split(x, "d", "dat"),
    lambda x: mtf.shard(x, {"batch": "data", "d": "dat"}),
    lambda x: mtf.shard(x, "d:dat"),
]


@pytest.mark.parametrize("shard_fn", LAYING)
@pytest.mark.parametrize("recorded", [False, True])
def test_one_tensor_is_not_sharded_along_an_axis_that_the_mesh_lacks(
    shard_fn, recorded
):
    mesh = Mesh("data:2", "batch:data")
    run = mtf.function(shard_fn, mesh=mesh) if recorded else shard_fn
    with refuses(
        mtf.LayoutError,
        "has no axis 'dat'",
        "Did you mean data",
        "test_lacking_axes.py",
        'optional_axes="dat"',
    ):
        run(mtf.ones(mesh, "batch:4;d:4"))


@pytest.mark.parametrize("shard_fn", LAYING)
def test_one_tensor_along_an_axis_that_may_be_absent(shard_fn, recwarn):
    for mesh in (
        Mesh("data:2", "batch:data", optional_axes="dat"),
        Mesh("", strict=True),
        Mesh("data:1", "batch:data"),
    ):
        np.testing.assert_array_equal(
            shard_fn(mtf.ones(mesh, "batch:4;d:4")).numpy(), 1.0
        )
    assert not recwarn.list


def trained(region="", **mesh):
    """Runs a program that writes a variable, and returns it."""
    mesh = Mesh(**mesh)
    w = mtf.Variable(mesh, "d:4", ones, "w")

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        with mtf.layout(region):
            w.assign(w + mtf.reduce_sum(x * 1.0, "batch"))

    step(np.ones((4, 4), "float32"))
    return step


@pytest.mark.parametrize(
    "mesh, words",
    [
        (
            {"axes": "daat:2", "layout": "batch:data", "optional_axes": "data"},
            "'daat'.*mean data",
        ),
        (
            {
                "axes": "data:2;modle:2",
                "layout": "batch:data",
                "optional_axes": "model",
            },
            "'modle'.*2 positions compute the same.*mean model",
        ),
        ({"axes": "data:2;stge:2", "layout": "batch:data"}, "'stge'.*mean stage"),
        (
            {"axes": "rows:2", "layout": "batch:data", "optional_axes": "data"},
            "'rows'.*\"batch:rows\", or take",
        ),
    ],
)
def test_an_axis_that_no_rule_names(mesh, words):
    with pytest.warns(
        mtf.LayoutWarning, match=f"(?s)no rule of the layout names mesh axis {words}"
    ) as caught:
        step = trained(**mesh)
    assert [Path(w.filename) for w in caught] == [Path(__file__)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(np.ones((8, 4), "float32"))  # once
    with refuses(mtf.LayoutError, "no rule of the layout names mesh axis"):
        trained(strict=True, **mesh)


def test_a_misspelt_rule_is_not_proposed_for_an_axis():
    with pytest.warns(mtf.LayoutWarning) as caught:
        trained(axes="data:2;rows:2", layout="batch:dta;d:rows")
    lacking, unused = (str(w.message) for w in caught)
    assert "no axis 'dta'" in lacking
    assert "names mesh axis 'data'" in unused
    assert 'Did you mean "data" where a rule names dta?' in unused
    with pytest.warns(mtf.LayoutWarning):
        mesh = Mesh("data:2;rows:2", "batch:dta", devices="abstract")
        plan = mtf.explain(lambda x: x * 2.0, mtf.ones(mesh, "batch:4"))
    assert any('mean "data" where' in note for note in plan.notes)


def test_what_is_a_little_like_stage_is_no_misspelling_of_it(recwarn):
    step = trained(axes="data:2;space:2", layout="batch:data")
    (note,) = step.explain(np.ones((4, 4), "float32")).notes
    assert "'space'" in note and "stage" not in note
    assert not recwarn.list


@pytest.mark.parametrize(
    "mesh",
    [
        {
            "axes": "data:2;model:2",
            "layout": "batch:data",
            "variable_layout": "d:model",
        },
        {
            "axes": "data:2;model:2",
            "layout": "batch:data",
            "optimizer_layout": "d:model",
        },
        {"axes": "data:2;stage:2", "layout": "batch:data"},
        {"axes": "data:2;pipe:2", "layout": "batch:data", "stages": "pipe"},
        {"axes": "data:2;model:2", "layout": "batch:data", "region": "d:model"},
        {"axes": "data:2;model:1", "layout": "batch:data"},
        {"axes": ""},
    ],
)
def test_axes_that_are_used(mesh, recwarn):
    step = trained(strict=True, **mesh)
    assert not step.explain(np.ones((4, 4), "float32")).notes
    assert not recwarn.list


@pytest.mark.parametrize(
    "mesh", [{"axes": "data:2;idle:2", "layout": "batch:data"}, {"axes": "idle:2"}]
)
def test_an_axis_that_is_idle_on_purpose_is_noted(mesh, recwarn):
    step = trained(strict=True, **mesh)
    (note,) = step.explain(np.ones((4, 4), "float32")).notes
    assert (
        "no rule of the layout names mesh axis 'idle': its 2 positions compute the same"
        in note
    )
    assert not recwarn.list


def test_a_forecast_tells_of_them():
    mesh = Mesh("daat:2", "batch:data", optional_axes="data", devices="abstract")
    with pytest.warns(mtf.LayoutWarning, match="mesh axis 'daat'"):
        plan = mtf.explain(lambda x: x * 2.0, mtf.ones(mesh, "batch:4"))
    assert any(
        "mesh axis daat: no rule" in note and "mean data" in note for note in plan.notes
    )
    assert "mesh axis daat" in str(plan)


SHIPPED = sorted(
    path.relative_to(config_files.config_folder())
    for path in Path(config_files.config_folder()).rglob("*.gin")
)


@pytest.mark.parametrize("axes", ["data:4;model:2", "data:2", "model:2", ""])
def test_shipped_layouts_shrink_with_the_mesh(axes, recwarn):
    checked = 0
    for path in SHIPPED:
        text = (Path(config_files.config_folder()) / path).read_text(encoding="utf-8")
        if (
            not re.search(r"^Mesh\.layout", text, re.MULTILINE)
            or path.parts[0] == "layouts"
        ):
            continue
        gin.clear_config()
        command_line.configure(
            [str(path)],
            [
                f'Mesh.axes = "{axes}"',
                "Mesh.strict = True",
                'Mesh.devices = "abstract"',
            ],
        )
        gin.get_configurable("Mesh")()
        checked += 1
    gin.clear_config()
    assert checked >= 8 and not recwarn.list
