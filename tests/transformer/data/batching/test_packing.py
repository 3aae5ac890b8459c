"""Packing: every token once, in order, and complete texts where the packing has them."""

from __future__ import annotations

import numpy as np
import pytest

from transformer.data import (
    ByteVocabulary,
    Chunks,
    DataError,
    Packed,
    PackedPairs,
    pack,
)

BYTES = ByteVocabulary()


def texts(lengths):
    return [{"text": chr(97 + k % 26) * n} for k, n in enumerate(lengths)]


def unpack(examples, name):
    """Yields the tokens of each segment of packed examples."""
    for example in examples:
        tokens = example[name]
        segments = example[f"{name}_segments"]
        positions = example[f"{name}_positions"]
        assert len(tokens) == len(segments) == len(positions)
        for k in range(1, segments.max() + 1):
            section = tokens[segments == k]
            assert np.array_equal(positions[segments == k], np.arange(len(section)))
            assert (np.diff(np.flatnonzero(segments == k)) == 1).all()
            yield section


def test_chunks_are_the_text():
    documents = texts([0, 3, 10, 1, 25])
    examples = list(Chunks(BYTES, 7)(documents, (0,)))
    expected = np.concatenate(
        [[*BYTES.encode(doc["text"]), BYTES.eos_id] for doc in documents]
    )
    assert [len(example["targets"]) for example in examples] == [7] * 6 + [2]
    assert np.array_equal(
        np.concatenate([example["targets"] for example in examples]), expected
    )
    assert len(list(Chunks(BYTES, 7, min_length=3)(documents, (0,)))) == 6


@pytest.mark.parametrize("seed", range(3))
def test_packed_texts_are_complete_and_examples_nearly_full(seed):
    print("seed", seed)
    lengths = np.random.default_rng(seed).integers(0, 30, 300)
    documents = texts(lengths)
    examples = list(Packed(BYTES, 32)(documents, (0,)))
    assert max(len(example["targets"]) for example in examples) <= 32
    decoded = sorted(BYTES.decode(ids) for ids in unpack(examples, "targets"))
    assert decoded == sorted(doc["text"] for doc in documents)
    assert (lengths.sum() + 300) / (32 * len(examples)) > 0.9


def test_a_long_text_is_split():
    examples = list(Packed(BYTES, 4)(texts([9]), (0,)))
    assert [len(ids) for ids in unpack(examples, "targets")] == [4, 4, 2]


def test_inputs_and_targets_of_a_pair_have_the_same_segment():
    documents = [{"a": "x" * (k % 5), "b": "y" * (k % 3)} for k in range(40)]
    examples = list(PackedPairs(BYTES, 12, 9, fields=("a", "b"))(documents, (0,)))
    pairs = [
        tuple(map(BYTES.decode, pair))
        for example in examples
        for pair in zip(
            unpack([example], "inputs"), unpack([example], "targets"), strict=True
        )
    ]
    assert sorted(pairs) == sorted((doc["a"], doc["b"]) for doc in documents)
    assert all(
        len(example["inputs"]) <= 12 and len(example["targets"]) <= 9
        for example in examples
    )


def test_error_of_examples_that_do_not_fit():
    with pytest.raises(
        DataError, match="targets of 5 tokens do not fit into examples of 4"
    ):
        list(pack([{"targets": np.arange(5)}], {"targets": 4}))
