"""Structures in the order of lower bounds of their seconds: those whose bound exceeds the
times of the best need no plan.

    ranking = Ranking(problem, microbatches)
    ranking.add(structure, grid)
    while (entry := ranking.pop(limit)) is not None:    # seconds of the tenth candidate so far
        price(...)
    ranking.check_bounds()      # if they do not hold, `pop` returns all other structures
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshtf.errors import MeshtfError
from meshtf.forecast.time.durations import Durations
from meshtf.graph.recorder import Recorded
from meshtf.layout_search.beginning import Recordings
from meshtf.layout_search.bounds import LowerBounds
from meshtf.layout_search.grid import Grid
from meshtf.layout_search.pricing import record, recorded_choices
from meshtf.layout_search.problem import Problem
from meshtf.layout_search.space import Structure


class Ranked(NamedTuple):
    """A structure with a bound; compared by the bound, then by `serial`.

    Attributes:
      bound: the least of `seconds`.
      serial: the place at which it was added.
      structure: the structure.
      grid: its sizes.
      seconds: lower bounds of the seconds of each candidate: `[candidates]`.
      larger_bounds: what gives larger bounds: the "memory" and the "time" of the forward and
        backward pass.
      durations: what was computed for the bound by time; None: it was not.
    """

    bound: float
    serial: int
    structure: Structure
    grid: Grid
    seconds: np.ndarray
    larger_bounds: tuple[str, ...]
    durations: Durations | None = None


class Ranking:
    """Structures that are not priced yet.

    Args:
      problem: what is searched for.
      microbatches: the numbers of microbatches that are tried.
      prune: whether bounds are computed; otherwise all structures are priced.
    """

    def __init__(
        self, problem: Problem, microbatches: Sequence[int], prune: bool = True
    ) -> None:
        self._problem = problem
        self._microbatches = microbatches
        self._prune = prune
        self._heap: list[Ranked] = []
        self._serials = itertools.count()
        self._recorded: dict[Structure, Recorded] = {}
        # What the structures have that were recorded on meshes of their own: sets of
        # dimensions that an axis shards, ways to store variables, choices.
        self._covered: set[object] = set()
        self.recordings = Recordings(problem, are_shared=prune)
        self._bounds: dict[tuple[object, bool], LowerBounds | None] = {}

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def num_candidates(self) -> int:
        """How many candidates the structures have."""
        return sum(len(ranked.grid) for ranked in self._heap)

    @property
    def least_memory(self) -> float:
        """The fewest bytes of a device that a bound found a layout to need."""
        least = [bounds.least_memory for bounds in self._bounds.values() if bounds]
        return min(least, default=math.inf)

    def count(self, limit: float) -> int:
        """Returns how many structures have a bound up to `limit`."""
        return sum(ranked.bound <= limit for ranked in self._heap)

    def add(self, structure: Structure, grid: Grid) -> None:
        """Adds a structure."""
        seconds = np.zeros(len(grid))
        bounds = self._bounds_of(structure, grid)
        if bounds is not None:
            try:
                seconds = bounds.of_forward(structure, grid)
            except MeshtfError:
                bounds = None  # whoever prices it gets the error
        larger_bounds: tuple[str, ...] = ()
        if bounds is not None and structure.stage_axis:
            larger_bounds = ("time",)
        elif bounds is not None:
            larger_bounds = ("time", "memory")
            # Where memory excludes candidates already, it is likely to exclude all.
            if np.isinf(seconds).any():
                larger_bounds = ("memory", "time")
        bound = float(seconds.min())
        serial = next(self._serials)
        ranked = Ranked(bound, serial, structure, grid, seconds, larger_bounds)
        heapq.heappush(self._heap, ranked)

    def pop(self, limit: float) -> Ranked | None:
        """Removes and returns the structure with the least bound; None: all bounds exceed
        `limit`, or are infinite, since nothing else fits into memory.
        """
        limit = min(limit, np.finfo(float).max)
        while self._heap and self._heap[0].bound <= limit:
            ranked = heapq.heappop(self._heap)
            if not ranked.larger_bounds:
                return ranked
            heapq.heappush(self._heap, self._with_larger_bound(ranked))
        return None

    def _with_larger_bound(self, ranked: Ranked) -> Ranked:
        """Returns a structure with its next larger bound."""
        structure, grid = ranked.structure, ranked.grid
        bounds = self._bounds_of(structure, grid)
        assert bounds is not None
        kind, *remaining = ranked.larger_bounds
        durations = ranked.durations
        if kind == "memory":
            larger = np.where(bounds.fits(structure, grid), 0.0, np.inf)
        else:
            larger, durations = bounds.of_gradient(structure, grid)
        seconds = np.maximum(ranked.seconds, larger)
        # With measured local steps, bounds have the least factor of these.
        is_exact = not self._problem.hardware.local_steps
        return ranked._replace(
            bound=float(seconds.min()),
            seconds=seconds,
            larger_bounds=tuple(remaining),
            durations=durations if is_exact else None,
        )

    def record(self, ranked: Ranked) -> Recorded:
        """Returns the program of a structure. If it has other ops than that of the bounds, the
        program depends on its mesh, and all bounds are dropped.

        Raises:
          MeshtfError: the layout does not allow the program.
        """
        structure, grid = ranked.structure, ranked.grid
        if structure in self._recorded:
            return self._recorded[structure]
        bounds = self._bounds_of(structure, grid)
        # Pipelines have other ops than the program of the bounds.
        is_covered = self._features(structure) <= self._covered
        if bounds is not None and (structure.stage_axis or is_covered):
            recorded = record(structure, self._problem, grid, self.recordings)
        else:
            recorded = record(structure, self._problem, grid)
            if bounds is not None and not bounds.hold_for(recorded):
                self._drop_bounds()
            elif bounds is not None:
                self._covered |= self._features(structure)
                self.recordings.compare(recorded, recorded_choices(structure, grid))
        self._recorded[structure] = recorded
        return recorded

    def _features(self, structure: Structure) -> set[object]:
        """Returns what the program might depend on."""
        dims = (dims for _, dims in structure.axes)
        return {*dims, structure.storage, structure.choices}

    def check_bounds(self) -> None:
        """Sees to it that structures are recorded that together have each set of dimensions
        that an axis shards, to see whether the bounds hold: further ones, with the least
        bounds, beside those that are priced.
        """
        tried: set[object] = set()
        for ranked in sorted(self._heap):
            if not self._prune:
                return
            if ranked.structure.stage_axis:
                continue
            sets = {dims for _, dims in ranked.structure.axes}
            if sets <= tried | self._covered:
                continue
            tried |= sets
            with contextlib.suppress(MeshtfError):  # whoever prices it gets the error
                self.record(ranked)

    def _drop_bounds(self) -> None:
        """Sets all bounds to 0, so that all structures are priced."""
        self._prune = False
        self.recordings.are_shared = False
        self._heap = [
            entry._replace(
                bound=0.0,
                seconds=np.zeros(len(entry.grid)),
                larger_bounds=(),
                durations=None,
            )
            for entry in self._heap
        ]
        heapq.heapify(self._heap)

    def _bounds_of(self, structure: Structure, grid: Grid) -> LowerBounds | None:
        """Returns the bounds of a structure's program; None: there are none."""
        if not self._prune:
            return None
        key = structure.choices, grid.has_microbatches
        if key not in self._bounds:
            counts = self._microbatches if grid.has_microbatches else [1]
            try:
                bounds = LowerBounds(self.recordings, structure.choices, counts)
            except MeshtfError:
                bounds = None
            if bounds is not None:
                bounds.share_forward(filter(None, self._bounds.values()))
            self._bounds[key] = bounds
        return self._bounds[key]
