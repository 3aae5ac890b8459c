"""Candidates: layouts with sizes. The best are planned in full, but of pipelines, whose plans
are long, only the fastest is.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from meshtf.errors import MeshtfError
from meshtf.forecast import Forecast
from meshtf.forecast.outline import Outline
from meshtf.layout_search.beginning import Recordings
from meshtf.layout_search.order import (
    EQUAL,
    Correction,
    estimate_of,
    fastest,
    simplest_first,
)
from meshtf.layout_search.pricing import Prices, ordered
from meshtf.layout_search.problem import Problem
from meshtf.layout_search.space import Structure

# Pipelines of a kind are left out once so many of them were refused.
_MANY_REFUSED = 3
# The stages, choices and storage of pipelines.
_Kind: TypeAlias = tuple[int, object, str]
_MORE = 3  # times as many candidates are planned in full as are shown


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A layout with sizes, and what its own plan says; or an estimate, without a plan.

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
      outline: the time, memory and bytes of the plan; None: it has no plan.
      measured: the measured time of a step; None: it did not run.
      microbatches: those of a scan that is a pipeline; None: there is none.
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
    outline: Outline | None
    measured: float | None = None
    microbatches: int | None = None

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

    Of pipelines that have an estimate, only the fastest of those that are shown is planned.
    Its plan corrects the estimates of all pipelines with as many stages and the same choices.

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
        # Kind of pipelines -> how its estimates were corrected.
        self._corrections: dict[_Kind, Correction] = {}
        self.limit = math.inf
        self.refused: list[tuple[Structure, MeshtfError]] = []
        self._refused_pipelines: list[tuple[Prices, int]] = []

    def best(
        self, all_prices: Sequence[Prices], plans_pipelines: bool = True
    ) -> list[Candidate]:
        """Returns the best candidates; the fastest comes first.

        Args:
          all_prices: the prices of all structures, which may be more at the next call.
          plans_pipelines: whether the fastest pipeline is planned in full.
        """
        while True:
            num_planned = len(self._planned)
            fitting = self._plan_fastest(all_prices)
            pipelines = [
                entry for entry in fitting[: self._count] if entry[1].grid.is_estimated
            ]
            has_plan = not pipelines or pipelines[0][0].outline is not None
            if has_plan or not plans_pipelines:
                break
            # A plan corrects estimates, or is refused: the order of the candidates changes.
            self._plan(*pipelines[0][1:])
            assert len(self._planned) > num_planned
        candidates = [candidate for candidate, _, _ in fitting]
        self.limit = self._limit_of(candidates)
        return candidates[: self._count]

    def _plan_fastest(
        self, all_prices: Sequence[Prices]
    ) -> list[tuple[Candidate, Prices, int]]:
        """Returns (candidate, its prices, its index) of candidates that fit, the fastest
        first.
        """
        fitting: list[tuple[Candidate, Prices, int]] = []
        seen = set()
        limits = {id(prices): self._refused_chunks(prices) for prices in all_prices}
        corrections = [self.correction_of(prices) for prices in all_prices]
        for prices, index, seconds in fastest(self._problem, all_prices, corrections):
            if seconds > self._limit_of([candidate for candidate, _, _ in fitting]):
                break
            if prices.grid.chunks[index] >= limits[id(prices)]:
                continue
            # Of orders of the axes that make no difference, one is shown.
            key = id(prices), *_sizes(prices, index), f"{seconds:.8g}"
            if key in seen:
                continue
            seen.add(key)
            candidate = self.candidate(prices, index)
            if candidate is not None and candidate.fits:
                fitting.append((candidate, prices, index))
            if len(fitting) >= _MORE * self._count:
                break
        return simplest_first(
            (entry[0].seconds, entry[1].structure, entry) for entry in fitting
        )

    def _limit_of(self, fitting: Sequence[Candidate]) -> float:
        """Returns what `limit` is if these candidates are those that fit."""
        if len(fitting) < self._count:
            return math.inf
        largest_error = max(c.estimated / c.seconds for c in fitting)
        seconds = sorted(c.seconds for c in fitting)
        last_shown = max(seconds[self._count - 1], seconds[0] * EQUAL)
        return last_shown * max(largest_error, 1.0)

    def candidate(self, prices: Prices, index: int) -> Candidate | None:
        """Returns a candidate with its plan, but a pipeline without one as it is estimated; None:
        the program does not allow it.
        """
        if prices.grid.is_estimated and (id(prices), index) not in self._planned:
            return self._estimated(prices, index)
        return self._plan(prices, index)

    def _plan(self, prices: Prices, index: int) -> Candidate | None:
        """Returns a candidate with its plan; None: the program does not allow it."""
        key = id(prices), index  # the search keeps all prices
        if key not in self._planned:
            candidate = None
            try:
                candidate = self._corrected(prices, index)
            except MeshtfError as error:
                self.refused.append((prices.structure, error))
                if prices.grid.is_estimated:
                    self._refused_pipelines.append((prices, index))
            self._planned[key] = candidate
        return self._planned[key]

    def _corrected(self, prices: Prices, index: int) -> Candidate:
        """Returns what `plan_in_full` does. With a pipeline, it corrects further estimates."""
        candidate = plan_in_full(self._recordings, prices, index)
        if not prices.grid.is_estimated:
            return candidate
        estimated = candidate.estimated * self.correction_of(prices).seconds
        correction = Correction(
            seconds=candidate.seconds / float(prices.seconds[index]),
            memory=candidate.peak / float(prices.memory[index]),
        )
        self._corrections.setdefault(_kind_of(prices), correction)
        return dataclasses.replace(candidate, estimated=estimated)

    def _refused_chunks(self, prices: Prices) -> float:
        """Returns the number of chunks of a stage from which on pipelines of a structure, or
        several of its kind, were refused; infinity if none were. Several chunks are refused
        for the layers of the model, so with any structure.
        """
        if not prices.grid.is_estimated:
            return math.inf
        pipelines = [(p, int(p.grid.chunks[i])) for p, i in self._refused_pipelines]
        kind = _kind_of(prices)
        of_kind = sorted(chunks for p, chunks in pipelines if _kind_of(p) == kind)
        limits = [
            chunks
            for p, chunks in pipelines
            if p is prices or (chunks > 1 and p.grid.stages == prices.grid.stages)
        ]
        limits += of_kind[_MANY_REFUSED - 1 :]
        return min(limits, default=math.inf)

    def _estimated(self, prices: Prices, index: int) -> Candidate:
        """Returns a candidate without a plan."""
        factor = self.correction_of(prices)
        estimate = estimate_of(prices, index)
        seconds = estimate.seconds * factor.seconds
        return Candidate(
            self._problem,
            choices=estimate.choices,
            seconds=seconds,
            estimated=seconds,
            peak=float(prices.memory[index]) * factor.memory,
            outline=None,
            **estimate.mesh_settings,
        )

    def correction_of(self, prices: Prices) -> Correction:
        """Returns the factors of the estimates of a structure: those of its kind; if none of
        these has a plan, those of pipelines with the same choices, or of any.
        """
        if not prices.grid.is_estimated or not self._corrections:
            return Correction()
        stages, choices, storage = _kind_of(prices)

        def distance(kind: _Kind) -> tuple[bool, bool, float]:
            ratio = math.log(kind[0] / stages)
            return kind[2] != storage, kind[1] != choices, abs(ratio)

        return self._corrections[min(self._corrections, key=distance)]


def _kind_of(prices: Prices) -> _Kind:
    """Returns what pipelines whose estimates err by similar factors have in common."""
    structure = prices.structure
    return structure.stages, structure.choices, structure.storage


def _sizes(prices: Prices, index: int) -> tuple[int, ...]:
    """Returns the sizes of the axes of a candidate, in any order, and its numbers of
    microbatches and chunks.
    """
    grid = prices.grid
    sizes = [int(grid.axes[axis][index]) for axis, _ in prices.structure.axes]
    microbatches = int(grid.microbatches[index])
    chunks = int(grid.chunks[index])
    return (*sizes, microbatches, chunks)


def plan_in_full(recordings: Recordings, prices: Prices, index: int) -> Candidate:
    """Returns a candidate with its own plan.

    Args:
      recordings: the recordings of what is searched for.
      prices: the prices of its structure.
      index: its index.

    Raises:
      MeshtfError: the program does not allow it.
    """
    grid = prices.grid
    choices = prices.choices(index)
    settings = ordered(prices.structure, grid.orders[index])
    problem = recordings.problem
    if grid.stages > 1:  # another program for each number of stages
        recorded = problem.record(grid.axes_text(index), settings, choices)
    else:
        recorded = recordings.of(grid.axes_text(index), settings, choices)
    outline = problem.outline(recorded)
    return Candidate(
        problem,
        axes=grid.axes_text(index),
        choices=choices,
        seconds=outline.time.seconds,
        estimated=float(prices.seconds[index]),
        peak=outline.peak,
        outline=outline,
        **settings,
    )
