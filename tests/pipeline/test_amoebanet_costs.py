"""AmoebaNet-D, counted by hand: its published sizes, and how it is split.

The shares of K = 2, 4 and 8 stages are what the splits of AmoebaNet-D(18, 256) come to
by the multiplications of its layers, and the speed-ups what 32 microbatches make of
them.
"""

from __future__ import annotations

import itertools

import pytest

from meshtf.pipeline import gpipe, one_f_one_b, simulate, split
from tests.pipeline.amoebanet_costs import amoebanet_d

SHARES = {
    2: ((12, 12), 0.521),
    4: ((7, 5, 5, 7), 0.266),
    8: ((5, 3, 2, 2, 3, 2, 3, 4), 0.145),
}
GREEDY = {
    2: ((12, 12), 0.521),
    4: ((7, 5, 5, 7), 0.266),
    8: ((4, 3, 2, 3, 3, 2, 3, 4), 0.148),
}
MACS = [layer.macs for layer in amoebanet_d(18, 256)]


def chunks(costs, sizes):
    """Returns the cost of each chunk."""
    borders = [0, *itertools.accumulate(sizes)]
    return [sum(costs[first:last]) for first, last in itertools.pairwise(borders)]


def share(sizes):
    """Returns the share of the largest chunk."""
    return max(chunks(MACS, sizes)) / sum(MACS)


def histogram(costs, stages):
    """Returns the split that takes layers as long as their running cost is below a K-th
    each.
    """
    ends = [
        min(int(c / sum(costs) * stages), stages - 1)
        for c in itertools.accumulate(costs)
    ]
    return tuple(map(ends.count, range(stages)))


@pytest.mark.parametrize(
    "size, parameters, giga_macs",
    [
        ((18, 128), 31_694_440, 3.80),
        ((18, 208), 81_505_540, 10.02),
        ((18, 256), 122_470_120, 15.17),
        ((18, 416), 319_024_120, 40.03),
        ((18, 512), 481_268_200, 60.63),
        ((18, 544), 542_734_840, 68.44),
        ((36, 544), 1_055_832_376, 125.86),
        ((72, 512), 1_844_858_344, 213.23),
    ],
)
def test_sizes_are_as_published(size, parameters, giga_macs):
    layers = amoebanet_d(*size)
    assert len(layers) == size[0] + 6
    assert sum(layer.parameters for layer in layers) == parameters
    assert round(sum(layer.macs for layer in layers) / 1e9, 2) == giga_macs


@pytest.mark.parametrize("stages", SHARES)
def test_the_largest_chunk_is_as_small_as_it_can_be(stages):
    known, least = SHARES[stages]
    sizes = split(MACS, stages)
    assert share(sizes) == share(known)
    assert round(share(sizes), 3) == least
    assert sum(c * c for c in chunks(MACS, sizes)) <= sum(
        c * c for c in chunks(MACS, known)
    )


def test_of_eight_chunks_one_can_do_better_than_the_known_split():
    assert split(MACS, 8) == (5, 3, 2, 3, 2, 2, 3, 4)  # the same maximum, more alike


@pytest.mark.parametrize("stages", GREEDY)
def test_a_running_sum_comes_close(stages):
    sizes, largest = GREEDY[stages]
    assert histogram(MACS, stages) == sizes
    assert round(share(sizes), 3) == largest


@pytest.mark.parametrize(
    "stages, sizes", [(2, (19, 5)), (4, (16, 3, 2, 3)), (8, (13, 4, 1, 1, 1, 1, 1, 2))]
)
def test_parameters_are_no_measure_of_cost(stages, sizes):
    by_parameters = split([layer.parameters for layer in amoebanet_d(18, 256)], stages)
    assert by_parameters == sizes
    assert share(by_parameters) > 1.3 * share(split(MACS, stages))


@pytest.mark.parametrize("stages, speed_up", [(2, 1.87), (4, 3.46), (8, 5.83)])
def test_the_largest_chunk_sets_the_pace(stages, speed_up):
    costs = chunks(MACS, split(MACS, stages))
    line = simulate(gpipe(stages, 32), costs)
    assert line.time == 3 * (sum(costs) + 31 * max(costs))
    assert round(line.speed_up, 2) == speed_up
    assert simulate(one_f_one_b(stages, 32), costs).speed_up >= line.speed_up
