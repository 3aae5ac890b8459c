"""A mesh: a grid of positions with named axes, its default layout, and its devices.

>>> from meshtf.mesh import Mesh
>>> from meshtf.names import Shape
>>> mesh = Mesh("data:4;model:2", layout="batch:data;d_ff:model")
>>> mesh.place(Shape("batch:8;d_model:16"))
((Split(dim='batch'), Whole), ())
>>> mesh.coords[5], mesh.groups("data")[1]
((2, 1), (1, 3, 5, 7))

Positions are not devices: `devices=` says what hardware they map to, and is resolved by the
runtime when the first op runs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from absl import logging

from meshtf.errors import MeshError, ParseError, explain_error, near_misses
from meshtf.mesh.layout import Layout, LayoutLike
from meshtf.mesh.state import Placement, Split, State, Whole
from meshtf.names import Shape, parse_pairs


class Clash(NamedTuple):
  """Why a dimension of a tensor is not cut along the axis that the layout names."""

  kind: Literal["axis", "size"]     # the axis is taken by `other`; the size does not divide
  dim: str
  axis: str
  other: str = ""


class Mesh:
  """A grid of positions with named axes; compared by identity.

  Args:
    axes: names and sizes, such as "data:4;model:2"; "" is a mesh of one position.
    layout: which dimension is cut along which axis, for all tensors but variables.
    variable_layout: further rules for variables and what belongs to them (FSDP).
    devices: None (all CPU positions on one CPU, else a GPU each), "logical:8", or a list with one
      device name for each position.
    strict: whether warnings about the layout are errors.
    seed: the seed from which the initial values of variables are drawn.

  Raises:
    MeshError: the number of devices is not the mesh's size.
    ParseError: a string cannot be read, or a rule names several axes.
  """

  def __init__(self, axes: str, layout: LayoutLike = (), variable_layout: LayoutLike = (),
               devices: str | Sequence[str] | None = None, strict: bool = False,
               seed: int = 0) -> None:
    self.axes = {name: _size(name, size, axes) for name, size in parse_pairs(axes, what="mesh")}
    self.layout = Layout(layout)
    self.variable_layout = self.layout.override(variable_layout)
    self.devices = devices
    self.strict = strict
    self.seed = seed
    self.notes: list[str] = []          # what is legal but worth knowing; explain prints them
    self.seen_dims: set[str] = set()    # names met so far, to find rules that never matched
    self.warned_rules: set[str] = set()
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
    """Returns the positions that differ only along `axes`, in the order of their coordinates."""
    along = [self.axis_index[a] for a in axes]
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, coord in enumerate(self.coords):
      key = tuple(-1 if i in along else c for i, c in enumerate(coord))
      groups.setdefault(key, []).append(position)
    return tuple(map(tuple, groups.values()))

  @property
  def whole(self) -> Placement:
    """The placement of a tensor that every position holds."""
    return (Whole,) * len(self.axes)

  def place(self, shape: Shape, layout: Layout | None = None
            ) -> tuple[Placement, tuple[Clash, ...]]:
    """Returns where a layout (by default the mesh's) puts a shape, and what it could not cut."""
    layout = self.layout if layout is None else layout
    states: dict[str, State] = dict.fromkeys(self.axes, Whole)
    clashes: list[Clash] = []
    for dim in shape:
      axes = [a for a in layout.axes(dim.name) if self.axes.get(a, 1) > 1]
      parts = math.prod(self.axes[a] for a in axes)
      for axis in axes:
        taken = states[axis]
        if dim.size % parts:
          clashes.append(Clash("size", dim.name, axis))
        elif isinstance(taken, Split):
          clashes.append(Clash("axis", dim.name, axis, taken.dim))
        else:
          states[axis] = Split(dim.name)
    return tuple(states.values()), tuple(clashes)

  def note(self, text: str) -> None:
    """Keeps a remark about this mesh, once."""
    if text not in self.notes:
      self.notes.append(text)
      logging.info("%s", text)

  def unmatched_rules(self) -> dict[str, str]:
    """Returns the rules whose dimension was never seen, each with names that resemble it."""
    rules = dict.fromkeys([n for n, _ in self.layout.items()]
                          + [n for n, _ in self.variable_layout.items()])
    return {n: near_misses(n, self.seen_dims) for n in rules if n not in self.seen_dims}

  def _check(self) -> None:
    for name, axes in (*self.layout.items(), *self.variable_layout.items()):
      if len(axes) > 1:
        raise ParseError(explain_error(
            f"dimension {name!r} is laid out over {len(axes)} axes at once.",
            layout=self.layout, mesh=self,
            way_out="One dimension over several axes is not supported yet: name one axis."))
      for axis in axes:
        if axis not in self.axes:
          close = near_misses(axis, self.axes)
          self.note(f"layout rule {name}:{axis}: the mesh {self!r} has no axis {axis!r}, which "
                    f"counts as size 1." + (f" Did you mean {close}?" if close else ""))
    devices = self.devices
    if not (devices is None or isinstance(devices, str)) and len(devices) != self.size:
      raise MeshError(explain_error(
          f"the mesh has {self.size} positions, but {len(devices)} devices were given.",
          mesh=self, devices=", ".join(devices),
          way_out="Give one device for each position (the last axis runs fastest), or devices=None "
                  "to map all positions to the hardware at hand."))

  def __repr__(self) -> str:
    return ";".join(f"{name}:{size}" for name, size in self.axes.items()) or "(one position)"


def _size(name: str, size: str, text: str) -> int:
  if not size.isdigit() or int(size) < 1:
    raise ParseError(f"the size of mesh axis {name!r} must be a positive integer, not {size!r}, "
                     f"in {text!r}.")
  return int(size)
