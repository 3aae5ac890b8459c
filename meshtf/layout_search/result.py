"""The result of a search: a table of the best layouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from meshtf.display import text_table
from meshtf.errors import MeshtfError
from meshtf.forecast.reports.units import bytes_text, devices_text, seconds_text
from meshtf.layout_search.candidates import Candidate, FullPlans, measured_seconds
from meshtf.layout_search.order import Estimate, distinct_sizes
from meshtf.layout_search.pricing import Prices
from meshtf.layout_search.problem import Problem
from meshtf.layout_search.space import Structure
from meshtf.names.arguments import as_int

MAX_FRONT = 8  # rows of the front of time and memory
_TITLES = ("step", "measured", "memory", "MFU", "received", "waits", "idle")


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The best layouts that a search found, the fastest first.

    Attributes:
      problem: what was searched for.
      best: the candidates, planned in full.
      front: some of those that no other candidate beats in both time and memory, from the
        fastest on; planned in full.
      num_priced: how many candidates were priced.
      num_planned: how many plans they share.
      num_pruned: how many structures have no plan of their own: a lower bound of their
        seconds exceeds the times of the best.
      refused: (structure, error) of those that the program does not allow.
      seconds: the duration of the search.
      why_not_layout: the function behind `why_not`.
      prices: the prices of all structures that have a plan.
    """

    problem: Problem
    best: tuple[Candidate, ...]
    front: tuple[Candidate, ...]
    num_priced: int
    num_planned: int
    num_pruned: int
    refused: tuple[tuple[Structure, MeshtfError], ...]
    seconds: float
    why_not_layout: Callable[[Candidate, Mapping[str, str]], str]
    prices: tuple[Prices, ...] = dataclasses.field(default=(), repr=False)

    def why_not(
        self,
        layout: str,
        axes: str = "",
        variable_layout: str = "",
        optimizer_layout: str = "",
    ) -> str:
        """Returns why a layout is not the first choice: which rule it breaks, or how much
        slower it is, and through which ops and collectives.

        Args:
          layout: its rules, such as "batch:data; heads:model".
          axes: its axes with sizes; "": the best sizes.
          variable_layout: its further rules for variables.
          optimizer_layout: its further rules for slots.

        Raises:
          ParseError: a string cannot be read.
        """
        layouts = {
            "axes": axes,
            "layout": layout,
            "variable_layout": variable_layout,
            "optimizer_layout": optimizer_layout,
        }
        return self.why_not_layout(self.best[0], layouts)

    def distinct_sizes(self, count: int = 8) -> list[Estimate]:
        """Returns the fastest layouts whose devices compute with different local sizes, for
        `mtf.calibration.measure_local_step`; none with pipeline stages.

        Args:
          count: how many are returned, at most.
        """
        limit = as_int("count", count, least=1)
        return distinct_sizes(self.problem, self.prices, limit)

    def measured(
        self, mesh_devices: str | Sequence[str], count: int = 5
    ) -> SearchResult:
        """Returns this result with the first candidates in the order of their measured times:
        each runs for a few steps.

        Args:
          mesh_devices: the devices, as in `Mesh(devices=...)`: as many as were searched for.
          count: how many candidates run.
        """
        chosen = self.best[: as_int("count", count, least=1)]
        seconds = measured_seconds(self.problem, chosen, mesh_devices)
        timed = [
            dataclasses.replace(candidate, measured=measured)
            for candidate, measured in zip(chosen, seconds)
        ]
        timed.sort(key=lambda candidate: candidate.measured or 0.0)
        return dataclasses.replace(self, best=(*timed, *self.best[count:]))

    def __repr__(self) -> str:
        return f"SearchResult({self.num_priced:,} priced, best={self.best[0]!r})"

    def __str__(self) -> str:
        problem = self.problem
        lines = [
            f"{self.num_priced:,} layouts on {devices_text(problem.devices)} "
            f"({problem.hardware.name}, {bytes_text(problem.memory)} each) priced by "
            f"{self.num_planned:,} plans in {self.seconds:.1f} s",
            f"memory is that under the {problem.runtime} runtime",
            *self._proof(),
            "",
        ]
        rows = [self._columns(candidate) for candidate in self.best]
        titles: tuple[str, ...] = ("", *_TITLES, "layout")
        if self.best[0].measured is None:
            titles = tuple(title for title in titles if title != "measured")
        align = ">" * (len(titles) - 1) + "<"
        lines.append(text_table(titles, rows, align))
        lines += self._uncertainty()
        lines += self._front()
        return "\n".join(lines)

    def _uncertainty(self) -> list[str]:
        """Returns a remark on the error of the times, if it is large."""
        time = self.best[0].outline.time
        if time.uncertainty < 0.01:
            return []
        return [
            "",
            f"Times are +- {time.uncertainty:.0%}: the profile has no measured matmuls of "
            "these sizes. Their order is more certain.",
        ]

    def _front(self) -> list[str]:
        """Returns rows of the candidates that no other one beats in both time and memory."""
        if len(self.front) < 2:
            return []
        lines = ["", "less memory for more time, of the kinds with a plan"]
        for candidate in self.front:
            seconds = seconds_text(candidate.seconds)
            memory = bytes_text(candidate.peak)
            lines.append(f"  {seconds:>8}  {memory:>9}  {candidate.text}")
        return lines

    def _proof(self) -> list[str]:
        """Returns how far the estimates and the plans of the best agree, and why the other
        kinds of layouts have no plan.
        """
        error = max(abs(c.estimated / c.seconds - 1) for c in self.best)
        lines = [
            f"the best {len(self.best)} are planned in full: estimates differ from their times "
            f"by {error:.1%} at most"
        ]
        if self.num_pruned:
            lines.append(
                f"{self.num_pruned} more kinds of layouts have no plan: a lower bound of "
                "their times exceeds those, or they do not fit"
            )
        return lines

    def _columns(self, candidate: Candidate) -> tuple[str, ...]:
        """Returns the columns of a candidate."""
        outline = candidate.outline
        rank = self.best.index(candidate) + 1
        return (
            f"{rank}",
            seconds_text(candidate.seconds),
            *self._measured(candidate),
            bytes_text(candidate.peak),
            f"{outline.time.mfu:.1%}",
            bytes_text(outline.received),
            seconds_text(outline.time.exposed),
            f"{candidate.idle:.0%}",
            candidate.text,
        )

    def _measured(self, candidate: Candidate) -> tuple[str, ...]:
        """Returns the column of measured times, if there is one."""
        if self.best[0].measured is None:
            return ()
        if candidate.measured is None:
            return ("-",)
        return (seconds_text(candidate.measured),)


def pareto_front(
    problem: Problem, all_prices: Sequence[Prices], plans: FullPlans
) -> list[Candidate]:
    """Returns up to `MAX_FRONT` candidates that fit, none of which another one beats in both
    time and memory, from the fastest on. They are chosen by their estimates, and then planned.
    """
    if not all_prices:
        return []
    seconds = np.concatenate([p.seconds for p in all_prices])
    memory = np.concatenate([p.memory for p in all_prices])
    owners = [(p, i) for p in all_prices for i in range(len(p.grid))]
    front = []
    least = np.nextafter(problem.memory, np.inf)
    for index in np.lexsort((memory, seconds)):
        if memory[index] < least and np.isfinite(seconds[index]):
            least = memory[index]
            front.append(owners[index])
    stride = max(1, -(-len(front) // MAX_FRONT))
    planned = [plans.candidate(*entry) for entry in front[::stride]]
    fitting = [candidate for candidate in planned if candidate and candidate.fits]
    result: list[Candidate] = []
    for candidate in sorted(fitting, key=lambda c: (c.seconds, c.peak)):
        if not result or candidate.peak < result[-1].peak:
            result.append(candidate)
    return result
