"""Variables: tensors that stay, in slices on the devices that hold them.

There is one tf.Variable for each different slice on each device. Positions of one
device that hold the same slice share it, and it is updated once.

    w = Variable(mesh, "d_model:512;d_ff:2048", initializer, name="w")
    w.assign(w - 0.1 * dw)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.graph import (
    Graph,
    Operators,
    Source,
    Spec,
    Tensor,
    apply,
    apply_all,
    context,
    current,
    current_executor,
    executing,
)
from meshtf.graph.arguments import as_mesh
from meshtf.graph.layout_check import check_layout
from meshtf.mesh import EVERYWHERE, Layout, Mesh, Placement
from meshtf.names import Shape, ShapeLike, dtype_name
from meshtf.names.arguments import as_bool, as_callable, as_int, as_text, refuse
from meshtf.ops.variables.read_write import Read, Write, transpose_like
from meshtf.runtime.devices.resolve import devices_of, share_memory
from meshtf.runtime.eager import bring, export
from meshtf.runtime.initial_values import Initializer, as_initial_value, as_initializer
from meshtf.runtime.storage.import_tensor import import_tensor
from meshtf.runtime.storage.sharding import pieces_of, region, slice_keys
from meshtf.runtime.storage.slot import Cell, make_cells
from meshtf.runtime.storage.write_times import Writes, written
from meshtf.runtime.tensorflow_tracking import Untracked


class Variable(Operators, Untracked):
    """A named tensor that stays between calls.

    Args:
      mesh: where it lies.
      shape: such as "d_model:512;d_ff:2048".
      initializer: called with (mesh, shape, name); returns the initial value, floats of
        any type for a variable of floats. Or the name of one that takes no arguments of
        its own: "zeros", "ones", "normal", "truncated", "uniform".
      name: its name in checkpoints, after the names of the modules around.
      dtype: the data type.
      trainable: whether optimizers update it.
      layout: rules for its slices; default: those for variables, where it is made.

    Raises:
      LayoutError: the layout cannot hold it.
      PlanError: it is made inside a mtf.function.
    """

    def __init__(
        self,
        mesh: Mesh,
        shape: ShapeLike,
        initializer: Initializer | str,
        name: str,
        dtype: object = "float32",
        trainable: bool = True,
        layout: Layout | None = None,
    ) -> None:
        as_mesh("mesh", mesh)
        as_text("name", name)
        as_bool("trainable", trainable)
        if layout is not None and not isinstance(layout, Layout):
            refuse("layout", layout, "a layout", 'Write mtf.Layout("d_model:data").')
        if isinstance(current_executor(), Graph):
            raise PlanError(
                explain_error(
                    f"variable {name!r} is made inside a mtf.function.",
                    **{"from": Source.here()},
                    way_out="Make variables before the function is called, most often "
                    "in a module's __init__.",
                )
            )
        around = current()
        self.changes, self.stage = around.region, around.stage
        self.layout = (
            mesh.layout_in(around.region, "variable") if layout is None else layout
        )
        self.mesh = mesh
        self.stack = around.stack  # dimensions of repeated layers: see `layers.Repeat`
        self.spec = Spec(Shape([*self.stack, *Shape(shape)]), dtype_name(dtype))
        self.path = "/".join((*around.path, name))
        self.trainable = trainable
        self.kind: Literal["parameter", "state"] = "parameter" if trainable else "state"
        check_layout(
            [self.spec],
            mesh,
            self.layout,
            f"{self.path!r}, {Source.here()}",
            what="variable",
        )
        self.placement: Placement = mesh.place(
            self.spec.shape, self.layout, self.stage
        )[0]
        self._cells = self._make_cells(as_initializer(initializer))
        self.writers = [
            Writes()
        ]  # who writes it, and when: the first is all but functions

    @property
    def name(self) -> str:
        """The name in checkpoints, such as "decoder/layer_0/wq"."""
        return self.path

    @property
    def shape(self) -> Shape:
        """The named shape; in a layer of a `Repeat` that of the layer's entry, as of
        `tensor()`.
        """
        rows = current().rows
        entry = None if rows is None else rows.get(id(self))
        return self.spec.shape if entry is None else entry.shape

    @property
    def dtype(self) -> str:
        """The name of the data type."""
        return self.spec.dtype

    @property
    def slot_layout(self) -> Layout:
        """The rules for what an optimizer keeps beside it."""
        return self.mesh.layout_in(self.changes, "slot")

    def tensor(self) -> Tensor:
        """Returns the present value as a tensor; ops do this by themselves."""
        rows = current().rows
        if rows is not None and id(self) in rows:
            return rows[id(self)]
        return apply(Read(self), mesh=self.mesh)

    def assign(self, value: Any) -> None:
        """Gives the variable a new value: a Tensor of the same names, in any order, or
        an array.
        """
        if not isinstance(value, Tensor):
            value = import_tensor(self.mesh, value, self.shape, dtype=self.dtype)
        apply_all(Write(self), transpose_like(value, self.shape), mesh=self.mesh)

    def numpy(self) -> Any:
        """Returns the whole value as a numpy array."""
        whole = np.empty(self.shape.sizes, tf.as_dtype(self.dtype).as_numpy_dtype)
        for part, slice_ in self.regions():
            whole[part] = slice_.numpy()
        return whole

    def regions(self) -> list[tuple[tuple[slice, ...], tf.Variable]]:
        """Returns the different slices, each with the region of the whole that
        it is.
        """
        return [(part, held[-1]) for part, held in self.holders()]

    def holders(self) -> list[tuple[tuple[slice, ...], list[tf.Variable]]]:
        """Returns the different regions of the whole, each with all slices that hold
        it.
        """
        found: dict[tuple[int, ...], dict[int, tf.Variable]] = {}
        for key, slice_ in zip(slice_keys(self.placement, self.mesh), self.slices()):
            if slice_ is not None:
                found.setdefault(key, {})[id(slice_)] = slice_
        return [(self._region(key), list(held.values())) for key, held in found.items()]

    def read(self) -> list[Any]:
        """Returns each position's slice as it is now: the runtime's door."""
        done: dict[int, Any] = {}
        for device, variable in zip(devices_of(self.mesh), self.slices()):
            if variable is not None and id(variable) not in done:
                with tf.device(device):
                    done[id(variable)] = tf.raw_ops.ReadVariableOp(
                        resource=variable.handle, dtype=variable.dtype
                    )
        return [done.get(id(v)) for v in self.slices()]

    def slices(self) -> list[tf.Variable | None]:
        """Returns each position's tf.Variable; None: it lies at another stage."""
        return [None if cell is None else cell.variable for cell in self.cells()]

    def cells(self) -> list[Cell | None]:
        """Returns what holds each position's slice: the runtime's door."""
        devices_of(self.mesh)  # refuses a mesh without hardware, where there are none
        return self._cells

    def load(self, read_region: Callable[[tuple[slice, ...]], Any]) -> None:
        """Assigns every slice what `read_region` returns for its region of
        the whole.
        """
        as_callable("read_region", read_region)
        written(self)
        for part, held in self.holders():
            for slice_ in held:
                slice_.assign(read_region(part))

    def bring_to_stage(self, stage: int | None) -> None:
        """Lets it lie at one stage of a pipeline, with its value; optimizers come after
        that.
        """
        if stage is not None:
            as_int("stage", stage)
        if stage == self.stage or self.mesh.axes.get(self.mesh.stages, 1) == 1:
            return
        whole = None if self.mesh.abstract else tf.constant(self.numpy())
        self.stage = stage
        self.placement = self.mesh.place(self.spec.shape, self.layout, stage)[0]
        if whole is not None:
            self._cells = self._keep(
                pieces_of(whole, self.spec, self.placement, self.mesh)
            )

    def _region(self, key: tuple[int, ...]) -> tuple[slice, ...]:
        return region(self.shape, self.placement, key, self.mesh)

    def _make_cells(self, initializer: Initializer) -> list[Cell | None]:
        slices = self._first_slices(initializer)
        return [] if self.mesh.abstract else self._keep(slices)

    def _keep(self, slices: list[Any]) -> list[Cell | None]:
        """Returns each position's cell with these first values; None: it holds none."""
        held = list(zip(devices_of(self.mesh), slice_keys(self.placement, self.mesh)))
        first: dict[Any, Any] = {}
        for at, x in zip(held, slices):
            if x is not None:
                first.setdefault(at, x)
        made = make_cells(
            list(first.values()), [device for device, _ in first], self.trainable
        )
        done = dict(zip(first, made))
        return [None if x is None else done[at] for at, x in zip(held, slices)]

    def _first_slices(self, initializer: Initializer) -> list[Any]:
        """Returns each position's slice of the first value; values do not depend on the
        mesh.

        Where all devices see one memory, the whole is drawn at once and cut: one draw
        instead of many.
        """
        together = not self.mesh.abstract and share_memory(devices_of(self.mesh))
        mesh = Mesh("", seed=self.mesh.seed) if together else self.mesh
        rules = EVERYWHERE if together else Layout.changes("*:").then(self.layout)
        with context(region=rules, path=(), iterations=()), executing():
            value = initializer(mesh, self.shape, self.path)
            if value.dtype != self.dtype:
                value = as_initial_value(value, self.dtype, self.path)
        if value.shape != self.shape or value.dtype != self.dtype:
            raise ShapeError(
                f"the initializer of variable {self.path!r} gave {value.dtype} "
                f"{value.shape!r}, not {self.dtype} {self.shape!r}."
            )
        if self.mesh.abstract:
            return []
        if value.mesh is self.mesh:
            return bring(value, self.placement)
        return pieces_of(export(value), self.spec, self.placement, self.mesh)

    def __repr__(self) -> str:
        return (
            f"<mtf.Variable {self.path!r} {self.dtype} {self.shape!r} {self.placement}>"
        )
