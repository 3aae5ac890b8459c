"""Features: the arrays of each kind of model, compared with arrays by hand."""

from __future__ import annotations

import numpy as np
import pytest

from transformer.data import (
    BertFeatures,
    ClassifierFeatures,
    DataError,
    EncoderDecoderFeatures,
    LanguageModelFeatures,
    PrefixFeatures,
)
from transformer.data.batching.features import specs

PACKED = {
    "targets": np.array([5, 6, 7, 8]),
    "targets_segments": np.array([1, 1, 2, 2]),
    "targets_positions": np.array([0, 1, 0, 1]),
}


def check(features, example, **expected):
    made = features(example)
    wanted = specs(features, 3)
    assert list(made) == list(wanted) == list(expected)
    for name, values in expected.items():
        assert made[name].tolist() == values, name
        assert made[name].dtype == wanted[name].dtype, name
        assert (3, *made[name].shape) == wanted[name].shape, name


def test_language_model():
    check(
        LanguageModelFeatures(4),
        {"targets": np.array([5, 0, 7])},
        tokens=[0, 5, 0, 0],
        targets=[5, 0, 7, 0],
        weights=[1, 1, 1, 0],
    )


def test_packed_rows_begin_anew_in_each_segment():
    check(
        LanguageModelFeatures(6, packed=True),
        PACKED,
        tokens=[0, 5, 0, 7, 0, 0],
        targets=[5, 6, 7, 8, 0, 0],
        weights=[1, 1, 1, 1, 0, 0],
        segments=[1, 1, 2, 2, 0, 0],
        positions=[0, 1, 0, 1, 0, 0],
    )


def test_a_prefix_is_visible_and_only_targets_are_predicted():
    check(
        PrefixFeatures(6),
        {"inputs": np.array([5, 6]), "targets": np.array([7, 8, 9])},
        tokens=[0, 5, 6, 7, 8, 0],
        targets=[5, 6, 7, 8, 9, 0],
        weights=[0, 0, 1, 1, 1, 0],
        prefix=[True] * 3 + [False] * 3,
    )


def test_encoder_and_decoder():
    check(
        EncoderDecoderFeatures(3, 4),
        {"inputs": np.array([5, 6]), "targets": np.array([7, 8])},
        inputs=[5, 6, 0],
        tokens=[0, 7, 0, 0],
        targets=[7, 8, 0, 0],
        weights=[1, 1, 0, 0],
    )


def test_packed_encoder_and_decoder():
    example = {
        **PACKED,
        "inputs": np.array([3, 4]),
        "inputs_segments": np.array([1, 2]),
        "inputs_positions": np.array([0, 0]),
    }
    check(
        EncoderDecoderFeatures(3, 5, packed=True),
        example,
        inputs=[3, 4, 0],
        input_segments=[1, 2, 0],
        input_positions=[0, 0, 0],
        tokens=[0, 5, 0, 7, 0],
        targets=[5, 6, 7, 8, 0],
        weights=[1, 1, 1, 1, 0],
        segments=[1, 1, 2, 2, 0],
        positions=[0, 1, 0, 1, 0],
    )


def test_bert():
    check(
        BertFeatures(4, 2),
        {
            "tokens": np.array([2, 4, 3]),
            "token_types": np.array([0, 0, 1]),
            "masked_positions": np.array([1]),
            "masked_ids": np.array([9]),
            "next_sentence_labels": np.array([1]),
        },
        tokens=[2, 4, 3, 0],
        token_types=[0, 0, 1, 0],
        masked_positions=[1, 0],
        masked_ids=[9, 0],
        masked_weights=[1, 0],
        next_sentence_labels=1,
    )


def test_classifier():
    check(
        ClassifierFeatures(4),
        {"tokens": np.array([2, 4]), "token_types": np.array([0, 0]), "labels": 2},
        tokens=[2, 4, 0, 0],
        token_types=[0] * 4,
        labels=2,
    )


@pytest.mark.parametrize(
    "example, message",
    [
        (
            {"targets": np.arange(5)},
            "'targets' of an example has 5 elements, more than 4",
        ),
        ({"inputs": np.arange(5)}, "has no 'targets', but 'inputs'"),
        ({"targets": "text"}, "must be a list of integers"),
        ({"targets": np.ones(2)}, "must be a list"),
    ],
)
def test_errors_of_features(example, message):
    with pytest.raises(DataError, match=message):
        LanguageModelFeatures(4)(example)
