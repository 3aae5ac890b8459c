"""Configurations that do not fit are refused, and say what to do."""

from __future__ import annotations

import json

import pytest

import meshtf as mtf
from examples.bert.shared import model_setup, program_flags
from tests.examples.bert.conftest import SIZES, with_flags
from transformer.data import DataError


def write(folder, **changed):
    path = folder / "other.json"
    sizes = {
        name: value for name, value in {**SIZES, **changed}.items() if value is not None
    }
    path.write_text(json.dumps(sizes))
    return str(path)


def test_sizes_are_those_of_bert(folder):
    results = model_setup.read_config(
        write(
            folder,
            initializer_range=0.3,
            hidden_dropout_prob=0.2,
            attention_probs_dropout_prob=0.2,
        )
    )
    a = results.architecture
    assert (a.vocab, a.d_model, a.d_ff, a.heads, a.d_kv, a.blocks) == (
        40,
        8,
        16,
        2,
        4,
        1,
    )
    assert (a.max_length, a.token_types, a.dropout, a.activation) == (
        32,
        2,
        0.2,
        "gelu_exact",
    )
    assert results.initializer_range == 0.3


@pytest.mark.parametrize(
    "changed, says",
    [
        ({"hidden_size": None}, "other.json: .*has no 'hidden_size'"),
        ({"num_attention_heads": 3}, "3 heads do not divide hidden_size 8"),
        ({"hidden_act": "sine"}, "other.json: .*activation 'sine'"),
        ({"attention_probs_dropout_prob": 0.5}, "attention_probs_dropout_prob: 0.5"),
    ],
)
def test_sizes_that_cannot_be(folder, changed, says):
    with pytest.raises(DataError, match=f"(?s){says}"):
        model_setup.read_config(write(folder, **changed))


def test_a_file_that_is_no_json(folder):
    (folder / "other.json").write_text('{"vocab_size": 3,\n oh}')
    with pytest.raises(DataError, match="other.json:2: is no JSON"):
        model_setup.read_config(str(folder / "other.json"))
    with pytest.raises(DataError, match="--bert_config_file cannot be read"):
        model_setup.read_config(str(folder / "absent.json"))


@pytest.mark.parametrize(
    "changed, says",
    [
        (
            {"vocab_size": 20},
            "vocab.txt has 39 pieces, but .*other.json has room for 20",
        ),
        (
            {"max_position_embeddings": 16},
            "--max_seq_length=24, but .* has 16 positions",
        ),
    ],
)
def test_vocabulary_and_rows_must_fit(folder, vocabulary, changed, says):
    with with_flags(bert_config_file=write(folder, **changed), max_seq_length=24):
        with pytest.raises(DataError, match=says):
            model_setup.config(vocabulary)


@pytest.mark.parametrize(
    "axes, rules",
    [
        ("", ""),
        ("data:2", "batch:data"),
        ("model:2", "heads:model; d_ff:model; vocab:model"),
        ("data:2; model:1", program_flags.DEFAULT_LAYOUT),
    ],
)
def test_the_layout_is_as_far_as_the_mesh_goes(axes, rules, recwarn):
    with with_flags(mesh=axes):
        mesh = model_setup.mesh()
    exists = [
        f"{name}:{axis}" for name, (axis,) in mesh.layout.items() if axis in mesh.axes
    ]
    assert "; ".join(exists) == rules
    assert not recwarn.list


def test_a_misspelt_axis_is_answered():
    with with_flags(mesh="daat:2"):
        unused = mtf.mesh.LayoutUse().unused_axes(model_setup.mesh())
    assert unused == {"daat": "data"}  # a warning with the first program
    with with_flags(mesh="data:2", layout="batch:daat"):
        with pytest.warns(mtf.LayoutWarning, match="Did you mean data"):
            model_setup.mesh()
