"""Rows: every token once, in order, and each text whole where it should be."""

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


def unpacked(rows, name):
    for row in rows:
        segments, positions = row[f"{name}_segments"], row[f"{name}_positions"]
        assert len(row[name]) == len(segments) == len(positions)
        for k in range(1, segments.max() + 1):
            part = row[name][segments == k]
            assert np.array_equal(positions[segments == k], np.arange(len(part)))
            assert (np.diff(np.flatnonzero(segments == k)) == 1).all()
            yield part


def test_chunks_are_the_text():
    documents = texts([0, 3, 10, 1, 25])
    rows = list(Chunks(BYTES, 7)(documents, (0,)))
    whole = np.concatenate(
        [[*BYTES.encode(doc["text"]), BYTES.eos_id] for doc in documents]
    )
    assert [len(row["targets"]) for row in rows] == [7] * 6 + [2]
    assert np.array_equal(np.concatenate([row["targets"] for row in rows]), whole)
    assert len(list(Chunks(BYTES, 7, min_length=3)(documents, (0,)))) == 6


@pytest.mark.parametrize("seed", range(3))
def test_packed_texts_are_whole_and_rows_are_rather_full(seed):
    print("seed", seed)
    lengths = np.random.default_rng(seed).integers(0, 30, 300)
    documents = texts(lengths)
    rows = list(Packed(BYTES, 32)(documents, (0,)))
    assert max(len(row["targets"]) for row in rows) <= 32
    found = sorted(BYTES.decode(part) for part in unpacked(rows, "targets"))
    assert found == sorted(doc["text"] for doc in documents)
    assert (lengths.sum() + 300) / (32 * len(rows)) > 0.9


def test_a_long_text_is_cut_into_several():
    rows = list(Packed(BYTES, 4)(texts([9]), (0,)))
    assert [len(part) for part in unpacked(rows, "targets")] == [4, 4, 2]


def test_pairs_are_in_the_same_segments_of_both():
    documents = [{"a": "x" * (k % 5), "b": "y" * (k % 3)} for k in range(40)]
    rows = list(PackedPairs(BYTES, 12, 9, fields=("a", "b"))(documents, (0,)))
    pairs = [
        tuple(map(BYTES.decode, pair))
        for row in rows
        for pair in zip(
            unpacked([row], "inputs"), unpacked([row], "targets"), strict=True
        )
    ]
    assert sorted(pairs) == sorted((doc["a"], doc["b"]) for doc in documents)
    assert all(len(row["inputs"]) <= 12 and len(row["targets"]) <= 9 for row in rows)


def test_what_is_longer_than_a_row_is_refused():
    with pytest.raises(
        DataError, match="targets of 5 tokens do not fit into examples of 4"
    ):
        list(pack([{"targets": np.arange(5)}], {"targets": 4}))
