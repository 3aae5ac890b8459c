"""Conversion rules: axes by name, fused tensors, stacked layers, and errors."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from transformer.convert.rules import Rule, each_layer, table, to_tensors, to_variables


class Arrays(dict):
    """Tensors as rules want them."""

    def shape(self, name):
        return self[name].shape


FUSED = Rule("fused", "attention/[q,k,v]", "d_model (* heads d_kv)")
QKV = {f"attention/{n}": mtf.Shape("d_model:6; heads:2; d_kv:3") for n in "qkv"}


def test_a_transpose_of_merged_heads(rng):
    shapes = {"out": mtf.Shape("heads:2; d_kv:3; d_model:5")}
    tensors = Arrays({"o.weight": rng.normal(size=(5, 6)).astype(np.float32)})
    rules = [Rule("o.weight", "out", "d_model (heads d_kv)")]
    variables = to_variables(rules, shapes, tensors, {})
    for head in range(2):
        for number in range(3):
            np.testing.assert_array_equal(
                variables["out"][head, number],
                tensors["o.weight"][:, 3 * head + number],
            )
    np.testing.assert_array_equal(
        to_tensors(rules, shapes, variables, {})["o.weight"], tensors["o.weight"]
    )


def test_a_fused_tensor_is_split(rng):
    tensors = Arrays(fused=rng.normal(size=(6, 18)).astype(np.float32))
    variables = to_variables([FUSED], QKV, tensors, {})
    for i, name in enumerate("qkv"):
        np.testing.assert_array_equal(
            variables[f"attention/{name}"].reshape(6, 6),
            tensors["fused"][:, 6 * i : 6 * i + 6],
        )
    np.testing.assert_array_equal(
        to_tensors([FUSED], QKV, variables, {})["fused"], tensors["fused"]
    )


def test_layers_with_variables_of_their_own(rng):
    rules = each_layer(2, table("w  w  d_ff d_model", "h.{layer}.", "block_{layer}/"))
    shapes = {f"block_{i}/w": mtf.Shape("d_model:2; d_ff:3") for i in range(2)}
    tensors = Arrays(
        {f"h.{i}.w": rng.normal(size=(3, 2)).astype(np.float32) for i in range(2)}
    )
    variables = to_variables(rules, shapes, tensors, {})
    np.testing.assert_array_equal(variables["block_1/w"], tensors["h.1.w"].T)


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
    tensors = Arrays(
        {f"h.{i}.ab": rng.normal(size=(8, 2)).astype(np.float32) for i in range(3)}
    )
    tensors |= {f"h.{i}.scale": rng.normal(size=2).astype(np.float32) for i in range(3)}
    variables = to_variables(rules, shapes, Arrays(tensors), {})
    np.testing.assert_array_equal(variables["blocks/b"][2], tensors["h.2.ab"][4:].T)
    np.testing.assert_array_equal(variables["blocks/scale"][1], tensors["h.1.scale"])
    back = to_tensors(rules, shapes, variables, {})
    assert set(back) == set(tensors)
    assert all(back[n].tobytes() == tensors[n].tobytes() for n in tensors)


def test_names_and_shapes_that_differ_are_errors():
    rules = [
        FUSED,
        Rule("final.weight", "norm/scale", "d_model"),
        Rule("x", "x", "d_model"),
    ]
    shapes = {**QKV, "norm/scale": mtf.Shape("d_model:6"), "x": mtf.Shape("d_model:6")}
    tensors = Arrays(
        {"fused": np.zeros((6, 17)), "finale.weight": np.zeros(6), "x": np.zeros(6)}
    )
    with pytest.raises(mtf.CheckpointError) as error:
        to_variables(rules, shapes, tensors, {})
    text = str(error.value)
    assert "final.weight (similar: finale.weight)" in text and "unknown" in text
    assert "fused: (6, 17), expected (6, 18)" in text


def test_padding_of_variables_is_not_in_tensors(rng):
    rules, shapes = (
        table("e   table   d_model vocab"),
        {"table": mtf.Shape("vocab:8; d_model:2")},
    )
    tensors = Arrays(e=rng.normal(size=(2, 5)).astype(np.float32))
    variables = to_variables(rules, shapes, tensors, {"vocab": 5})
    np.testing.assert_array_equal(variables["table"][:5], tensors["e"].T)
    assert not variables["table"][5:].any()
    np.testing.assert_array_equal(
        to_tensors(rules, shapes, variables, {"vocab": 5})["e"], tensors["e"]
    )


def test_variables_without_a_rule_are_an_error():
    with pytest.raises(mtf.CheckpointError, match="moe/gate"):
        to_variables(
            [FUSED],
            {**QKV, "moe/gate": mtf.Shape("d_model:6")},
            Arrays(fused=np.zeros((6, 18))),
            {},
        )
