"""A layout: which dimension is cut along which axis.

>>> from meshtf.mesh import Layout
>>> layout = Layout("batch:data;d_ff:model")
>>> layout.axes("d_ff"), layout.axes("d_model")
(('model',), ())
>>> layout.override("d_ff:; heads:model")
batch:data; heads:model

A rule is stored as a tuple of axes ("batch:data+model" is one dimension over two axes, the mesh's
order being major to minor), which the planner and the moves carry; a `Mesh` still refuses more than
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias, Union

from meshtf.errors import ParseError, explain_error
from meshtf.names import parse_pairs

LayoutLike: TypeAlias = Union["Layout", str, Mapping[str, str], Iterable[tuple[str, str]]]


class Layout:
  """An immutable map from names of dimensions to tuples of mesh axes."""

  __slots__ = ("_rules", "_hash")

  def __init__(self, rules: LayoutLike = ()) -> None:
    self._rules: dict[str, tuple[str, ...]] = {}
    for name, axes in _pairs(rules):
      if self._rules.get(name, axes) != axes:
        raise ParseError(explain_error(
            f"the layout maps dimension {name!r} twice.", layout=rules,
            way_out="A dimension goes to one axis: delete one of the rules."))
      self._rules[name] = axes
    self._hash = hash(tuple(sorted(self._rules.items())))

  def axes(self, name: str) -> tuple[str, ...]:
    """Returns the axes that cut dimension `name`: most often none or one."""
    return self._rules.get(name, ())

  def items(self) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Returns the rules as (dimension name, axes)."""
    return iter(self._rules.items())

  def override(self, rules: LayoutLike) -> Layout:
    """Returns this layout with some rules replaced; "heads:" takes a rule away."""
    if isinstance(rules, str):
      rules = parse_pairs(rules, what="layout", values=False)
    merged = self._rules | dict(_pairs(rules))
    return Layout([(name, "+".join(axes)) for name, axes in merged.items() if axes])

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Layout) and self._rules == other._rules

  def __hash__(self) -> int:
    return self._hash

  def __repr__(self) -> str:
    return "; ".join(f"{name}:{'+'.join(axes)}" for name, axes in self._rules.items())


def _pairs(rules: LayoutLike) -> list[tuple[str, tuple[str, ...]]]:
  if isinstance(rules, Layout):
    return list(rules.items())
  if isinstance(rules, str):
    rules = parse_pairs(rules, what="layout")
  elif isinstance(rules, Mapping):
    rules = rules.items()
  return [(name, tuple(axis for axis in value.split("+") if axis)) for name, value in rules]
