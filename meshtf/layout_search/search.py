"""`mtf.search`: the layout with the least predicted time, of all that fit into memory."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from meshtf.errors import LayoutError, MeshtfError
from meshtf.garbage import without_garbage_collection
from meshtf.hardware import Hardware
from meshtf.layout_search.candidates import Candidate, FullPlans
from meshtf.layout_search.grid import Grid, make_grid
from meshtf.layout_search.order import nth_seconds
from meshtf.layout_search.pricing import Prices, price
from meshtf.layout_search.problem import (
    Names,
    Problem,
    names_of_program,
    problem_of,
    warn_of_own_rules,
)
from meshtf.layout_search.ranking import Ranked, Ranking
from meshtf.layout_search.result import SearchResult, pareto_front
from meshtf.layout_search.space import (
    MICROBATCHES,
    STAGE,
    STORAGES,
    Structure,
    read_storages,
    stored_as_asked,
    structures,
    structures_of_axes,
    structures_of_names,
    without_dims,
)
from meshtf.layout_search.why_not import (
    StateBytes,
    check_fixed,
    check_sizes,
    comparison_text,
    no_axes_text,
    no_sizes_text,
    no_stages,
    nothing_fits,
    nothing_is_legal,
    refused_text,
    state_bytes,
    structure_of,
    too_large_text,
)
from meshtf.mesh import Layout
from meshtf.mesh.axes import read_axes
from meshtf.names.arguments import (
    as_callable,
    as_int,
    as_mapping,
    as_sequence,
)

NUM_BEST = 10  # candidates that are planned in full and shown


def search(
    build: Callable[..., Any],
    *args: Any,
    devices: int,
    hardware: Hardware | str,
    memory: float | str | None = None,
    max_axes: int = 3,
    axes: Any = None,
    layout: Any = None,
    storage: str | Sequence[str] = STORAGES,
    choices: Mapping[str, Sequence[Any]] | None = None,
    stages: Sequence[int] = (1,),
    progress: Callable[[int, int], None] | None = None,
) -> SearchResult:
    """Returns the layouts with the least predicted time of a call, of all that fit.

    All sizes of up to `max_axes` axes are tried that divide what they shard, each in every
    order (the last axis joins neighbours), with every set of dimensions that one axis may
    shard, and with variables that are replicated, with sharded slots (ZeRO-1) or sharded
    (FSDP). Nothing runs, and no devices are needed.

    Layouts are left out whose time cannot be below that of the best ten, by a lower bound
    from a recording on a mesh without axes: `build` must make the same ops on each mesh.

    Args:
      build: a function of a mesh, and of the names of `choices`, that makes the model and
        returns the function to be timed, such as a training step.
      *args: the arguments of that function; only shapes and dtypes are read.
      devices: the number of devices.
      hardware: their profile, such as "h100".
      memory: the bytes of one device, as a number or as text such as "80GiB"; None: those of
        the profile.
      max_axes: the largest number of axes.
      axes: the axes to be kept as they are, such as "data:8;model:4"; None: all are tried.
      layout: the rules to be kept as they are; None: all are tried.
      storage: which of "replicated", "slots" and "variables" to try. Sharded slots send the
        bytes that replicated ones do, and need less memory, but in two collectives in place
        of one.
      choices: further arguments of `build`, and their values to try: {"recompute": [False,
        True], "microbatches": [1, 2, 4]}. The number of microbatches is priced without
        planning each value, if the function splits the dimension "batch" by
        `mtf.optimizers.accumulate_gradients`. Of a pipeline it is that of the mesh, and `build`
        does not get it.
      stages: the numbers of stages of a pipeline to try: a scan over layers, along a further
        axis "stage", the outermost, by a rule such as "layers:stage". The vocabulary, which
        no layer has, or the length outside of the layers is sharded along this axis as well,
        or not. Without `choices`, there are one, two or four times as many microbatches as
        stages.
      progress: a function of the number of plans so far, and of all plans that seem to be
        needed, called after each.

    Raises:
      ArgumentError: an argument is of another type, or there are no such devices.
      LayoutError: no layout fits into memory, or none is legal, or the program has no layers
        that stages could have.
    """
    problem = problem_of(build, args, devices, hardware, memory)
    if progress is not None:
        as_callable("progress", progress, "a function of two numbers")
    if choices is None:
        choices = {}
    return Search(
        problem,
        max_axes=as_int("max_axes", max_axes, least=1),
        axes={} if axes is None else read_axes(axes),
        layout=None if layout is None else Layout(layout),
        storages=read_storages(storage),
        choices=dict(as_mapping("choices", choices, "lists of values by name")),
        stages=[
            as_int("stages", count, least=1)
            for count in as_sequence("stages", stages, "numbers, such as (1, 2, 4)")
        ],
        progress=progress,
    ).run()


class Search:
    """One search; the arguments are those of `search`, and

      prune: whether structures whose lower bound exceeds the times of the best are left out.
      num_best: how many candidates are planned in full and shown.
      tries_more: whether more devices are tried if nothing fits.

    Attributes:
      prices: the prices of each structure so far.
      refused: pairs (structure, error) of structures that the program does not allow.
      names: the names of the program.
    """

    def __init__(
        self,
        problem: Problem,
        max_axes: int,
        axes: Mapping[str, int],
        layout: Layout | None,
        storages: Sequence[str],
        choices: dict[str, Sequence[Any]],
        stages: Sequence[int] = (1,),
        progress: Callable[[int, int], None] | None = None,
        prune: bool = True,
        num_best: int = NUM_BEST,
        tries_more: bool = True,
    ) -> None:
        self.num_best = num_best
        self.tries_more = tries_more and not axes
        self.progress = progress
        self.prune = prune
        self.problem = problem
        self.max_axes = max_axes
        self.fixed_axes = dict(axes)
        self.layout = layout
        self.storages = storages
        self.stages = stages
        self.choices = dict(choices)
        # Those that are tried; None: they are not said.
        self.microbatches: list[int] | None = None
        if MICROBATCHES in choices:
            values = self.choices.pop(MICROBATCHES)
            counts = as_sequence(MICROBATCHES, values, "numbers, such as (1, 2, 4)")
            self.microbatches = [as_int(MICROBATCHES, x, least=1) for x in counts]
        self.prices: list[Prices] = []
        self.refused: list[tuple[Structure, MeshtfError]] = []
        self.names: Names

    def run(self) -> SearchResult:
        """Prices all candidates, plans the best in full, and returns them."""
        start = time.monotonic()
        with without_garbage_collection():
            return self._run(start)

    def _run(self, start: float) -> SearchResult:
        # The first value of each choice stands for all: names do not depend on it.
        base = {name: values[0] for name, values in self.choices.items()}
        recorded = self.problem.record("", {}, base)
        warn_of_own_rules(recorded, self.fixed_axes)
        self.names = names_of_program(recorded)
        state = state_bytes(recorded)
        if state.of_device(self.problem.devices) > self.problem.memory:
            raise self._nothing_fits(state)  # without a plan
        if max(self.stages) > 1 and not self.names.microbatched:
            raise no_stages()
        ranking = self._ranked(self._structures(self.names))
        best = self._price_the_best(ranking)
        if not best:
            if (self.prices or len(ranking)) and not self.plans.refused:
                raise self._nothing_fits(state, ranking.least_memory)
            refused = [str(error) for _, error in self.refused]
            refused.append(no_sizes_text(self.problem.devices, self.layout, self.names))
            raise nothing_is_legal(refused[0])
        num_priced = sum(len(prices.grid) for prices in self.prices)
        return SearchResult(
            problem=self.problem,
            best=tuple(best),
            front=tuple(pareto_front(self.problem, self.prices, self.plans)),
            num_priced=num_priced + ranking.num_candidates,
            num_planned=len(self.prices),
            num_pruned=len(ranking),
            refused=tuple(self.refused),
            seconds=time.monotonic() - start,
            why_not_layout=self.why_not,
            prices=tuple(self.prices),
        )

    def _nothing_fits(self, state: StateBytes, least: float = math.inf) -> LayoutError:
        """Returns the error that nothing fits; its arguments are those of `nothing_fits`."""
        least = min([least, *(float(p.memory.min()) for p in self.prices)])
        best_of = self._best_of if self.tries_more else None
        return nothing_fits(self.problem, state, least, best_of)

    def _best_of(self, devices: int) -> Candidate:
        """Returns the fastest layout of another number of devices; raises if none fits."""
        other = Search(
            dataclasses.replace(self.problem, devices=devices),
            min(self.max_axes, 2),
            {},
            layout=self.layout,
            storages=self.storages,
            choices=self._all_choices(),
            stages=self.stages,
            num_best=1,
            tries_more=False,
        )
        return other.run().best[0]

    def why_not(self, best: Candidate, layouts: Mapping[str, str]) -> str:
        """Returns why layouts are not the best: see `SearchResult.why_not`.

        Args:
          best: the first choice.
          layouts: "layout", "variable_layout" and "optimizer_layout", and "axes" or "".
        """
        structure = structure_of(
            Layout(layouts["layout"]),
            Layout(layouts["variable_layout"]),
            Layout(layouts["optimizer_layout"]),
            self.names.pipelined,
        )
        fixed = read_axes(layouts["axes"])
        other = Search(
            self.problem,
            self.max_axes,
            fixed,
            layout=None,
            storages=[structure.storage],
            choices=self._all_choices(),
            prune=False,
            num_best=1,
        )
        other.names = self.names
        check_fixed(structure, self.names, fixed, self.problem.devices)
        all_choices = structure.with_each(self.choices)
        candidates = other._price_the_best(other._ranked(all_choices))
        if other.refused and not other.prices:
            return refused_text(other.refused[0][1])
        if not other.prices:
            return no_axes_text(self.problem.devices)
        if candidates:
            return comparison_text(best, candidates[0])
        least = min(float(prices.memory.min()) for prices in other.prices)
        return too_large_text(least, self.problem.memory)

    def _all_choices(self) -> dict[str, Sequence[Any]]:
        """Returns the choices with the numbers of microbatches, if these are said."""
        if self.microbatches is None:
            return self.choices
        return {**self.choices, MICROBATCHES: self.microbatches}

    def _structures(self, names: Names) -> Iterator[Structure]:
        """Yields the structures, with each combination of the choices."""
        stored = (names.variables, names.scanned, names.unsharded)
        sets, sets_of_stages = names.sets(), names.sets_of_stages()
        if self.layout is not None:
            rules = structure_of(self.layout, Layout(()), Layout(()), names.pipelined)
            check_fixed(rules, names, self.fixed_axes, self.problem.devices)
            candidates = structures_of_axes(dict(rules.axes), *stored, rules.stage_axis)
            fixed_dims = [dim for dim, _ in self.layout.items()]
            sets_of_stages = without_dims(sets_of_stages, fixed_dims)
        elif self.fixed_axes:
            check_sizes(self.fixed_axes, self.problem.devices)
            candidates = structures_of_names(sets, list(self.fixed_axes), *stored)
        else:
            candidates = structures(sets, self.max_axes, *stored)
        for pairs, group in itertools.groupby(candidates, lambda s: s.axes):
            groups = [list(group)]
            if not groups[0][0].stage_axis and max(self.stages) > 1:
                if 1 not in self.stages:
                    groups = []
                for dims in sets_of_stages:
                    axes = {STAGE: dims, **dict(pairs)}
                    groups.append(list(structures_of_axes(axes, *stored, STAGE)))
            for variants in groups:
                for structure in stored_as_asked(variants, self.storages):
                    yield from structure.with_each(self.choices)

    def _ranked(self, all_structures: Iterable[Structure]) -> Ranking:
        """Returns the structures that have sizes, in the order in which they are priced."""
        stages = self.stages if max(self.stages) > 1 else None
        accumulated = self.microbatches
        if stages and not self.problem.takes(MICROBATCHES):
            accumulated = None  # only the mesh gets their number
        ranking = Ranking(self.problem, accumulated or [1], self.prune)
        grids: dict[Structure, Grid | None] = {}
        for structure in all_structures:
            sized = structure.with_choices(())  # sizes do not depend on them
            if sized not in grids:
                grids[sized] = make_grid(
                    sized,
                    self.problem,
                    self.names,
                    self.microbatches if sized.stage_axis else accumulated,
                    self.fixed_axes,
                    stages,
                )
            if (grid := grids[sized]) is not None:
                ranking.add(structure, grid)
        return ranking

    def _price_the_best(self, ranking: Ranking) -> list[Candidate]:
        """Returns the best candidates. It prices all structures that may have one, and leaves
        the others in the ranking.
        """
        plans = self.plans = FullPlans(ranking.recordings, self.num_best)
        while (
            ranked := ranking.pop(nth_seconds(self.problem, self.prices, self.num_best))
        ) is not None:
            self._price(ranked, ranking)
        ranking.check_bounds()
        best = plans.best(self.prices)
        while (ranked := ranking.pop(plans.limit)) is not None:
            self._price(ranked, ranking)
            best = plans.best(self.prices)
        self.refused += plans.refused
        return best

    def _price(self, ranked: Ranked, ranking: Ranking) -> None:
        """Prices the candidates of a structure."""
        structure, grid = ranked.structure, ranked.grid
        try:
            recorded = ranking.record(ranked)
            self.prices.append(
                price(structure, self.problem, grid, recorded, ranked.durations)
            )
        except MeshtfError as error:
            self.refused.append((structure, error))
        if self.progress is not None:
            num_priced = len(self.prices) + len(self.refused)
            limit = nth_seconds(self.problem, self.prices, self.num_best)
            remaining = ranking.count(limit)
            self.progress(num_priced, num_priced + remaining)
