"""Modules: variables and modules by name.

Example:

    class Mlp(mtf.Module):
        def __init__(self, mesh):
            super().__init__()
            self.w = mtf.Variable(mesh, "d_model:4;d_ff:8", "normal")        # "mlp/w"
            self.out = mtf.layers.Dense(mesh, "d_ff:8", "d_model:4")         # "mlp/out/kernel"
            self.blocks = [Block(mesh) for _ in range(2)]                    # "mlp/blocks_0/..."

        def __call__(self, x):                                               # random ops: "mlp/..."
            return self.out(mtf.relu(mtf.einsum([x, self.w], "batch;d_ff")))

Names of variables are their names in checkpoints, and their initial values are drawn by
them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import tensorflow as tf

from meshtf.display import html_table, placement_text, text_table
from meshtf.names.arguments import as_text
from meshtf.names.calls import check_call
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
from meshtf.runtime.variable import Variable

_COLUMNS = ("variable", "shape", "placement", "parameters", "bytes per device")
_ROWS_OF_REPR = 16


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """Adds a name to the path of the variables and random ops made inside."""
    as_text("name", name)
    with scope_of((*current_path(), name)):
        yield


class Module(tf.Module):
    """A tf.Module whose variables are mtf Variables; its name is in the path of what it
    makes.

    What the constructor makes after `super().__init__()` belongs to the module: the path
    of a variable or module is that of this module, and then

    - the `name` that is passed, or
    - without one, the name of the attribute that it is assigned to; in a list `layers`
      they are "layers_0", "layers_1"..., in a dict "layers_key".

    Names of attributes are known when the constructor returns, and only then variables
    that wait for one get their initial values. Before that they can be assigned to
    attributes and passed on, but not read.

    `with self.scope():` gives names at once instead: without one, modules take the default
    of their class. A subclass that only calls other layers may say `called_in_path =
    False`: what it makes when it is called then has the path of its caller.

    Args:
      name: of the module; default: that of the attribute of the enclosing module, or
        where there is none, `default_name`, which by default is the name of the class in
        lower case.
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
        """The names of the enclosing modules, outer first, and of this one."""
        return complete_path(self._path)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Gives what is made inside this module's path."""
        with scope_of(self._path):
            yield

    @contextlib.contextmanager
    def outer_scope(self) -> Iterator[None]:
        """Gives what is made inside the path of the enclosing module: names of variables
        then lack the name of this module.
        """
        with scope_of(self._path[:-1]):
            yield

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables of this module and those inside it."""
        return tuple(
            self._flatten(
                predicate=lambda x: isinstance(x, Variable), expand_composites=False
            )
        )

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The variables that optimizers update."""
        return tuple(v for v in self.variables if v.trainable)

    def summary(self) -> str:
        """Returns a table of all variables: path, dimensions, placement, parameters, and
        bytes per device; and the totals. Where variables lie on stages of a pipeline, the
        total bytes are those of a device of the largest stage.
        """
        return text_table(_COLUMNS, self._rows(), numeric_columns=2)

    def _rows(self) -> list[tuple[str, ...]]:
        """Returns the rows of the summary; the last one has the totals."""
        rows: list[tuple[str, ...]] = []
        parameters = 0
        bytes_by_stage: dict[int | None, int] = {None: 0}
        for v in self.variables:
            local = int(local_bytes(v.spec, v.placement, v.mesh))
            parameters += v.spec.shape.size
            bytes_by_stage[v.stage] = bytes_by_stage.get(v.stage, 0) + local
            rows.append(
                (
                    path_text(v._path),  # in its constructor a name may be pending
                    repr(v.spec.shape),
                    placement_text(v.mesh.states(v.placement)),
                    f"{v.spec.shape.size:,}",
                    f"{local:,}",
                )
            )
        total = bytes_by_stage.pop(None) + max(bytes_by_stage.values(), default=0)
        rows.append(("total", "", "", f"{parameters:,}", f"{total:,}"))
        return rows

    def __repr__(self) -> str:
        *rows, total = self._rows()
        shown = rows[:_ROWS_OF_REPR]
        if len(rows) > len(shown):
            left_out = len(rows) - len(shown)
            shown.append((f"... and {left_out} more: see .summary()", "", "", "", ""))
        title = f"<{type(self).__name__} {path_text(self._path)!r}>"
        if not rows:
            return title
        return f"{title}\n{text_table(_COLUMNS, [*shown, total], numeric_columns=2)}"

    def _repr_html_(self) -> str:
        title = f"{type(self).__name__} {path_text(self._path)}"
        return html_table(_COLUMNS, self._rows(), numeric_columns=2, title=title)

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        if self.variables:  # TensorFlow asks, and would save none of them
            raise tracking_error(
                f"module {path_text(self._path)!r} with its variables", save_type
            )
        children: dict[str, Any] = super()._trackable_children(save_type, **kwargs)
        return children


def _within_path(call: Any) -> Any:
    @functools.wraps(call)
    def __call__(self: Module, *args: Any, **kwargs: Any) -> Any:
        with self.scope():
            return call(self, *args, **kwargs)

    return __call__


def _naming_attributes(init: Any) -> Any:
    """Returns a constructor after which pending names are those of attributes."""

    @functools.wraps(init)
    def __init__(self: Module, *args: Any, **kwargs: Any) -> None:
        with constructor_of(self) as is_outermost:
            try:
                init(self, *args, **kwargs)
            except TypeError as error:
                check_call(init, self, args, kwargs, error)
                raise
        if is_outermost and is_complete(self._path):
            for variable in self.variables:
                variable.initialize()

    return __init__
