"""The tables that `python -m benchmarks.regret` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from benchmarks.regret.published_steps.megatron import Constants
from benchmarks.regret.published_steps.published import Job, Run, groups
from benchmarks.regret.published_steps.scores import (
    Scores,
    least_model_parallel,
    least_pipeline,
    scores_of_chance,
    scores_of_rule,
    scores_of_times,
)

HEAD = (
    f"{'':32} {'error':>7} {'ranks':>6} {'regret':>7} {'largest':>8} {'best of 5':>10}"
)
_RULES: dict[str, Callable[[Run], tuple[float, ...]]] = {
    "rule: tensor x pipeline": least_model_parallel,
    "rule: pipeline, then tensor": least_pipeline,
}


def score_lines(
    runs: Sequence[Run], predictions: Mapping[str, np.ndarray]
) -> Iterator[str]:
    """Yields a table for the runs of one node, of several, and of both.

    Args:
      runs: the runs.
      predictions: the predicted seconds of each run, by the title of their row.
    """
    for title, kinds in (
        ("single node", ("single",)),
        ("several nodes", ("multi",)),
        ("all", ("single", "multi")),
    ):
        indices = [i for i, run in enumerate(runs) if run.job.nodes in kinds]
        subset = [runs[i] for i in indices]
        if not subset:
            continue
        scores = {
            name: scores_of_times(subset, seconds[indices])
            for name, seconds in predictions.items()
        }
        for name, rule in _RULES.items():
            scores[name] = scores_of_rule(subset, rule)
        scores["random"] = scores_of_chance(subset)
        yield ""
        yield (
            f"{title}: {len(subset)} runs, "
            f"{scores['random'].num_groups} groups of 4 or more"
        )
        yield HEAD
        for name, row in scores.items():
            yield _score_line(name, row)


def _score_line(name: str, row: Scores) -> str:
    """Returns a line of the table."""
    error = "" if row.error is None else f"{row.error:.1%}"
    return (
        f"{name:32} {error:>7} {row.rank_correlation:6.2f} {row.regret:7.3f} "
        f"{row.max_regret:8.3f} {row.shortlist_regret:10.4f}"
    )


def constant_lines(constants: Constants) -> Iterator[str]:
    """Yields the constants of runs."""
    hardware = constants.hardware
    yield f"matmul_efficiency     {hardware.matmul_efficiency:.3f}"
    yield f"memory_efficiency     {hardware.memory_efficiency:.3f}"
    yield f"op_seconds            {hardware.op_seconds * 1e6:.1f} us"
    yield f"launch_seconds        {hardware.launch_seconds * 1e6:.1f} us"
    for link in hardware.links:
        yield (
            f"{link.name:21} {link.bandwidth / 1e9:.1f} GB/s, "
            f"{link.latency * 1e6:.1f} us a message"
        )
    yield f"gradient_share        {constants.gradient_share:.3f}"
    yield f"microbatch_seconds    {constants.microbatch_seconds * 1e3:.2f} ms"
    yield f"step_seconds          {constants.step_seconds * 1e3:.2f} ms"


def worst_group_lines(
    runs: Sequence[Run], predicted: np.ndarray, count: int = 6
) -> Iterator[str]:
    """Yields the groups with the largest mean absolute error, and in each the worst run."""
    measured = np.array([run.seconds for run in runs])
    errors = predicted / measured - 1

    def mean_error(item: tuple[Job, list[int]]) -> float:
        """Returns the mean absolute error of a group."""
        _, indices = item
        return float(np.abs(errors[indices]).mean())

    ordered = sorted(groups(runs).items(), key=mean_error, reverse=True)
    for job, indices in ordered[:count]:
        worst = max(indices, key=lambda i: abs(errors[i]))
        run = runs[worst]
        yield (
            f"{job}: {mean_error((job, indices)):5.1%} of {len(indices):>2}; "
            f"tensor {run.tensor}, data {run.data}, pipeline {run.pipeline}, microbatch "
            f"{run.micro_batch}: {errors[worst]:+.0%}"
        )


def worst_layer_lines(layers: Mapping[tuple[int, ...], float]) -> Iterator[str]:
    """Yields the kinds of layers whose time is farthest from the predicted one."""
    ordered = sorted(layers.items(), key=lambda item: -abs(np.log(item[1])))
    for (hidden, tensor, micro_batch), factor in ordered[:8]:
        yield (
            f"hidden {hidden}, tensor {tensor}, microbatch {micro_batch}: "
            f"{factor:.2f} of the predicted time"
        )
