"""Rules of predicted times, and of the search of layouts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ESTIMATE = "meshtf.layout_search.pipelines.estimate"
TEST_BOUNDS = ("tests/layout_search/test_bounds.py",)
TEST_ESTIMATES = ("tests/layout_search/pipelines/test_estimate.py",)
TEST_TIMES = ("tests/forecast/time/test_schedule.py",)

FORECASTS = (
    Mutant(
        "bounds of one more microbatch",
        "meshtf.layout_search.bounds",
        "LowerBounds.of_forward",
        "(stages - 1) / grid.chunks",
        "stages",
        TEST_BOUNDS,
    ),
    Mutant(
        "stages do not send",
        ESTIMATE,
        "staged_seconds",
        "2 * send * (stages * grid.chunks - 1) / stages",
        "0.0",
        TEST_ESTIMATES,
    ),
    Mutant(
        "stages do not wait for each other",
        ESTIMATE,
        "staged_seconds",
        "(body.end + for_each) * share_of_rest / grid.chunks",
        "0.0",
        TEST_ESTIMATES,
    ),
    Mutant(
        "a pipeline gathers weights for each microbatch",
        ESTIMATE,
        "staged_seconds",
        "without_collectives_of_weights(loop.body)",
        "loop.body",
        TEST_ESTIMATES,
    ),
    Mutant(
        "a head takes no time",
        "meshtf.layout_search.pipelines.layer_split",
        "_layers_of_stages",
        "[*sizes, of_last_chunk + head]",
        "[*sizes, of_last_chunk]",
        TEST_ESTIMATES,
    ),
    Mutant(
        "a stage stores all microbatches",
        "meshtf.layout_search.pipelines.staged_memory",
        "_most_microbatches",
        "np.minimum(grid.microbatches, counts)",
        "grid.microbatches + 0 * counts",
        TEST_ESTIMATES,
    ),
    Mutant(
        "halos of the planned mesh",
        "meshtf.partition.steps.collectives",
        "WindowStep.received",
        "sizes.group_size(self.axes)",
        "sizes.mesh.group_size(*self.axes)",
        TEST_TIMES,
    ),
    Mutant(
        "statistics of the planned mesh",
        "meshtf.partition.steps.collectives",
        "GatherStatisticsStep._bytes",
        "dim.name in x.shape",
        "False",
        TEST_TIMES,
    ),
    Mutant(
        "reductions that wait for each other are merged",
        "meshtf.forecast.time.merged_collectives",
        "merged_reductions",
        "level + 1",
        "level",
        ("tests/forecast/time/test_merged_collectives.py",),
    ),
)
