"""A layout: which dimension is sharded along which axis.

>>> from meshtf.mesh import Layout
>>> layout = Layout("batch:data;d_ff:model")
>>> layout.axes("d_ff"), layout.axes("d_model")
(('model',), ())
>>> layout.override("d_ff:; heads:model")
batch:data; heads:model

Changes of rules are a `Layout` as well, in which "heads:" removes a rule, and "*:" all
rules:

>>> layout.override(Layout.changes("*:; length:data"))
length:data

A rule maps a dimension to a tuple of axes: "batch:data+fsdp" shards one dimension over two
axes, of which the first is the major one.

>>> Layout("batch:data+fsdp").axes("batch")
('data', 'fsdp')
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias, Union

from meshtf.errors import ParseError, explain_error
from meshtf.names import Source, parse_pairs
from meshtf.names.arguments import as_dim, described

LayoutLike: TypeAlias = Union[
    "Layout", str, Mapping[str, str], Iterable[tuple[str, str]]
]


class Layout:
    """An immutable map from names of dimensions to tuples of mesh axes."""

    __slots__ = ("_rules", "_hash")

    def __init__(self, rules: LayoutLike = ()) -> None:
        self._rules: dict[str, tuple[str, ...]] = {}
        for name, axes in _pairs(rules):
            if self._rules.get(name, axes) != axes:
                raise ParseError(
                    explain_error(
                        f"the layout maps dimension {name!r} twice.",
                        layout=rules,
                        way_out="A dimension has one rule: delete one of the two, or "
                        f'write "{name}:{"+".join((*self._rules[name], *axes))}".',
                    )
                )
            if len(set(axes)) < len(axes):
                distinct_axes = "+".join(dict.fromkeys(axes))
                raise ParseError(
                    explain_error(
                        f"the rule of dimension {name!r} names an axis twice.",
                        rule=f"{name}:{'+'.join(axes)}",
                        way_out=f'Write "{name}:{distinct_axes}".',
                    )
                )
            self._rules[name] = axes
        self._hash = hash(tuple(sorted(self._rules.items())))

    def axes(self, name: str) -> tuple[str, ...]:
        """Returns the axes that shard dimension `name`: usually none or one."""
        return self._rules.get(as_dim("name", name), ())

    def items(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Returns the rules as (dimension name, axes)."""
        return iter(self._rules.items())

    @staticmethod
    def changes(rules: LayoutLike) -> Layout:
        """Returns changes for `override`: "heads:" removes one rule, "*:" all rules."""
        if isinstance(rules, str):
            rules = parse_pairs(rules, kind="change of layout", values=False)
        return Layout(rules)

    def override(self, rules: LayoutLike) -> Layout:
        """Returns this layout after changes, such as "d_ff:; heads:model".

        Args:
          rules: the changes; a rule without axes, such as "d_ff:", removes a rule.
        """
        changed_rules = self._changed(rules)
        return self._from({dim: axes for dim, axes in changed_rules.items() if axes})

    def then(self, rules: LayoutLike) -> Layout:
        """Returns one change that has the effect of this change followed by another."""
        return self._from(self._changed(rules))

    def _changed(self, rules: LayoutLike) -> dict[str, tuple[str, ...]]:
        """Returns these rules after changes; removed rules have no axes."""
        changes = dict(Layout.changes(rules).items())
        if "*" in changes:
            return changes
        return self._rules | changes

    @staticmethod
    def _from(rules: Mapping[str, tuple[str, ...]]) -> Layout:
        """Returns a layout with these rules: dimension name -> axes."""
        return Layout([(name, "+".join(axes)) for name, axes in rules.items()])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._rules == other._rules

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return "; ".join(
            f"{name}:{'+'.join(axes)}" for name, axes in self._rules.items()
        )


def _pairs(rules: LayoutLike) -> list[tuple[str, tuple[str, ...]]]:
    """Returns rules as (dimension name, axes). Raises ParseError."""
    if isinstance(rules, Layout):
        return list(rules.items())
    if isinstance(rules, str):
        rules = parse_pairs(rules, kind="layout")
    try:
        pairs = list(rules.items() if isinstance(rules, Mapping) else rules)
        return [
            # `name + ""` raises TypeError if the name is no string.
            (name + "", tuple(axis for axis in value.split("+") if axis))
            for name, value in pairs
        ]
    except (TypeError, ValueError, AttributeError):
        raise ParseError(
            explain_error(
                f"a layout is not made of {described(rules)}.",
                source=Source.of_caller(),
                way_out='Write it as "batch:data; d_ff:model", or as {"batch": '
                '"data"}.',
            )
        ) from None
