"""Candidates: layouts with sizes. The best are planned in full, and may run for a few steps."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from meshtf.errors import MeshtfError
from meshtf.forecast import Forecast
from meshtf.forecast.outline import Outline
from meshtf.function.without_running import as_function
from meshtf.graph import Tensor
from meshtf.layout_search.beginning import Recordings
from meshtf.layout_search.order import EQUAL, fastest, simplest_first
from meshtf.layout_search.pricing import Prices
from meshtf.layout_search.problem import Problem
from meshtf.layout_search.space import Structure
from meshtf.mesh import Mesh

_ROUNDS = 5  # of measured steps
_MORE = 3  # times as many candidates are planned in full as are shown


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A layout with sizes, and what its own plan says.

    Attributes:
      problem: what was searched for.
      axes: the axes of the mesh, such as "data:8;model:4".
      layout: the rules for tensors.
      variable_layout: the further rules for variables.
      optimizer_layout: the further rules for slots.
      choices: the further arguments of the program.
      seconds: the predicted time of a step.
      estimated: the time that the search estimated before it planned this candidate.
      peak: the bytes at the peak of memory.
      outline: the time, memory and bytes of the plan.
      measured: the measured time of a step; None: it did not run.
      microbatches: those of a pipeline; None: there is none.
      idle: the share of its ticks in which a stage has no microbatch; 0: there is no pipeline.
    """

    problem: Problem
    axes: str
    layout: str
    variable_layout: str
    optimizer_layout: str
    choices: Mapping[str, Any]
    seconds: float
    estimated: float
    peak: float
    outline: Outline
    measured: float | None = None
    microbatches: int | None = None
    idle: float = 0.0

    def __repr__(self) -> str:
        return f"Candidate({self.axes!r}, {self.layout!r}, {self.seconds:.4g} s)"

    @property
    def text(self) -> str:
        """Its settings in one line: "data:8 | batch:data | recompute=True"."""
        settings = [self.axes or "one device"]
        if self.layout:
            settings.append(self.layout)
        if self.variable_layout:
            settings.append(f"variables {self.variable_layout}")
        if self.optimizer_layout:
            settings.append(f"slots {self.optimizer_layout}")
        if self.microbatches is not None:
            settings.append(f"Mesh(..., microbatches={self.microbatches})")
        for name, value in self.choices.items():
            settings.append(f"{name}={value}")
        return " | ".join(settings)

    @functools.cached_property
    def forecast(self) -> Forecast:
        """The forecast, with all ops and collectives."""
        settings = {**self.mesh_settings}
        axes = settings.pop("axes")
        return self.problem.forecast(axes, settings, self.choices)

    @property
    def fits(self) -> bool:
        """Whether the peak of memory fits on a device."""
        return self.peak <= self.problem.memory

    @property
    def mesh_settings(self) -> dict[str, Any]:
        """The arguments of `Mesh`."""
        settings: dict[str, Any] = {
            "axes": self.axes,
            "layout": self.layout,
            "variable_layout": self.variable_layout,
            "optimizer_layout": self.optimizer_layout,
        }
        if self.microbatches is not None:
            settings["microbatches"] = self.microbatches
        return settings


class FullPlans:
    """The candidates that are planned in full, each once: those whose estimates are the least.

    Args:
      recordings: the recordings of what is searched for.
      count: how many candidates are shown.

    Attributes:
      limit: no candidate whose estimate exceeds these seconds can be among the best, if
        estimates err by no more than they did so far.
      refused: pairs (structure, error) of candidates that the program does not allow.
    """

    def __init__(self, recordings: Recordings, count: int) -> None:
        self._recordings = recordings
        self._problem = recordings.problem
        self._count = count
        self._planned: dict[tuple[int, int], Candidate | None] = {}
        self.limit = math.inf
        self.refused: list[tuple[Structure, MeshtfError]] = []

    def best(self, all_prices: Sequence[Prices]) -> list[Candidate]:
        """Returns the best candidates that fit; the fastest comes first.

        Args:
          all_prices: the prices of all structures, which may be more at the next call.
        """
        fitting: list[tuple[Candidate, Structure]] = []
        seen = set()
        for prices, index, seconds in fastest(self._problem, all_prices):
            if seconds > self._limit_of([candidate for candidate, _ in fitting]):
                break
            # Of orders of the axes that make no difference, one is shown.
            key = id(prices), *_sizes(prices, index), f"{seconds:.8g}"
            if key in seen:
                continue
            seen.add(key)
            candidate = self.candidate(prices, index)
            if candidate is not None and candidate.fits:
                fitting.append((candidate, prices.structure))
            if len(fitting) >= _MORE * self._count:
                break
        candidates = simplest_first(
            (candidate.seconds, structure, candidate)
            for candidate, structure in fitting
        )
        self.limit = self._limit_of(candidates)
        return candidates[: self._count]

    def _limit_of(self, fitting: Sequence[Candidate]) -> float:
        """Returns what `limit` is if these candidates are those that fit."""
        if len(fitting) < self._count:
            return math.inf
        largest_error = max(c.estimated / c.seconds for c in fitting)
        seconds = sorted(c.seconds for c in fitting)
        last_shown = max(seconds[self._count - 1], seconds[0] * EQUAL)
        return last_shown * max(largest_error, 1.0)

    def candidate(self, prices: Prices, index: int) -> Candidate | None:
        """Returns a candidate with its plan; None: the program does not allow it."""
        key = id(prices), index  # the search keeps all prices
        if key not in self._planned:
            candidate = None
            try:
                candidate = plan_in_full(self._recordings, prices, index)
            except MeshtfError as error:
                self.refused.append((prices.structure, error))
            self._planned[key] = candidate
        return self._planned[key]


def _sizes(prices: Prices, index: int) -> tuple[int, ...]:
    """Returns the sizes of the axes of a candidate, in any order, and its number of
    microbatches.
    """
    grid = prices.grid
    sizes = [int(grid.axes[axis][index]) for axis, _ in prices.structure.axes]
    return (*sizes, int(grid.microbatches[index]))


def plan_in_full(recordings: Recordings, prices: Prices, index: int) -> Candidate:
    """Returns a candidate with its own plan.

    Args:
      recordings: the recordings of what is searched for.
      prices: the prices of its structure.
      index: its index.

    Raises:
      MeshtfError: the program does not allow it.
    """
    axes = prices.grid.axes_text(index)
    choices = prices.choices(index)
    settings = prices.mesh_settings(index)
    problem = recordings.problem
    recorded = recordings.of(axes, settings, choices, prices.grid.stage_axis)
    outline = problem.outline(recorded)
    idle = 0.0
    if prices.grid.stage_axis:
        bubble = int(prices.grid.stages[index]) - 1
        idle = bubble / (settings["microbatches"] + bubble)
    return Candidate(
        problem,
        axes=axes,
        choices=choices,
        seconds=outline.time.seconds,
        estimated=float(prices.seconds[index]),
        peak=outline.peak,
        outline=outline,
        idle=idle,
        **settings,
    )


def measured_seconds(
    problem: Problem, candidates: Sequence[Candidate], mesh_devices: Any
) -> list[float]:
    """Returns the seconds of a step of each candidate: the median over rounds, in each of which
    every candidate runs once, so that other load on the machine affects all of them.

    Args:
      problem: what is searched for; its arguments are arrays.
      candidates: the candidates.
      mesh_devices: the devices of the meshes, as `Mesh(devices=...)`.
    """
    calls = []
    for candidate in candidates:
        mesh = Mesh(devices=mesh_devices, **candidate.mesh_settings)
        function, args = as_function(
            problem.build(mesh, **candidate.choices), problem.args
        )
        _wait(function(*args))  # compiles it
        _wait(function(*args))
        calls.append((function, args))
    times: list[list[float]] = [[] for _ in candidates]
    for _ in range(_ROUNDS):
        for seconds, (function, args) in zip(times, calls):
            start = time.perf_counter()
            _wait(function(*args))
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


def _wait(results: Any) -> None:
    """Returns once a call has ended: its results are on the host."""
    import tensorflow as tf  # which a search alone does not need

    for result in tf.nest.flatten(results):
        if isinstance(result, Tensor):
            result.numpy()
