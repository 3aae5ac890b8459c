"""Paths of modules and variables, such as ("mlp", "w"), whose names may come from
attributes.

    class Mlp(mtf.Module):
        def __init__(self, mesh):
            super().__init__()
            self.w = mtf.Variable(mesh, "d_model:4;d_ff:8", "normal")    # "mlp/w"

A variable exists before Python assigns it to an attribute. So a module or variable that a
constructor creates without a name has a pending name at first. When the constructor
returns, `constructor_of` sets each pending name to the name of the attribute. Then
`meshtf.module` initializes the variables whose paths are complete. Therefore an initial
value depends only on the final path, not on the order or the number of variables.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Graph, context, current, current_executor
from meshtf.names import Source
from meshtf.names.arguments import refuse


class PendingName:
    """A component of a path: the name that an attribute will give to a module or a variable.

    Attributes:
      name: the name of the attribute; None: not known yet.
      source: the line that creates the module or variable.
    """

    __slots__ = ("name", "source")

    def __init__(self) -> None:
        self.name: str | None = None
        self.source = Source.of_caller()


Path: TypeAlias = tuple[str | PendingName, ...]


class Construction:
    """A run of the constructor of a module.

    Attributes:
      module: the module.
      path: the path of the module; None before `Module.__init__` was called.
      outer: the construction that created the module; None: no other constructor runs.
      pending: the pending names of modules and variables that the constructor has created
        so far.
    """

    def __init__(self, module: object, outer: Construction | None) -> None:
        self.module = module
        self.path: Path | None = None
        self.outer = outer
        self.pending: list[PendingName] = []


class _ThreadState(threading.local):
    """The innermost construction that runs in a thread."""

    construction: Construction | None = None


_state = _ThreadState()


def current_construction() -> Construction | None:
    """Returns the innermost construction whose path is known: a module or variable that is
    created before `super().__init__()` belongs to the enclosing construction.
    """
    construction = _state.construction
    while construction is not None and construction.path is None:
        construction = construction.outer
    return construction


def current_path() -> Path:
    """Returns the path that new modules and variables extend: the path of the module whose
    constructor runs, or of the enclosing `scope_of` block.
    """
    construction = current_construction()
    if construction is None or construction.path is None:
        return current().path
    return construction.path


def new_path(name: str | None, default: str | None = None) -> Path | None:
    """Returns the path of a new module or variable.

    Args:
      name: the name; None: the name of the attribute, in the constructor of a module.
      default: the name if no constructor runs; None: there is no default.

    Returns:
      The path; None if there is no name, no constructor and no default.
    """
    outer = current_path()
    construction = current_construction()
    if name is not None:
        return (*outer, name)
    if construction is not None:
        pending_name = PendingName()
        construction.pending.append(pending_name)
        return (*outer, pending_name)
    if default is None:
        return None
    return (*outer, default)


def check_outside_functions(name: str | None) -> None:
    """Checks that a variable is not created while a function is recorded.

    Raises:
      PlanError: it is.
    """
    if isinstance(current_executor(), Graph):
        variable = "a variable" if name is None else f"variable {name!r}"
        raise PlanError(
            explain_error(
                f"{variable} is made inside a mtf.function.",
                source=Source.of_caller(),
                way_out="Make variables before the function is called, most often in a "
                "module's __init__.",
            )
        )


def variable_path(name: str | None) -> Path:
    """Returns the path of a new variable.

    Raises:
      ArgumentError: it has no name and is created outside of the constructor of a module.
      PlanError: it is created while a function is recorded.
    """
    check_outside_functions(name)
    path = new_path(name)
    if path is None:
        way_out = "In the constructor of a module, its attribute gives it."
        refuse("name", name, "a string", way_out)
    return path


def module_path(module: object, name: str | None, default: str) -> Path:
    """Returns the path of a new module. The arguments are those of `new_path`.

    From now on, modules and variables that the constructor creates belong to the module.
    """
    path = new_path(name, default)
    assert path is not None  # since there is a default
    construction = _state.construction
    if construction is not None and construction.module is module:
        construction.path = path
    return path


def is_complete(path: Path) -> bool:
    """Returns whether all names of a path are known."""
    return all(
        isinstance(component, str) or component.name is not None for component in path
    )


def complete_path(path: Path) -> tuple[str, ...]:
    """Returns a path as strings. Raises PlanError for a pending name."""
    names = []
    for component in path:
        if isinstance(component, PendingName):
            if component.name is None:
                raise PlanError(
                    explain_error(
                        "a module or variable has no name before its module's "
                        "constructor returns.",
                        **{"made by": component.source},
                        way_out='Pass name="...", or use it after the constructor.',
                    )
                )
            names.append(component.name)
        else:
            names.append(component)
    return tuple(names)


def path_text(path: Path) -> str:
    """Returns a path as text for messages, such as "mlp/w", with "?" for a pending name."""
    names = []
    for component in path:
        name = component.name if isinstance(component, PendingName) else component
        names.append(name or "?")
    return "/".join(names)


@contextlib.contextmanager
def scope_of(path: Path) -> Iterator[None]:
    """Makes modules and variables that are created in a `with` block extend a path. In the
    block, modules without a name get their default name, and variables must have a name.
    """
    construction = _state.construction
    # In the block no constructor runs, as far as `new_path` is concerned.
    _state.construction = None
    components: list[str | PendingName] = []
    for component in path:
        if isinstance(component, PendingName) and component.name:
            # Random ops derive seeds from the path, for which they need strings.
            components.append(component.name)
        else:
            # A name that is still pending stays: once it is known, the variables that are
            # created in the block have it in their paths as well.
            components.append(component)
    try:
        with context(path=tuple(components)):
            yield
    finally:
        _state.construction = construction


@contextlib.contextmanager
def constructor_of(module: object) -> Iterator[Sequence[PendingName]]:
    """The context in which a constructor of a module runs: the constructor of its class
    or, within that one, the constructor of a base class.

    Yields:
      The pending names that get the names of attributes when the constructor returns: those
      of modules and variables that it creates; none for the constructor of a base class.
    """
    outer = _state.construction
    if outer is not None and outer.module is module:
        yield ()
        return
    construction = Construction(module, outer)
    _state.construction = construction
    try:
        yield construction.pending
        if construction.pending:
            _name_by_attributes(construction)
    finally:
        _state.construction = outer


def _name_by_attributes(construction: Construction) -> None:
    """Sets each pending name of a construction to the name of the attribute that has the
    module or variable.

    Raises:
      PlanError: no attribute has it.
    """
    pending_ids = {id(pending_name) for pending_name in construction.pending}
    for attribute, value in vars(construction.module).items():
        # TensorFlow's lists of all attributes have names that start with "_self_".
        if attribute.startswith("_self_"):
            continue
        for name, item in _named_items(attribute, value):
            path = getattr(item, "_path", None)
            if not path:
                continue
            *_, last_component = path
            if id(last_component) in pending_ids and last_component.name is None:
                last_component.name = name
    for pending_name in construction.pending:
        if pending_name.name is None:
            raise PlanError(
                explain_error(
                    "a module or variable is in no attribute of its module, so it has no "
                    "name.",
                    module=type(construction.module).__name__,
                    **{"made by": pending_name.source},
                    way_out='Assign it to an attribute, or pass name="...".',
                )
            )


def _named_items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of an attribute. For a list or dict, it yields all entries, with
    names such as "layers_0" and "layers_1".
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named_items(f"{name}_{key}", item)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for i, item in enumerate(value):
            yield from _named_items(f"{name}_{i}", item)
    else:
        yield name, value
