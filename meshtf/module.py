"""`Module`: a class whose variables and submodules have names.

    class Mlp(mtf.Module):
        def __init__(self, mesh):
            super().__init__()
            self.w = mtf.Variable(mesh, "d_model:4;d_ff:8", "normal")        # "mlp/w"
            self.out = mtf.layers.Dense(mesh, "d_ff:8", "d_model:4")         # "mlp/out/kernel"
            self.blocks = [Block(mesh) for _ in range(2)]                    # "mlp/blocks_0/..."

        def __call__(self, x):                                               # random ops: "mlp/..."
            return self.out(mtf.relu(mtf.einsum([x, self.w], "batch;d_ff")))

The name of a variable is its name in checkpoints, and determines its random initial value.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

from meshtf.display import html_table, placement_text, text_table
from meshtf.errors import LayoutError
from meshtf.graph.operators import not_pickled
from meshtf.names.arguments import as_text
from meshtf.names.calls import check_call
from meshtf.names.nested import flatten
from meshtf.names.source import users_frames
from meshtf.partition.cost import local_bytes
from meshtf.runtime.module_paths import (
    complete_path,
    constructor_of,
    current_path,
    is_complete,
    module_path,
    path_text,
    scope_of,
)
from meshtf.runtime.tensorflow_tracking import tracking_error
from meshtf.runtime.tf_internals.tracking import TensorFlowModule, is_module
from meshtf.runtime.variable import Variable

# The columns of the table of variables, and how they are aligned.
_COLUMNS = ("variable", "shape", "placement", "parameters", "bytes per device")
_ALIGN = "<<<>>"
_MAX_REPR_ROWS = 16
_M = TypeVar("_M", bound="Module")


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """Within this context, the paths of new variables and random ops contain `name`."""
    as_text("name", name)
    with scope_of((*current_path(), name)):
        yield


class Module(TensorFlowModule):
    """A tf.Module whose variables are mtf Variables, and whose name begins the paths of its
    variables, submodules and random ops.

    The path of a variable or submodule that the constructor creates after
    `super().__init__()` is the path of this module, followed by

    - the `name` argument of the variable or submodule, or
    - if there is none, the name of the attribute of this module; the elements of a list
      `layers` are called "layers_0", "layers_1" and so on, those of a dict "layers_key".

    Names of attributes are known when the constructor returns. Only then variables with
    such names get their initial values; before, they can be assigned to attributes and
    passed as arguments, but not read.

    Within `with self.scope():` names are known immediately: a submodule without a `name`
    gets the `default_name` of its class.

    Args:
      name: the name of the module; None: the name of the attribute of the enclosing module,
        or, if it is no attribute, `default_name`.

    Attributes:
      called_in_path: whether variables and random ops that a call of the module creates have
        the path of the module; False: the path of the caller, for a class that only calls
        other layers.
      default_name: a name for modules without any; None: the name of the class in lower
        case.
    """

    called_in_path: ClassVar[bool] = True
    default_name: ClassVar[str | None] = None

    def __init__(self, name: str | None = None) -> None:
        if name is not None:
            as_text("name", name)
        super().__init__(name=None)
        default = self.default_name or type(self).__name__.lower()
        self._path = module_path(self, name, default)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__init__ = _naming_attributes(cls.__dict__["__init__"])  # type: ignore[method-assign]
        if "__call__" in cls.__dict__ and cls.called_in_path:
            cls.__call__ = _within_path(cls.__dict__["__call__"])

    @property
    def path(self) -> tuple[str, ...]:
        """The names of the enclosing modules, the outermost first, and of this module."""
        return complete_path(self._path)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Within this context, new variables and random ops have the path of this module."""
        with scope_of(self._path):
            yield

    @contextlib.contextmanager
    def outer_scope(self) -> Iterator[None]:
        """Within this context, new variables and random ops have the path of the enclosing
        module, without the name of this module.
        """
        with scope_of(self._path[:-1]):
            yield

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables of this module and its submodules."""
        items = _items_in(self, seen={id(self)})
        return tuple(item for item in items if isinstance(item, Variable))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The variables that optimizers update."""
        return tuple(v for v in self.variables if v.trainable)

    def clone(self: _M, name: str | None = None) -> _M:
        """Returns an independent copy of the module, as `copy.deepcopy` does: with variables
        of the same values on the same mesh, whose storage is their own.

        Args:
          name: the name of the copy, which begins the paths of its variables, so that a
            checkpoint can have both; None: the name of this module.

        Raises:
          PlanError: the constructor of a module is not done, or a `mtf.function` is
            recorded.
        """
        duplicate = copy.deepcopy(self)
        if name is not None:
            as_text("name", name)
            prefix = (*self.path[:-1], name)
            for item in (duplicate, *_items_in(duplicate, seen={id(duplicate)})):
                path = complete_path(getattr(item, "_path", ()))
                if path[: len(prefix)] == self.path:
                    item._path = (*prefix, *path[len(prefix) :])
        return duplicate

    def __copy__(self: _M) -> _M:
        """Returns another module of the same variables and submodules."""
        duplicate = object.__new__(type(self))
        duplicate.__dict__.update(vars(self))
        return duplicate

    def __deepcopy__(self: _M, memo: dict[int, Any]) -> _M:
        """Returns an independent copy: see `clone`."""
        path = (
            self.path
        )  # raises PlanError in the constructor of a module around this one
        duplicate = object.__new__(type(self))
        memo[id(self)] = duplicate
        attributes = dict(vars(self))
        attributes["_path"] = path
        duplicate.__dict__["_path"] = path  # for errors, while attributes are copied
        duplicate.__dict__.update(copy.deepcopy(attributes, memo))
        return duplicate

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises CheckpointError: shards on devices are not pickled."""
        raise not_pickled(
            "a module", f"{type(self).__name__} {path_text(self._path)!r}"
        )

    def summary(self) -> str:
        """Returns a table of all variables: path, dimensions, placement, number of
        parameters, and bytes per device; the last row has the totals.

        In a pipeline, the total bytes are those of a device of the largest stage.
        """
        return text_table(_COLUMNS, self._rows(), _ALIGN)

    def _rows(self) -> list[tuple[str, ...]]:
        """Returns the rows of the summary; the last one has the totals."""
        rows: list[tuple[str, ...]] = []
        num_parameters = 0
        # The key None is for variables on all stages.
        bytes_by_stage: dict[int | None, int] = {None: 0}
        for variable in self.variables:
            shape = variable.spec.shape
            num_bytes = int(
                local_bytes(variable.spec, variable.placement, variable.mesh)
            )
            num_parameters += shape.size
            stage_bytes = bytes_by_stage.get(variable.stage, 0)
            bytes_by_stage[variable.stage] = stage_bytes + num_bytes
            rows.append(
                (
                    path_text(variable._path),  # `name` may not be known yet
                    repr(shape),
                    placement_text(variable.mesh.states(variable.placement)),
                    f"{shape.size:,}",
                    f"{num_bytes:,}",
                )
            )
        total_bytes = bytes_by_stage.pop(None) + max(bytes_by_stage.values(), default=0)
        rows.append(("total", "", "", f"{num_parameters:,}", f"{total_bytes:,}"))
        return rows

    def __repr__(self) -> str:
        *rows, total = self._rows()
        table = rows[:_MAX_REPR_ROWS]
        num_omitted = len(rows) - len(table)
        if num_omitted:
            remark = f"... and {num_omitted} more: see .summary()"
            table.append((remark, "", "", "", ""))
        table.append(total)
        title = f"<{type(self).__name__} {path_text(self._path)!r}>"
        if not rows:
            return title
        return f"{title}\n{text_table(_COLUMNS, table, _ALIGN)}"

    def _repr_html_(self) -> str:
        """Returns the table of variables as HTML, for notebooks."""
        title = f"{type(self).__name__} {path_text(self._path)}"
        return html_table(_COLUMNS, self._rows(), _ALIGN, title=title)

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        """Returns the objects that TensorFlow saves with this module. Raises an error if the
        module has variables, since TensorFlow would leave them out.
        """
        if self.variables:
            raise tracking_error(
                f"module {path_text(self._path)!r} with its variables", save_type
            )
        children: dict[str, Any] = super()._trackable_children(save_type, **kwargs)
        return children


def _items_in(module: Any, seen: set[int]) -> Iterator[Any]:
    """Yields the variables in the attributes of a module, sorted by the name of the attribute,
    and then each of its submodules, followed by what that one has.

    Args:
      module: the module, of meshtf or TensorFlow.
      seen: the ids of the objects that were visited already.
    """
    submodules = []
    attributes = vars(module)
    for name in sorted(attributes):
        # TensorFlow's lists of all attributes.
        if name.startswith("_self_"):
            continue
        for leaf in flatten(attributes[name]):
            if id(leaf) in seen:
                continue
            seen.add(id(leaf))
            if isinstance(leaf, Variable):
                yield leaf
            elif is_module(leaf):
                submodules.append(leaf)
    for submodule in submodules:
        yield submodule
        yield from _items_in(submodule, seen)


def _within_path(call: Any) -> Any:
    """Returns a `__call__` that runs in the scope of the module."""

    @functools.wraps(call)
    def __call__(self: Module, *args: Any, **kwargs: Any) -> Any:
        with self.scope():
            return call(self, *args, **kwargs)

    return __call__


def _naming_attributes(init: Any) -> Any:
    """Returns a constructor that names variables and submodules by attributes when it
    returns, and then initializes the variables.
    """

    @functools.wraps(init)
    def __init__(self: Module, *args: Any, **kwargs: Any) -> None:
        try:
            with constructor_of(self) as pending_names:
                init(self, *args, **kwargs)
            # Others have had complete paths, and so initial values, since they exist.
            if pending_names and is_complete(self._path):
                for variable in self.variables:
                    variable.initialize()
        except TypeError as error:
            check_call(init, (self, *args), kwargs, error)
            raise
        except LayoutError as error:
            raise error.with_traceback(users_frames(error)) from None

    return __init__
