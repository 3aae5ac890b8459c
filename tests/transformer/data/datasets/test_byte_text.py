"""The bytes of a corpus as `Data`: the arrays of `batches` and `windows`, by name."""

from __future__ import annotations

import numpy as np
import pytest

from transformer import data

TEXT = np.random.default_rng(0).integers(1, 256, 900).astype(np.uint8)
CORPUS = data.Corpus("here", TEXT, TEXT[:100], ("a",), ("b",))


def source(**how):
    return data.ByteText(lambda: CORPUS, length=8, **how)


def take(number, batch_size=4, **how):
    return [
        {k: v.numpy() for k, v in one.items()}
        for one in source(seed=5).batches(batch_size, **how).take(number)
    ]


def test_it_is_data_and_its_batches_are_those_of_the_corpus():
    plain = data.batches(TEXT, 4, 8, seed=5, first_step=3)
    for made, (tokens, targets) in zip(take(2, start=12), plain):
        assert np.array_equal(made["tokens"], tokens) and np.array_equal(
            made["targets"], targets
        )
    assert isinstance(source(), data.Data) and str(source()) == str(CORPUS)
    for found in (source().batches(4).element_spec, source().features(4)):
        assert {
            name: (spec.shape, spec.dtype.name) for name, spec in found.items()
        } == dict.fromkeys(("tokens", "targets"), ((4, 8), "int32"))


def test_a_place_within_a_batch_is_rounded_up():
    assert np.array_equal(take(1, start=9)[0]["tokens"], take(1, start=12)[0]["tokens"])


def test_workers_read_slices():
    whole = take(3)
    halves = [take(3, worker=(w, 2)) for w in range(2)]
    for step, batch in enumerate(whole):
        parts = [half[step]["tokens"] for half in halves]
        assert [len(part) for part in parts] == [2, 2]
        assert np.array_equal(np.concatenate(parts), batch["tokens"])


@pytest.mark.parametrize("number", [None, 5])
def test_held_out_windows_and_their_counts(number):
    fixed = data.windows(CORPUS.held_out, 8, number)
    made = list(source().held_out(4, number))
    counts = np.concatenate([one["counts"] for one in made])
    targets = np.concatenate([one["targets"] for one in made])
    assert counts.sum() == len(fixed) and np.array_equal(
        targets[counts > 0], fixed[:, 1:]
    )


def test_nothing_tunes_what_is_read():
    for dataset in (source().batches(4), source().held_out(4)):
        assert dataset.options().autotune.enabled is False
