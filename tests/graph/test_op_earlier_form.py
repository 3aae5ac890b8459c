"""Ops of the contract's earlier form are refused, with what to change into what."""

from __future__ import annotations

from typing import ClassVar

import pytest

import meshtf as mtf
from tests.support.refusals import refuses


def define(members, annotations=None, base=mtf.graph.Op):
    """Returns an op class of these members."""
    return type("Mine", (base,), {**members, "__annotations__": annotations or {}})


@pytest.mark.parametrize(
    "members, reported",
    [
        (
            {"out": lambda self, x: (x,)},
            ["out", "output_specs", "LocalContext", "local_size", "shard_offset"],
        ),
        ({"linear": "joint"}, ["linear", "linearity"]),
        (
            {"needs": lambda self, i, dim: None, "fill": lambda self, i: 0.0},
            ["needs", "WindowedOp", "window", "fill", "Window that"],
        ),
        (
            {
                "shared": lambda self, f: True,
                "share": lambda self, at, x: ((x,), ()),
                "tells": lambda self, x: (x,),
            },
            [
                "OpWithStatistics",
                "statistics_specs",
                "statistics_dims",
                "local_sharded",
            ],
        ),
        (
            {"effect": "write", "update": lambda self, slices, x: None},
            ["WriteOp", "new_values", "write_in_place", "run_on_host"],
        ),
        ({"out": None, "space": lambda self, x: {}}, ["space", "first input"]),
    ],
    ids=["out", "linear", "needs", "share", "effect", "space"],
)
def test_an_op_of_the_earlier_form_is_refused(members, reported):
    with refuses(mtf.PlanError, "op Mine has members", *reported):
        define(members)


def test_a_class_variable_counts_and_a_field_does_not():
    with refuses(mtf.PlanError, "op Mine", "linearity"):
        define({"linear": "joint"}, {"linear": ClassVar[str]})
    op = define({"out": 2, "fill": 0.0}, {"out": "int", "fill": "float"})
    assert op().out == 2


def test_words_of_an_ops_own_are_free():
    define({"share": lambda self: None, "title": "mine", "update": None})


def test_members_of_a_kind_are_no_earlier_form():
    define(
        {"factor": lambda self, dim: dim, "linearity": "joint"},
        base=mtf.graph.RenamingOp,
    )
