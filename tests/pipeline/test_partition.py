"""Splits of layers: against all there are, under memory limits, and what is refused."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from meshtf.errors import PlanError
from meshtf.pipeline import split
from tests.support.refusals import refuses

SIZES = [
    (layers, stages)
    for layers in (1, 2, 3, 5, 8, 10)
    for stages in (1, 2, 3, 5)
    if stages <= layers
]


def every_split(layers, stages):
    """Yields all there are, the first stage's layers growing slowest."""
    for inner in itertools.combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in itertools.pairwise([0, *inner, layers]))


def chunks(values, sizes):
    """Returns the exact sum of each chunk."""
    borders = [0, *itertools.accumulate(sizes)]
    return [sum(map(Fraction, values[a:b])) for a, b in itertools.pairwise(borders)]


def best(costs, splits, how):
    """Returns the best split by looking at each; of equals the one that comes first."""

    def measure(sizes):
        found = chunks(costs, sizes)
        squares = sum(c * c for c in found)
        return (max(found), squares) if how == "min_max" else squares

    return min(splits, key=measure)


def draw(rng, layers, kind):
    """Returns costs of layers."""
    if kind == "few":
        return rng.integers(0, 4, layers).tolist()
    costs = rng.exponential(size=layers)
    return (costs * 1e9).astype(int).tolist() if kind == "counted" else costs.tolist()


@pytest.mark.parametrize("how", ["min_max", "least_variance"])
@pytest.mark.parametrize("kind", ["few", "counted", "measured"])
@pytest.mark.parametrize("layers, stages", SIZES)
def test_no_split_is_better(layers, stages, kind, how, rng):
    for _ in range(5):
        costs = draw(rng, layers, kind)
        if not any(costs):
            costs[0] = 1
        assert split(costs, stages, how) == best(
            costs, every_split(layers, stages), how
        ), costs


@pytest.mark.parametrize(
    "costs, largest, alike",
    [
        ([1, 12, 3, 8], (1, 1, 2), (2, 1, 1)),  # 1 12 11 against 13 3 8
        ([2, 9, 7, 3], (1, 1, 2), (2, 1, 1)),  # 2 9 10 against 11 7 3
        ([2, 2, 4, 1, 4], (2, 1, 1, 1), (1, 1, 1, 2)),
    ],
)  # 4 4 1 4 against 2 2 4 5, as alike
def test_the_least_maximum_is_not_the_least_variance(costs, largest, alike):
    assert split(costs, len(largest), "min_max") == largest
    assert split(costs, len(alike), "least_variance") == alike


@pytest.mark.parametrize("how", ["min_max", "least_variance"])
@pytest.mark.parametrize("layers, stages", [size for size in SIZES if size[1] > 1])
def test_no_split_that_fits_is_better(layers, stages, how, rng):
    for _ in range(5):
        costs, memory = draw(rng, layers, "few")[:-1] + [1], draw(rng, layers, "few")
        limit = int(max(chunks(memory, split(memory, stages)))) + int(rng.integers(2))
        fitting = [
            s for s in every_split(layers, stages) if max(chunks(memory, s)) <= limit
        ]
        found = split(costs, stages, how, memory, limit)
        assert found == best(costs, fitting, how), (costs, memory, limit)


@pytest.mark.parametrize("how", ["min_max", "least_variance"])
def test_memory_may_depend_on_the_stage(how, rng):
    def memory(stage, first, last):  # of K - k microbatches, and of what comes in
        return (4 - stage) * sum(sizes[first:last]) + border[first]

    def fits(split, limit):
        borders = itertools.pairwise([0, *itertools.accumulate(split)])
        return all(memory(k, *chunk) <= limit for k, chunk in enumerate(borders))

    for _ in range(20):
        costs, sizes, border = (draw(rng, 9, "few")[:-1] + [1] for _ in range(3))
        limit = next(
            n for n in itertools.count() if any(fits(s, n) for s in every_split(9, 4))
        )
        fitting = [s for s in every_split(9, 4) if fits(s, limit)]
        assert split(costs, 4, how, memory, limit) == best(costs, fitting, how)
        with refuses(
            PlanError, f"limit +{limit - 1} bytes", r" in chunk \d, .* over the limit"
        ):
            split(costs, 4, how, memory, limit - 1)


def test_equal_floats_are_equal():
    assert split([0.1] * 7, 3) == (2, 2, 3)
    assert split([1e-300] * 5 + [1e300], 2) == (5, 1)


def test_costs_may_be_of_numpy():
    assert (
        split(np.array([1, 2, 3, 4], np.int32), 2)
        == (3, 1)
        == split(np.float32([1, 2, 3, 4]), 2)
    )


@pytest.mark.parametrize(
    "layers, sizes", [(4, (1, 1, 1, 1)), (9, (2, 2, 2, 3)), (7, (1, 2, 2, 2))]
)
def test_uniform_counts_layers(layers, sizes):
    costs = [100] + [1] * (layers - 1)
    assert split(costs, 4, "uniform") == sizes
    assert split([0] * layers, 4) == sizes  # nothing else to go by
    assert split(costs, 4, sizes) == split(costs, 4, [*sizes]) == sizes


def test_deep_models_are_split():
    costs = [3] + [1] * 400 + [3]
    sizes = split(costs, 64, memory=lambda k, first, last: last - first, limit=7)
    assert max(chunks(costs, sizes)) == 7 and max(sizes) <= 7 and sum(sizes) == 402


def test_what_cannot_be_is_refused():
    with refuses(PlanError, "3 layers cannot be split into 4 chunks", "1 to 3 stages"):
        split([1, 1, 1], 4)
    with refuses(PlanError, "3 layers cannot be split into 0 chunks"):
        split([1, 1, 1], 0)
    with refuses(PlanError, "layer 1 costs -2"):
        split([1, -2, 1], 2)
    with refuses(PlanError, "layer 2 costs nan"):
        split([1, 2, float("nan")], 2)
    with refuses(PlanError, "called 'minmax'", "Did you mean min_max"):
        split([1, 1], 2, "minmax")
    with refuses(PlanError, "there are 2 layers, but bytes of 1"):
        split([1, 1], 2, memory=[1], limit=1)
    with refuses(PlanError, "a limit needs the bytes"):
        split([1, 1], 2, limit=1)


@pytest.mark.parametrize("sizes", [(2, 2), (1, 1, 1), (0, 3), (-1, 4)])
def test_sizes_that_do_not_fit_are_refused(sizes):
    with refuses(PlanError, "does not fit 3 layers and 2 chunks"):
        split([1, 1, 1], 2, sizes)


def test_a_limit_that_cannot_be_met_says_what_is_too_large():
    with refuses(
        PlanError,
        "no split of 4 layers into 2 chunks",
        "limit +8 bytes",
        "needed +layer 2 in chunk 0, 11 bytes, 3 over the limit",
        "more stages",
    ):
        split([1, 1, 1, 1], 2, memory=[1, 1, 11, 0], limit=8)
    with refuses(
        PlanError, "needed +layers 0 to 1 in chunk 0, 1,200 bytes, 200 over the limit"
    ):
        split([1, 1, 1], 2, memory=[600, 600, 900], limit=1000)
    with refuses(
        PlanError,
        r"the split \(1, 2\) exceeds",
        "layers 1 to 2 in chunk 1, 1,500 bytes",
        "over +500 bytes",
        "min_max",
    ):
        split([1, 1, 1], 2, (1, 2), memory=[600, 600, 900], limit=1000)
