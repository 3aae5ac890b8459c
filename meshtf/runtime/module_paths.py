"""Paths of modules and variables, such as ("mlp", "w"), and the names in them that come
from attributes.

    class Mlp(mtf.Module):
        def __init__(self, mesh):
            super().__init__()
            self.w = mtf.Variable(mesh, "d_model:4;d_ff:8", "normal")    # "mlp/w"

A variable exists before Python assigns it to an attribute. So the name of what a
constructor makes without a name is pending. When the constructor returns, each pending
name becomes that of the attribute, and variables whose paths are then complete get their
initial values. An initial value therefore depends on the final path alone: not on the
order in which variables are made, nor on how many there are.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from meshtf.errors import PlanError, explain_error
from meshtf.graph import context, current
from meshtf.names import Source


class PendingName:
    """The name that an attribute will give to a module or a variable.

    Attributes:
      name: None before the attribute is known.
      source: the line that makes the module or variable.
    """

    __slots__ = ("name", "source")

    def __init__(self) -> None:
        self.name: str | None = None
        self.source = Source.of_caller()


Path: TypeAlias = tuple[str | PendingName, ...]


class Construction:
    """A module whose constructor runs.

    Attributes:
      module: the module.
      path: its path; None before `Module.__init__` was called.
      outer: the construction in which it was made; None: there is none.
      pending: the names of what its constructor has made so far without a name.
    """

    def __init__(self, module: object, outer: Construction | None) -> None:
        self.module = module
        self.path: Path | None = None
        self.outer = outer
        self.pending: list[PendingName] = []


class _Local(threading.local):
    construction: Construction | None = None


_local = _Local()


def current_construction() -> Construction | None:
    """Returns the innermost construction whose path is known. What is made before
    `super().__init__()` belongs to the enclosing one.
    """
    construction = _local.construction
    while construction is not None and construction.path is None:
        construction = construction.outer
    return construction


def current_path() -> Path:
    """Returns the path of what is made now: that of the module whose constructor runs, or
    of the enclosing scope.
    """
    construction = current_construction()
    if construction is None or construction.path is None:
        return current().path
    return construction.path


def new_path(name: str | None, default: str | None = None) -> Path | None:
    """Returns the path of a new module or variable.

    Args:
      name: its name; None: that of its attribute, in the constructor of a module.
      default: its name where no constructor runs, or a scope was entered in it.

    Returns:
      The path; None where there is neither a name nor an attribute.
    """
    outer = current_path()
    construction = current_construction()
    if name is not None:
        return (*outer, name)
    if construction is not None:
        pending = PendingName()
        construction.pending.append(pending)
        return (*outer, pending)
    return None if default is None else (*outer, default)


def module_path(module: object, name: str | None, default: str) -> Path:
    """Returns the path of a new module. From now on its constructor makes what belongs to
    it.
    """
    path = new_path(name, default)
    assert path is not None
    construction = _local.construction
    if construction is not None and construction.module is module:
        construction.path = path
    return path


def is_complete(path: Path) -> bool:
    """Returns whether all names of a path are known."""
    return all(isinstance(name, str) or name.name is not None for name in path)


def complete_path(path: Path) -> tuple[str, ...]:
    """Returns a path as strings. Raises PlanError for a pending name."""
    names = []
    for name in path:
        if isinstance(name, PendingName):
            if name.name is None:
                raise PlanError(
                    explain_error(
                        "a module or variable has no name before its module's "
                        "constructor returns.",
                        **{"made by": name.source},
                        way_out='Pass name="...", or use it after the constructor.',
                    )
                )
            names.append(name.name)
        else:
            names.append(name)
    return tuple(names)


def path_text(path: Path) -> str:
    """Returns a path for people to read, with "?" for a pending name."""
    names = (name if isinstance(name, str) else name.name for name in path)
    return "/".join(name or "?" for name in names)


@contextlib.contextmanager
def scope_of(path: Path) -> Iterator[None]:
    """Gives what is made inside a path. There modules without a name take their default,
    and variables must have one.
    """
    construction = _local.construction
    _local.construction = None
    names = (
        name.name or name if isinstance(name, PendingName) else name for name in path
    )
    try:
        with context(path=tuple(names)):
            yield
    finally:
        _local.construction = construction


@contextlib.contextmanager
def constructor_of(module: object) -> Iterator[bool]:
    """Runs a constructor of a module: of its class, or within that the one of a base.

    Yields:
      Whether it is that of the class. Then names are given when it returns.
    """
    outer = _local.construction
    if outer is not None and outer.module is module:
        yield False
        return
    construction = Construction(module, outer)
    _local.construction = construction
    try:
        yield True
        if construction.pending:
            _name_by_attributes(construction)
    finally:
        _local.construction = outer


def _name_by_attributes(construction: Construction) -> None:
    """Gives each pending name of a construction the name of the attribute that holds the
    module or variable.

    Raises:
      PlanError: no attribute holds it.
    """
    pending = {id(name): name for name in construction.pending}
    for attribute, value in vars(construction.module).items():
        if attribute.startswith("_self_"):  # TensorFlow's list of all attributes
            continue
        for name, item in _named_items(attribute, value):
            path = getattr(item, "_path", None)
            if path and id(path[-1]) in pending and path[-1].name is None:
                path[-1].name = name
    for unnamed in construction.pending:
        if unnamed.name is None:
            raise PlanError(
                explain_error(
                    "a module or variable is in no attribute of its module, so it has no "
                    "name.",
                    module=type(construction.module).__name__,
                    **{"made by": unnamed.source},
                    way_out='Assign it to an attribute, or pass name="...".',
                )
            )


def _named_items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the value of an attribute, or of lists and dicts all values, by name: of
    `layers` they are "layers_0", "layers_1".
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named_items(f"{name}_{key}", item)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for i, item in enumerate(value):
            yield from _named_items(f"{name}_{i}", item)
    else:
        yield name, value
