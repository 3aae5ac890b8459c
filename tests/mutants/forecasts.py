"""Rules of predicted times, and of the search of layouts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TEST_BOUNDS = ("tests/layout_search/test_bounds.py",)
TEST_PIPELINES = ("tests/layout_search/test_grid.py",)
TEST_TIMES = ("tests/forecast/time/test_schedule.py",)

FORECASTS = (
    Mutant(
        "bounds of one more stage",
        "meshtf.layout_search.pricing",
        "seconds_of_stages",
        "of_loop * (grid.stages - 1)",
        "of_loop * (grid.stages + 1)",
        TEST_BOUNDS,
    ),
    Mutant(
        "a pipeline without a bubble",
        "meshtf.layout_search.grid",
        "_pipeline_dims",
        "microbatches + stages - 1",
        "microbatches",
        TEST_PIPELINES,
    ),
    Mutant(
        "a pipeline of entire batches",
        "meshtf.layout_search.grid",
        "_pipeline_dims",
        "size // microbatches",
        "size // 2 + 0 * microbatches",
        TEST_PIPELINES,
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
