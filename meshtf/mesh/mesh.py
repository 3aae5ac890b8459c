"""A mesh: a grid of positions with named axes, its default layout, and its devices.

>>> from meshtf.mesh import Mesh
>>> from meshtf.names import Shape
>>> mesh = Mesh("data:4;model:2", layout="batch:data;d_ff:model")
>>> mesh.place(Shape("batch:8;d_model:16"))
((Sharded(dim='batch'), Replicated), ())
>>> mesh.coords[5], mesh.groups("data")[1]
((2, 1), (1, 3, 5, 7))

Positions are not devices: `devices=` says what hardware they map to, and is resolved by
the runtime when the first op runs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from meshtf.errors import (
    LayoutError,
    MeshError,
    explain_error,
    near_misses,
)
from meshtf.mesh.axes import (
    AxesLike,
    read_axes,
    read_devices,
    read_names,
    read_strings,
)
from meshtf.mesh.layout import Layout, LayoutLike
from meshtf.mesh.once_per_mesh import log_once, warn_once
from meshtf.mesh.state import OnStage, Placement, Replicated, Sharded, State
from meshtf.names import Shape
from meshtf.names.arguments import as_bool, as_choice, as_int, as_text, refuse

What: TypeAlias = Literal["tensor", "variable", "slot"]
NO_CHANGES = Layout()  # no changes: the rules of the mesh
MAX_LAYOUTS = 1_000  # of regions that a mesh remembers


class Conflict(NamedTuple):
    """Why a dimension of a tensor is not cut along the axis that the layout names."""

    kind: Literal[
        "axis", "size"
    ]  # the axis is taken by `other`; the size does not divide
    dim: str
    axis: str
    other: str = ""


class Mesh:
    """A grid of positions with named axes; compared by identity.

    Args:
      axes: names and sizes, such as "data:4;model:2", or pairs, or a dict; "" is a mesh
        of one position.
      layout: which dimension is cut along which axis, for all tensors but variables.
      variable_layout: further rules for variables and what belongs to them (FSDP,
        ZeRO-3).
      optimizer_layout: further rules for what optimizers keep beside the variables
        (ZeRO-1).
      keep_gathered: whether a variable that is made whole for the forward pass stays so
        until the backward pass needs it; else it is freed and gathered again.
      devices: None (all CPU positions on one CPU, else a GPU each), "logical:8"
        (logical devices of one CPU), "separate:8" (these as if each had a memory of its
        own), a list with one device name
        for each position, or "abstract": none, for programs that are only explained.
      within_host: an axis, or several, along which positions lie on one host, whatever
        the order of the axes; it matters where devices are a list of names over several
        hosts.
      stages: the axis along which stages of a pipeline lie (`mtf.stage`); it cuts no
        dimension.
      optional_axes: axes that layouts may name although this mesh lacks them, such as
        "data;model": for a layout that stays as it is when the mesh shrinks.
      strict: whether warnings about the layout are errors.
      seed: the seed from which the initial values of variables are drawn.
      bucket_bytes: how much of gradients and other unfinished sums is reduced together,
        where devices have memories of their own, while the backward pass goes on; 0:
        each by itself.

    Raises:
      LayoutError: under `strict`, a rule or `stages` names an axis that the mesh lacks.
      MeshError: the number of devices is not the mesh's size, `within_host` names no
        axis, or `bucket_bytes` is negative.
      ParseError: a string cannot be read, or a rule names several axes.
    """

    def __init__(
        self,
        axes: AxesLike,
        layout: LayoutLike = (),
        variable_layout: LayoutLike = (),
        optimizer_layout: LayoutLike = (),
        keep_gathered: bool = False,
        devices: str | Sequence[str] | None = None,
        within_host: str | Sequence[str] = (),
        stages: str = "stage",
        strict: bool = False,
        seed: int = 0,
        bucket_bytes: int = 25 * 2**20,
        optional_axes: str | Sequence[str] = (),
    ) -> None:
        self.axes = read_axes(axes)
        self.layout = Layout(layout)
        self._variable_rules = Layout.changes(variable_layout)
        self._optimizer_rules = Layout.changes(optimizer_layout)
        self._layouts: dict[tuple[Layout, str], Layout] = {}
        self._groups: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}
        self.keep_gathered = as_bool("keep_gathered", keep_gathered)
        self.bucket_bytes = as_int("bucket_bytes", bucket_bytes)
        self.devices = read_devices(devices)
        self.within_host = read_strings(
            "within_host", within_host, "an axis, or several"
        )
        self.stages = as_text("stages", stages, "the name of an axis")
        self.optional_axes = read_names(optional_axes)
        self.strict = as_bool("strict", strict)
        self.seed = as_int("seed", seed)
        self._check()

    @property
    def size(self) -> int:
        """The number of positions."""
        return math.prod(self.axes.values())

    @functools.cached_property
    def coords(self) -> tuple[tuple[int, ...], ...]:
        """The coordinates of all positions, the last axis running fastest."""
        return tuple(itertools.product(*map(range, self.axes.values())))

    @functools.cached_property
    def axis_index(self) -> dict[str, int]:
        """The place of each axis in a placement."""
        return {axis: i for i, axis in enumerate(self.axes)}

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """Returns the positions that differ only along `axes`, in the order of their
        coordinates.
        """
        for axis in axes:
            as_choice("axes", axis, self.axes)
        if axes not in self._groups:
            along = [self.axis_index[a] for a in axes]
            groups: dict[tuple[int, ...], list[int]] = {}
            for position, coord in enumerate(self.coords):
                key = tuple(-1 if i in along else c for i, c in enumerate(coord))
                groups.setdefault(key, []).append(position)
            self._groups[axes] = tuple(map(tuple, groups.values()))
        return self._groups[axes]

    def layout_in(self, region: Layout = NO_CHANGES, what: What = "tensor") -> Layout:
        """Returns the rules for what lies in a region whose changes of the layout are
        `region`.
        """
        if not isinstance(region, Layout):
            refuse(
                "region",
                region,
                "changes of a layout",
                'Write Layout.changes("heads:; d:model").',
            )
        key = (
            region,
            what if isinstance(what, str) else as_choice("what", what, get_args(What)),
        )
        if key not in self._layouts:
            as_choice("what", what, get_args(What))
            self._check_rules(region)
            layout = self.layout.override(region)
            if what != "tensor":
                layout = layout.override(self._variable_rules)
            if what == "slot":
                layout = layout.override(self._optimizer_rules)
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = layout
            return layout
        return self._layouts[key]

    @property
    def variable_layout(self) -> Layout:
        """The rules for variables."""
        return self.layout_in(what="variable")

    @property
    def optimizer_layout(self) -> Layout:
        """The rules for what optimizers keep beside the variables."""
        return self.layout_in(what="slot")

    @property
    def abstract(self) -> bool:
        """Whether there is no hardware: programs are explained, and never run."""
        return self.devices == "abstract"

    def exchanges(self, first: str, second: str) -> list[tuple[int, int]]:
        """Returns (source, target) of all positions, where two axes of one size change
        places.
        """
        as_choice("first", first, self.axes)
        as_choice("second", second, self.axes)
        size = self.axes[first]
        return [
            (group[k % size * size + k // size], target)
            for group in self.groups(first, second)
            for k, target in enumerate(group)
        ]

    @property
    def replicated(self) -> Placement:
        """The placement of a tensor that every position holds."""
        return (Replicated,) * len(self.axes)

    def place(
        self, shape: Shape, layout: Layout | None = None, stage: int | None = None
    ) -> tuple[Placement, tuple[Conflict, ...]]:
        """Returns where a layout (by default the mesh's) puts a shape, and what it
        could not cut.
        """
        layout = self.layout if layout is None else layout
        if not isinstance(shape, Shape):
            refuse("shape", shape, "a shape", 'Write mtf.Shape("batch:8;d_model:512").')
        if not isinstance(layout, Layout):
            refuse("layout", layout, "a layout", 'Write mtf.Layout("batch:data").')
        if stage is not None:
            as_int("stage", stage)
        states: dict[str, State] = dict.fromkeys(self.axes, Replicated)
        if stage is not None and self.axes.get(self.stages, 1) > 1:
            states[self.stages] = OnStage(stage)
        conflicts: list[Conflict] = []
        for dim in shape:
            axes = [a for a in layout.axes(dim.name) if self.axes.get(a, 1) > 1]
            parts = math.prod(self.axes[a] for a in axes)
            for axis in axes:
                taken = states[axis]
                if dim.size % parts:
                    conflicts.append(Conflict("size", dim.name, axis))
                elif isinstance(taken, Sharded):
                    conflicts.append(Conflict("axis", dim.name, axis, taken.dim))
                else:
                    states[axis] = Sharded(dim.name)
        return tuple(states.values()), tuple(conflicts)

    def has(self, placement: Placement) -> list[bool]:
        """Returns for each position whether it holds a tensor at all."""
        if not isinstance(placement, tuple) or len(placement) != len(self.axes):
            refuse("placement", placement, "a state for each axis of the mesh")
        return [
            all(
                not isinstance(s, OnStage) or s.coordinate == c
                for s, c in zip(placement, coord)
            )
            for coord in self.coords
        ]

    @functools.cached_property
    def notes(self) -> tuple[str, ...]:
        """What is legal but worth knowing of its own rules: axes that it lacks."""
        own = (self.layout, self._variable_rules, self._optimizer_rules)
        notes = missing_axis_notes(
            self, [rule for rules in own for rule in rules.items()]
        )
        if self.stages not in (*self.axes, "stage"):
            notes.append(_lacks(self, self.stages, f"stages={self.stages!r}"))
        return tuple(dict.fromkeys(notes))

    def _check(self) -> None:
        for rules in (self.layout, self._variable_rules, self._optimizer_rules):
            self._check_rules(rules)
        if self.stages not in (*self.axes, "stage"):
            self._answer_lacking(self.stages, f"stages={self.stages!r}")
        for axis in self.within_host:
            if axis not in self.axes:
                raise MeshError(
                    explain_error(
                        f"within_host names the axis {axis!r}, which the mesh lacks.",
                        mesh=self,
                        close_to=near_misses(axis, self.axes) or "none of its axes",
                        way_out="Name axes of the mesh, or leave within_host out.",
                    )
                )
        if self.bucket_bytes < 0:
            raise MeshError(
                f"bucket_bytes is {self.bucket_bytes}: it is 0 or more; 0 reduces each "
                "unfinished sum by itself."
            )
        devices = self.devices
        if (
            not (devices is None or isinstance(devices, str))
            and len(devices) != self.size
        ):
            raise MeshError(
                explain_error(
                    f"the mesh has {self.size} positions, but {len(devices)} devices "
                    "were given.",
                    mesh=self,
                    devices=", ".join(devices),
                    way_out="Give one device for each position (the last axis runs "
                    "fastest), or devices=None to map all positions to the hardware at "
                    "hand.",
                )
            )

    def _check_rules(self, layout: Layout) -> None:
        """Refuses a dimension over several axes, and answers axes that are not there."""
        layout.check_axes(mesh=self)
        for name, axes in layout.items():
            for axis in axes:
                if axis == self.stages and axis in self.axes:
                    raise MeshError(
                        explain_error(
                            f"axis {axis!r} is for the stages of a pipeline: no "
                            "dimension is cut along it.",
                            rule=f"{name}:{axis}",
                            mesh=self,
                            way_out="Name another axis, or say which one is for "
                            "stages: Mesh(..., stages=...).",
                        )
                    )
                if axis not in self.axes:
                    self._answer_lacking(axis, f"layout rule {name}:{axis}")

    def _answer_lacking(self, axis: str, what: str) -> None:
        """Logs an axis that is not there, and warns of it unless it may be absent."""
        log_once(self, _lacks(self, axis, what))
        if self.size == 1 or axis in self.optional_axes:
            return
        close = near_misses(axis, self.axes)
        meant = f"Did you mean {close}?" if close else ""
        text = explain_error(
            f"{what}: the mesh has no axis {axis!r}, which counts as size 1.",
            mesh=repr(self),
            way_out=f"{meant} If it may be absent, say so: Mesh(..., "
            f'optional_axes="{axis}").'.lstrip(),
        )
        if self.strict:
            raise LayoutError(text)
        warn_once(self, f"lacking axis {axis}", text)

    def __repr__(self) -> str:
        return (
            ";".join(f"{name}:{size}" for name, size in self.axes.items())
            or "(one position)"
        )


def missing_axis_notes(
    mesh: Mesh, rules: Iterable[tuple[str, tuple[str, ...]]]
) -> list[str]:
    """Returns what is legal but worth knowing of rules: axes that a mesh lacks."""
    return [
        _lacks(mesh, axis, f"layout rule {name}:{axis}")
        for name, axes in rules
        for axis in axes
        if axis not in mesh.axes
    ]


def _lacks(mesh: Mesh, axis: str, what: str) -> str:
    close = near_misses(axis, mesh.axes)
    return (
        f"{what}: the mesh {mesh!r} has no axis {axis!r}, which counts as size 1."
        + (f" Did you mean {close}?" if close else "")
    )
