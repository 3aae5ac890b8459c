"""benchmarks.pipeline.largest_model: the model that it finds is the largest that fits."""

from __future__ import annotations

import pytest

from benchmarks.pipeline import largest_model
from benchmarks.pipeline.largest_model import Sizes, forecast_step, largest, search

SMALL = Sizes(
    vocab=64, d_model=16, d_ff=32, heads=2, d_kv=8, length=8, batch=4, microbatches=4
)


@pytest.mark.parametrize("stages", [1, 2, 3, 9])
def test_search_finds_the_most_blocks_although_peaks_are_not_linear(stages):
    asked = []

    def peaks(blocks):
        asked.append(len(blocks))
        last = len(blocks) - 1
        return [
            3 * n + n * n / 50 + 20 * (k in (0, last)) + min(8, last - k)
            for k, n in enumerate(blocks)
        ]

    found = largest(peaks, stages, 100, 1, 4)
    assert max(peaks(found)) <= 100 < min(peaks([n + 1 for n in found]))
    assert all(n <= 3 for n in asked[:2])  # the guess is a short pipeline's
    with pytest.raises(
        RuntimeError, match="one block is more than a stage holds in 20 bytes"
    ):
        largest(peaks, stages, 20, 1, 4)


@pytest.mark.parametrize("stages, schedule", [(1, "gpipe"), (4, "1f1b")])
def test_found_model_fits_and_one_more_block_does_not(stages, schedule):
    limit = 160e3
    found, row = search(SMALL, stages, limit, schedule)
    forecast = forecast_step(SMALL, found, schedule)
    assert (
        row.peak == forecast.memory.peak <= limit
        and row.blocks == sum(found) > 2 * stages
    )
    for k in range(stages):
        larger = forecast_step(
            SMALL, [n + (k == i) for i, n in enumerate(found)], schedule
        )
        assert larger.memory.peak > limit
    width = SMALL.d_model
    norms = 4 * SMALL.d_model
    kernels = 4 * width**2 + 2 * width * SMALL.d_ff
    assert row.parameters == sum(found) * (kernels + norms) + 2 * SMALL.vocab * width
    assert row.parameter_bytes == 12 * row.parameters


def test_table_has_the_published_model_beside_ours():
    row = largest_model.Row(142, 7279.3e6, 87.4e9, 36.5e9, 15.82e9)
    text = "\n".join(largest_model.lines(8, (17, *[18] * 6, 17), row, 20.0))
    for words in (
        "published 103 5,300.0 63.9 54.7",
        "explained 142 7,279.3 87.4 36.5 15.82",
        "17 at 1 stage, 18 at 6 stages, 17 at 1 stage; found in 20 s of processor",
    ):
        assert words in " ".join(text.split())
