"""Rules between names: axes by name, fused tensors, rows of stacked variables, and
diffs.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from transformer.convert.rules import Rule, each_layer, table, to_ours, to_theirs


class Arrays(dict):
    """Tensors as rules want them."""

    def shape(self, name):
        return self[name].shape


FUSED = Rule("fused", "attention/[q,k,v]", "d_model (* heads d_kv)")
QKV = {f"attention/{n}": mtf.Shape("d_model:6; heads:2; d_kv:3") for n in "qkv"}


def test_a_transpose_of_merged_heads(rng):
    shapes = {"out": mtf.Shape("heads:2; d_kv:3; d_model:5")}
    theirs = Arrays({"o.weight": rng.normal(size=(5, 6)).astype(np.float32)})
    rules = [Rule("o.weight", "out", "d_model (heads d_kv)")]
    ours = to_ours(rules, shapes, theirs, {})
    for head in range(2):
        for number in range(3):
            np.testing.assert_array_equal(
                ours["out"][head, number], theirs["o.weight"][:, 3 * head + number]
            )
    np.testing.assert_array_equal(
        to_theirs(rules, shapes, ours, {})["o.weight"], theirs["o.weight"]
    )


def test_a_fused_tensor_is_cut_into_its_parts(rng):
    theirs = Arrays(fused=rng.normal(size=(6, 18)).astype(np.float32))
    ours = to_ours([FUSED], QKV, theirs, {})
    for i, name in enumerate("qkv"):
        np.testing.assert_array_equal(
            ours[f"attention/{name}"].reshape(6, 6),
            theirs["fused"][:, 6 * i : 6 * i + 6],
        )
    np.testing.assert_array_equal(
        to_theirs([FUSED], QKV, ours, {})["fused"], theirs["fused"]
    )


def test_layers_with_variables_of_their_own(rng):
    rules = each_layer(2, table("w  w  d_ff d_model", "h.{layer}.", "block_{layer}/"))
    shapes = {f"block_{i}/w": mtf.Shape("d_model:2; d_ff:3") for i in range(2)}
    theirs = Arrays(
        {f"h.{i}.w": rng.normal(size=(3, 2)).astype(np.float32) for i in range(2)}
    )
    ours = to_ours(rules, shapes, theirs, {})
    np.testing.assert_array_equal(ours["block_1/w"], theirs["h.1.w"].T)


def test_rows_of_one_variable_for_all_layers(rng):
    rules = each_layer(
        3,
        table(
            """
      ab      [a,b]   (* d_ff) d_model
      scale   scale   d_model
      """,
            "h.{layer}.",
            "blocks/",
        ),
    )
    shapes = {
        "blocks/a": mtf.Shape("layers:3; d_model:2; d_ff:4"),
        "blocks/b": mtf.Shape("layers:3; d_model:2; d_ff:4"),
        "blocks/scale": mtf.Shape("layers:3; d_model:2"),
    }
    theirs = Arrays(
        {f"h.{i}.ab": rng.normal(size=(8, 2)).astype(np.float32) for i in range(3)}
    )
    theirs |= {f"h.{i}.scale": rng.normal(size=2).astype(np.float32) for i in range(3)}
    ours = to_ours(rules, shapes, Arrays(theirs), {})
    np.testing.assert_array_equal(ours["blocks/b"][2], theirs["h.2.ab"][4:].T)
    np.testing.assert_array_equal(ours["blocks/scale"][1], theirs["h.1.scale"])
    back = to_theirs(rules, shapes, ours, {})
    assert set(back) == set(theirs)
    assert all(back[n].tobytes() == theirs[n].tobytes() for n in theirs)


def test_names_and_shapes_that_differ_are_told():
    rules = [
        FUSED,
        Rule("final.weight", "norm/scale", "d_model"),
        Rule("x", "x", "d_model"),
    ]
    shapes = {**QKV, "norm/scale": mtf.Shape("d_model:6"), "x": mtf.Shape("d_model:6")}
    theirs = Arrays(
        {"fused": np.zeros((6, 17)), "finale.weight": np.zeros(6), "x": np.zeros(6)}
    )
    with pytest.raises(mtf.CheckpointError) as error:
        to_ours(rules, shapes, theirs, {})
    text = str(error.value)
    assert "final.weight (close: finale.weight)" in text and "unknown" in text
    assert "fused: (6, 17) found, (6, 18) wanted" in text


def test_what_we_fill_up_is_left_out_there(rng):
    rules, shapes = (
        table("e   table   d_model vocab"),
        {"table": mtf.Shape("vocab:8; d_model:2")},
    )
    theirs = Arrays(e=rng.normal(size=(2, 5)).astype(np.float32))
    ours = to_ours(rules, shapes, theirs, {"vocab": 5})
    np.testing.assert_array_equal(ours["table"][:5], theirs["e"].T)
    assert not ours["table"][5:].any()
    np.testing.assert_array_equal(
        to_theirs(rules, shapes, ours, {"vocab": 5})["e"], theirs["e"]
    )


def test_variables_without_a_rule_are_told():
    with pytest.raises(mtf.CheckpointError, match="moe/gate"):
        to_ours(
            [FUSED],
            {**QKV, "moe/gate": mtf.Shape("d_model:6")},
            Arrays(fused=np.zeros((6, 18))),
            {},
        )
