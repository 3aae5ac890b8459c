"""Why a layout is not the one that a search chose: which rule it breaks, or by how much it is
slower, and what takes that time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from meshtf.errors import (
    LayoutError,
    MeshError,
    MeshtfError,
    ParseError,
    explain_error,
    near_misses,
)
from meshtf.forecast.report_data import ForecastData
from meshtf.forecast.reports.units import bytes_text, devices_text, seconds_text
from meshtf.forecast.reports.user_lines import seconds_by_line, short_paths
from meshtf.graph import ReadOp, Store, WriteOp, is_variable
from meshtf.graph.recorder import Recorded
from meshtf.layout_search.candidates import Candidate
from meshtf.layout_search.problem import Names, Problem, all_nodes
from meshtf.layout_search.space import Structure
from meshtf.mesh import Layout
from meshtf.names.dtype import dtype_bytes

MAX_ROWS = 8
_MAX_DOUBLED = 6  # how often more devices are tried if nothing fits


def structure_of(
    layout: Layout, variable_layout: Layout, optimizer_layout: Layout, pipelined: str
) -> Structure:
    """Returns the structure of layouts that a user wrote.

    Args:
      layout: the rules for tensors.
      variable_layout: the further rules for variables.
      optimizer_layout: the further rules for slots.
      pipelined: the dimension of the layers that stages of a pipeline may have; "": none.

    Raises:
      ParseError: there are no rules, or further rules for more than one dimension.
    """
    axes: dict[str, list[str]] = {}
    for dim, dim_axes in layout.items():
        for axis in dim_axes:
            axes.setdefault(axis, []).append(dim)
    if not axes:
        raise ParseError("a layout without rules shards nothing: give at least one.")
    storage = "replicated"
    further = {"variables": variable_layout, "slots": optimizer_layout}
    stored: list[tuple[str, tuple[str, ...]]] = []
    for name, rules in further.items():
        if list(rules.items()):
            storage = name
            stored.extend((dim, tuple(dim_axes)) for dim, dim_axes in rules.items())
    if len(stored) > 1:
        raise ParseError("a search knows one further rule for variables, or for slots.")
    structure = Structure(
        tuple((axis, tuple(dims)) for axis, dims in axes.items()),
        storage,
        stage_axis=next(iter(layout.axes(pipelined)), "") if pipelined else "",
    )
    if not stored:
        return structure
    ((stored_dim, stored_axes),) = stored
    return dataclasses.replace(
        structure, stored_dim=stored_dim, stored_axes=stored_axes
    )


def check_fixed(
    structure: Structure, names: Names, axes: Mapping[str, int], devices: int
) -> None:
    """Raises an error for rules and axes of a user that do not belong together.

    Args:
      structure: the structure of the rules.
      names: the names of the program.
      axes: the axes with their sizes; empty if all sizes are tried.
      devices: the number of devices.

    Raises:
      LayoutError: no tensor has a dimension, or `axes` lack an axis.
      MeshError: the sizes of `axes` do not give the number of devices.
    """
    dims = [dim for _, axis_dims in structure.axes for dim in axis_dims]
    for dim in [*dims, *([structure.stored_dim] if structure.stored_dim else [])]:
        if dim not in names.sizes:
            raise LayoutError(
                explain_error(
                    f"no tensor of the program has a dimension {dim!r}.",
                    rules=structure.layout,
                    close_to=near_misses(dim, names.sizes) or "none of its dimensions",
                    way_out=f"Its dimensions are {', '.join(sorted(names.sizes))}.",
                )
            )
    if not axes:
        return
    named = {axis for axis, _ in structure.axes} | set(structure.stored_axes)
    if named != set(axes):
        raise LayoutError(
            explain_error(
                "the rules name other axes than those that are given.",
                rules=structure.layout,
                axes="; ".join(f"{axis}:{size}" for axis, size in axes.items()),
                way_out="Give the size of each axis of the rules, and of no other.",
            )
        )
    check_sizes(axes, devices)


def check_sizes(axes: Mapping[str, int], devices: int) -> None:
    """Raises MeshError if the sizes of axes do not give the number of devices."""
    size = math.prod(axes.values())
    if devices % size:
        raise MeshError(
            explain_error(
                f"the axes have {size} positions, which do not divide {devices} devices.",
                axes="; ".join(f"{axis}:{size}" for axis, size in axes.items()),
                way_out="Give axes whose sizes, times the number of pipeline stages, give "
                "the number of devices.",
            )
        )


def no_stages() -> LayoutError:
    """Returns the error for a program that is to have stages, and has no layers for them."""
    return LayoutError(
        explain_error(
            "the program has no layers that stages of a pipeline could have: no loop over layers "
            "carries examples from one to the next.",
            way_out="Make equal layers one: mtf.layers.Repeat, mtf.scan, or "
            "Architecture.scanned = True; or search without stages.",
        )
    )


def refused_text(error: MeshtfError) -> str:
    """Returns the answer for a layout that the program does not allow."""
    return f"The program does not allow it.\n{type(error).__name__}: {error}"


def too_large_text(least: float, memory: float) -> str:
    """Returns the answer for a layout that does not fit; `least` are the fewest bytes."""
    return (
        f"It does not fit: at its smallest it needs {bytes_text(least)} of a device, which "
        f"has {bytes_text(memory)}."
    )


def comparison_text(best: Candidate, other: Candidate) -> str:
    """Returns the answer for a slower layout: what it does more of than the best one."""
    ratio = other.seconds / best.seconds
    settings = other.mesh_settings
    stored = settings["variable_layout"] or settings["optimizer_layout"]
    sizes = f"{other.axes}" + (f", stored {stored}" if stored else "")
    choices = "".join(f", {name}={value}" for name, value in other.choices.items())
    lines = [
        f"At best (axes {sizes}{choices}) a step takes {seconds_text(other.seconds)}, "
        f"{ratio:.2f} of the {seconds_text(best.seconds)} of the first choice; "
        f"{bytes_text(other.peak)} in place of "
        f"{bytes_text(best.peak)}."
    ]
    rows = _differences(best.forecast, other.forecast)
    if rows:
        lines.append("It spends more time on")
        lines.extend(f"  {seconds_text(s):>10}  {label}" for label, s in rows)
    return "\n".join(lines)


def _differences(best: ForecastData, other: ForecastData) -> list[tuple[str, float]]:
    """Returns (label, seconds) of what takes longer in `other`, the most first."""
    before = seconds_by_line(best, short_paths(best))
    after = seconds_by_line(other, short_paths(other))
    differences = {label: after[label] - before.get(label, 0.0) for label in after}
    ranked = sorted(differences.items(), key=lambda item: -item[1])
    slower = [(label, seconds) for label, seconds in ranked if seconds > 0]
    return slower[:MAX_ROWS]


def no_axes_text(devices: int) -> str:
    """Returns that no sizes of the axes of a layout are legal."""
    return f"No sizes of its axes with {devices_text(devices)} in all divide what they shard."


def no_sizes_text(devices: int, layout: Layout | None, names: Names) -> str:
    """Returns why no axes have sizes, with the sizes of what rules shard.

    Args:
      devices: the number of devices.
      layout: the rules that are kept as they are; None: all are tried.
      names: the names of the program.
    """
    text = (
        f"no axes of {devices} devices divide what they shard, with these numbers of "
        "microbatches and stages"
    )
    sizes = [f"{dim}:{names.sizes[dim]}" for dim, _ in layout.items()] if layout else []
    return f"{text}: {', '.join(sizes)}" if sizes else text


def nothing_is_legal(refused: str) -> LayoutError:
    """Returns the error for a search whose layouts were all refused, as `refused` says."""
    return LayoutError(
        explain_error(
            "no layout that was tried is legal.",
            refused=refused,
            way_out="Free what is fixed, or try another number of devices.",
        )
    )


class StateBytes(NamedTuple):
    """The bytes that a training step must store, on all devices together, whatever its layout.

    Attributes:
      parameters: those of the variables that it reads or writes, slots left out.
      gradients: those of the gradients of the variables that optimizers update, which all exist
        before the first update.
      slots: those of the optimizer's slots.
    """

    parameters: float
    gradients: float
    slots: float

    def of_device(self, devices: int) -> float:
        """Returns the bytes of each device, if all of it is sharded over all devices."""
        return sum(self) / devices


def state_bytes(recorded: Recorded) -> StateBytes:
    """Returns what a recorded program must store."""
    parameters: dict[Store, None] = {}
    updated: dict[Store, None] = {}
    slots: dict[Store, None] = {}
    for node, _ in all_nodes(recorded.nodes):
        if isinstance(node.op, ReadOp):
            parameters[node.op.store] = None
        elif isinstance(node.op, WriteOp) and node.op.variables:
            variable, *slots_of = node.op.variables
            parameters[variable] = None
            slots.update(dict.fromkeys(slots_of))
            if variable.kind == "parameter":
                updated[variable] = None

    def total(stores: Iterable[Store]) -> float:
        return float(
            sum(
                store.spec.shape.size * dtype_bytes(store.spec.dtype)
                for store in stores
                if is_variable(store)
            )
        )

    return StateBytes(
        total(store for store in parameters if store not in slots),
        total(updated),
        total(slots),
    )


def nothing_fits(
    problem: Problem,
    state: StateBytes,
    least: float,
    best_of: Callable[[int], Candidate] | None,
) -> LayoutError:
    """Returns the error for a search in which no layout fits.

    Args:
      problem: what was searched for.
      state: what the program must store.
      least: the fewest bytes of a device that a layout was found to need; infinity: none was.
      best_of: returns the best layout of a number of devices, or raises LayoutError if none
        fits; None: other numbers of devices are not tried.
    """
    devices = problem.devices
    sizes_text = ", ".join(
        f"{name} {bytes_text(size / devices)}" for name, size in state._asdict().items()
    )
    facts = {
        "devices": f"{devices} x {problem.hardware.name}, {problem.runtime} runtime",
        "stored": f"{sizes_text}: {bytes_text(state.of_device(devices))} of each device, if all is "
        "sharded over all devices",
    }
    if math.isfinite(least):
        facts["least_memory"] = f"{bytes_text(least)} with activations"
    ways = []
    for i in range(1, _MAX_DOUBLED):
        count = devices * 2**i
        if best_of is not None and state.of_device(count) <= problem.memory:
            with contextlib.suppress(MeshtfError):
                best = best_of(count)
                size = bytes_text(best.peak)
                ways.append(f"{count} devices would do: {best.text}, {size} of each.")
                break
    if state.slots >= state.parameters > 0:
        without = bytes_text((state.parameters + state.gradients) / devices)
        ways.append(
            f"Adafactor stores a row and a column for each matrix in place of "
            f"{bytes_text(state.slots / devices)} of slots: {without} would be left of what is "
            "stored."
        )
    if state.of_device(devices) <= problem.memory:
        ways.append(
            "What is stored fits, and activations do not: try what was fixed otherwise, such "
            "as microbatches or recomputation, or shorter examples."
        )
    return LayoutError(
        explain_error(
            f"no layout fits into {bytes_text(problem.memory)}.",
            **facts,
            way_out=" ".join(ways) or "Take devices with more memory.",
        )
    )
