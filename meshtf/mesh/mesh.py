"""A mesh: a grid of positions (virtual devices) with named axes, its layout, and its devices.

>>> from meshtf.mesh import Mesh
>>> from meshtf.names import Shape
>>> mesh = Mesh("data:4;model:2", layout="batch:data;d_ff:model")
>>> mesh.place(Shape("batch:8;d_model:16"))               # (placement, conflicts)
(Placement('batch:data'), ())
>>> mesh.coords[5], mesh.groups("data")[1]
((2, 1), (1, 3, 5, 7))

`devices=` says on which hardware the positions compute; several may share one device.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from meshtf.display import MAX_POSITIONS, html_mesh
from meshtf.errors import LayoutError, MeshError
from meshtf.mesh.axes import (
    DEFAULT_STAGES,
    AxesLike,
    read_axes,
    read_devices,
    read_names,
    read_stages,
    read_strings,
)
from meshtf.mesh.layout import Layout, LayoutLike
from meshtf.mesh.mesh_text import (
    bucket_bytes_error,
    devices_text,
    host_axis_error,
    mesh_repr,
    mesh_text,
    missing_axis_error,
    missing_axis_note,
    missing_axis_notes,
    stage_rule_error,
)
from meshtf.mesh.once_per_mesh import log_once, warn_once
from meshtf.mesh.placement import Placement
from meshtf.mesh.state import Conflict, state_text
from meshtf.names import Shape
from meshtf.names.arguments import as_bool, as_choice, as_int, refuse

# A "slot" is a tensor of an optimizer's state, such as a moment of a variable.
TensorKind: TypeAlias = Literal["tensor", "variable", "slot"]
# A region is the code in a `with mtf.layout(...)` block, which changes rules of the layout.
NO_CHANGES = Layout()  # the changes outside of such blocks
_Placed: TypeAlias = tuple[Placement, tuple[Conflict, ...]]
_PLACEMENT = 'Write mtf.Placement("batch:data"), with axes of the mesh.'
REDUCE_DTYPES = ("float32", "bfloat16")
MAX_CACHED = 1_000  # layouts, or placements, of a mesh; then the cache is cleared


class Mesh:
    """A grid of positions with named axes; compared by identity.

    Args:
      axes: the names and sizes of axes, such as "data:4;model:2", or pairs, or a dict; ""
        is a mesh of one position.
      layout: the rules that shard dimensions along axes, such as "batch:data".
      variable_layout: further rules for variables and optimizer slots (FSDP, ZeRO-3).
      optimizer_layout: further rules for optimizer slots (ZeRO-1).
      keep_gathered: whether a variable that is gathered for the forward pass stays
        gathered until the backward pass; otherwise it is freed, and gathered again.
      devices: None (one GPU for each position; without GPUs one CPU for all), "logical:8"
        (logical devices of one CPU), "separate:8" (the same, with separate memories), a
        list of device names, "spmd", "spmd:cuda", "spmd:tpu" or "spmd:cpu" (the devices of
        jax), or "abstract" (no devices, for programs that are only explained).
      within_host: an axis, or several, along which positions share a host. If `devices`
        is a list of names on several hosts, it is reordered for that.
      stages: the axis of the stages of `GPipe` and `mtf.stage`; it shards no dimension.
        None: "stage", unless a rule names it ("layers:stage").
      optional_axes: axes that layouts may name although this mesh lacks them, such as
        "data;model", so that one layout serves smaller meshes as well.
      strict: whether warnings about the layout are errors, and so is a dimension whose size
        its axes do not divide. Otherwise its last shards end with padding.
      seed: the seed from which the initial values of variables are drawn.
      microbatches: the number of microbatches of a pipeline, which a scan over a sharded
        dimension is ("layers:stage"). None: a scan that could be one has up to four for
        each stage; one that could not be one gathers what it scans, and warns.
      repeats: the number of groups of layers of a stage: more make the bubble shorter.
      bucket_bytes: gradients and other partial sums are reduced together, in collectives
        of about so many bytes, while the backward pass continues; only on devices with
        separate memories. 0: one collective for each.
      reduce_dtype: the data type of sums of gradients over devices: "float32" or "bfloat16".
      two_batch_overlap: whether GPUs compute scanned layers in two halves of the batch: what one
        half waits for, sums over devices, runs beside the products of the other.

    Raises:
      LayoutError: under `strict`, a rule or `stages` names an axis that the mesh lacks.
      MeshError: the number of devices differs from the mesh's size, `within_host` names no
        axis, or `bucket_bytes` is negative.
      ParseError: a string cannot be read.
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
        stages: str | None = None,
        strict: bool = False,
        seed: int = 0,
        bucket_bytes: int = 25 * 2**20,
        optional_axes: str | Sequence[str] = (),
        microbatches: int | None = None,
        repeats: int = 1,
        reduce_dtype: str = "float32",
        two_batch_overlap: bool = False,
    ) -> None:
        self.axes = read_axes(axes)
        self.layout = Layout(layout)
        self.variable_rules = Layout.changes(variable_layout)
        self.optimizer_rules = Layout.changes(optimizer_layout)
        self._layouts: dict[tuple[Layout, str], Layout] = {}
        self._placements: dict[tuple[Shape, Layout, int | None], _Placed] = {}
        self._groups: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}
        self.keep_gathered = as_bool("keep_gathered", keep_gathered)
        self.bucket_bytes = as_int("bucket_bytes", bucket_bytes)
        self.devices = read_devices(devices, self.axes)
        self.within_host = read_strings(
            "within_host", within_host, "an axis, or several"
        )
        rules = (self.layout, self.variable_rules, self.optimizer_rules)
        self.stages = read_stages(stages, rules)
        self.optional_axes = read_names(optional_axes)
        self.microbatches = None
        if microbatches is not None:
            self.microbatches = as_int("microbatches", microbatches, least=1)
        self.repeats = as_int("repeats", repeats, least=1)
        self.reduce_dtype = as_choice("reduce_dtype", reduce_dtype, REDUCE_DTYPES)
        self.two_batch_overlap = as_bool("two_batch_overlap", two_batch_overlap)
        self.strict = as_bool("strict", strict)
        self.seed = as_int("seed", seed)
        self._check()

    @property
    def size(self) -> int:
        """The number of positions."""
        return math.prod(self.axes.values())

    @property
    def num_stages(self) -> int:
        """The number of stages of `GPipe` and `mtf.stage`; 1 without such an axis."""
        return self.axes.get(self.stages, 1)

    @functools.cached_property
    def coords(self) -> tuple[tuple[int, ...], ...]:
        """The coordinates of each position; those of the last axis change fastest."""
        return tuple(itertools.product(*map(range, self.axes.values())))

    @functools.cached_property
    def axis_index(self) -> dict[str, int]:
        """The index of each axis in the coordinates of a position."""
        return {axis: i for i, axis in enumerate(self.axes)}

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """Returns groups of positions: those of one group differ only along `axes`, and are
        in the order of their coordinates along `axes`, which change fastest along the last.
        """
        for axis in axes:
            as_choice("axes", axis, self.axes)  # raises an error for an unknown axis
        if axes not in self._groups:
            indices = [self.axis_index[axis] for axis in axes]
            # {coordinates along other axes: [(coordinates along `axes`, position)]}
            groups: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
            for position, coord in enumerate(self.coords):
                key = tuple(c for i, c in enumerate(coord) if i not in indices)
                along_axes = tuple(coord[i] for i in indices)
                groups.setdefault(key, []).append((along_axes, position))
            self._groups[axes] = tuple(
                tuple(position for _along_axes, position in sorted(group))
                for group in groups.values()
            )
        return self._groups[axes]

    def layout_in(
        self, region: Layout = NO_CHANGES, kind: TensorKind = "tensor"
    ) -> Layout:
        """Returns the rules for tensors of a kind, after the layout changes of a region."""
        try:
            return self._layouts[region, kind]
        except (KeyError, TypeError):
            pass  # not in the cache, or unhashable: an error is raised below
        if not isinstance(region, Layout):
            refuse(
                "region",
                region,
                "changes of a layout",
                'Write Layout.changes("heads:; d:model").',
            )
        as_choice("kind", kind, get_args(TensorKind))  # raises if it is unknown
        self._check_rules(region)
        layout = self.layout.override(region)
        if kind != "tensor":
            layout = layout.override(self.variable_rules)
        if kind == "slot":
            layout = layout.override(self.optimizer_rules)
        if len(self._layouts) >= MAX_CACHED:
            self._layouts.clear()
        self._layouts[region, kind] = layout
        return layout

    @property
    def variable_layout(self) -> Layout:
        """The rules for variables."""
        return self.layout_in(kind="variable")

    @property
    def optimizer_layout(self) -> Layout:
        """The rules for optimizer slots."""
        return self.layout_in(kind="slot")

    @property
    def pads(self) -> bool:
        """Whether axes may shard dimensions whose size they do not divide."""
        return not self.strict

    @property
    def abstract(self) -> bool:
        """Whether the mesh has no devices: programs are explained, but never run."""
        return self.devices == "abstract"

    @property
    def live(self) -> bool:
        """Whether the devices are jax's: "spmd", "spmd:cpu:8", ..."""
        return isinstance(self.devices, str) and self.devices.split(":")[0] == "spmd"

    def group_size(self, *axes: str) -> int:
        """Returns the number of positions that differ only along `axes`."""
        try:
            return math.prod(self.axes[axis] for axis in axes)
        except (KeyError, TypeError):
            self.groups(*axes)  # raises an error for an unknown axis
            raise

    @property
    def replicated(self) -> Placement:
        """The placement of a tensor that is replicated along all axes."""
        return Placement()

    def place(
        self, shape: Shape, layout: Layout | None = None, stage: int | None = None
    ) -> tuple[Placement, tuple[Conflict, ...]]:
        """Returns the placement of a shape, and conflicts: rules that cannot be applied.

        Args:
          shape: the shape of a tensor.
          layout: the rules; None: the rules of the mesh.
          stage: the pipeline stage of the tensor; None: all stages.
        """
        layout = self.layout if layout is None else layout
        try:
            return self._placements[shape, layout, stage]
        except (KeyError, TypeError):
            pass  # not in the cache, or unhashable: an error is raised below
        if not isinstance(shape, Shape):
            refuse("shape", shape, "a shape", 'Write mtf.Shape("batch:8;d_model:512").')
        if not isinstance(layout, Layout):
            refuse("layout", layout, "a layout", 'Write mtf.Layout("batch:data").')
        if stage is not None:
            as_int("stage", stage)
        if len(self._placements) >= MAX_CACHED:
            self._placements.clear()
        placed = self._place(shape, layout, stage)
        self._placements[shape, layout, stage] = placed
        return placed

    def _place(self, shape: Shape, layout: Layout, stage: int | None) -> _Placed:
        """Returns what `place` does, for valid arguments."""
        dim_of: dict[str, str] = {}  # axis -> the dimension that it shards
        conflicts: list[Conflict] = []
        shards: dict[str, list[str]] = {}
        for dim in shape:
            rule_axes = layout.axes(dim.name)
            axes = [axis for axis in rule_axes if self.axes.get(axis, 1) > 1]
            num_shards = math.prod(self.axes[axis] for axis in axes)
            for axis in axes:
                if dim.size % num_shards and self.strict:
                    conflicts.append(Conflict("size", dim.name, axis))
                elif axis in dim_of:
                    conflicts.append(
                        Conflict("axis", dim.name, axis, other=dim_of[axis])
                    )
                else:
                    dim_of[axis] = dim.name
                    shards.setdefault(dim.name, []).append(axis)
        placement = Placement.of(shards)
        if self.num_stages > 1:
            placement = placement.with_stage(self.stages, stage)
        return placement, tuple(conflicts)

    def has(self, placement: Placement) -> list[bool]:
        """Returns for each position whether it has a shard: those of other stages have none."""
        self._check_placement(placement)
        stage = placement.stage
        if stage is None:
            return [True] * self.size
        axis = self.axis_index[self.stages]
        return [coord[axis] == stage for coord in self.coords]

    @functools.cached_property
    def notes(self) -> tuple[str, ...]:
        """Notes about rules of the mesh with an axis that the mesh lacks."""
        layouts = (self.layout, self.variable_rules, self.optimizer_rules)
        rules = [rule for layout in layouts for rule in layout.items()]
        notes = missing_axis_notes(self.axes, rules)
        if self.stages not in (*self.axes, DEFAULT_STAGES, ""):
            notes.append(
                missing_axis_note(self.axes, self.stages, f"stages={self.stages!r}")
            )
        return tuple(dict.fromkeys(notes))

    def _check(self) -> None:
        """Raises the errors of the constructor that concern several arguments."""
        for rules in (self.layout, self.variable_rules, self.optimizer_rules):
            self._check_rules(rules)
        if self.stages not in (*self.axes, DEFAULT_STAGES, ""):
            self._report_missing(self.stages, f"stages={self.stages!r}")
        for axis in self.within_host:
            if axis not in self.axes:
                raise MeshError(host_axis_error(self.axes, axis))
        if self.bucket_bytes < 0:
            raise MeshError(bucket_bytes_error(self.bucket_bytes))

    def _check_rules(self, layout: Layout) -> None:
        """Raises an error for a rule that no mesh allows, and reports missing axes."""
        for name, axes in layout.items():
            for axis in axes:
                if axis == self.stages and axis in self.axes:
                    raise MeshError(stage_rule_error(self.axes, name, axis))
                if axis not in self.axes:
                    self._report_missing(axis, f"layout rule {name}:{axis}")

    def _report_missing(self, axis: str, named_by: str) -> None:
        """Logs that the mesh lacks an axis, and warns of it unless the axis is optional.
        `named_by` says what names the axis: "layout rule batch:data".

        Raises:
          LayoutError: the mesh is strict, and the axis is not optional.
        """
        log_once(self, missing_axis_note(self.axes, axis, named_by))
        if self.size == 1 or axis in self.optional_axes:
            return
        text = missing_axis_error(self.axes, axis, named_by)
        if self.strict:
            raise LayoutError(text)
        warn_once(self, f"lacking axis {axis}", text)

    def states(self, placement: Placement) -> dict[str, str]:
        """Returns the state along each axis as text, see `state_text`. Of the axes that shard
        a dimension, the major one comes first.
        """
        self._check_placement(placement)
        states = placement.states(self.axes)
        return {axis: state_text(state) for axis, state in states}

    def _check_placement(self, placement: object) -> None:
        """Raises ArgumentError unless this is a placement on axes of the mesh."""
        if not isinstance(placement, Placement) or not (
            placement.unreplicated <= self.axes.keys()
        ):
            refuse("placement", placement, "a placement on the mesh", _PLACEMENT)

    def __copy__(self) -> Mesh:
        return self

    def __deepcopy__(self, memo: object) -> Mesh:
        """Returns the mesh itself: copies of tensors and variables are on the same mesh."""
        return self

    def __str__(self) -> str:
        return mesh_text(self.axes)

    def __repr__(self) -> str:
        settings = {
            "layout": str(self.layout),
            "variable_layout": str(self.variable_rules),
            "optimizer_layout": str(self.optimizer_rules),
            "devices": devices_text(self.devices),
        }
        return mesh_repr(self.axes, settings)

    def _repr_html_(self) -> str:
        """Returns a drawing of the positions with their devices."""
        names: Sequence[str] = list(map(str, range(min(self.size, MAX_POSITIONS))))
        if not isinstance(self.devices, str) and self.devices is not None:
            names = self.devices
        return html_mesh(repr(self), self.axes, names)
