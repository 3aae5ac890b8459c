"""Variables: tensors that stay, in slices on the devices that hold them.

There is one slot for each distinct shard on each device. Positions of one device that
hold the same shard share its slot, and it is updated once.

    w = Variable(mesh, "d_model:512;d_ff:2048", initializer, name="w")
    w.assign(w - 0.1 * dw)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from meshtf.display import html_placement
from meshtf.errors import PlanError, explain_error
from meshtf.graph import (
    Graph,
    Operators,
    Source,
    Spec,
    Tensor,
    apply,
    apply_all,
    current,
    current_executor,
)
from meshtf.graph.arguments import as_mesh
from meshtf.graph.layout_check import check_layout
from meshtf.graph.used_layouts import record_layout_use
from meshtf.mesh import Layout, LayoutUse, Mesh, Placement
from meshtf.names import Shape, ShapeLike, dtype_name
from meshtf.names.arguments import as_bool, as_callable, as_int, as_text, refuse
from meshtf.ops.variables.read_write import Read, Write, transpose_like
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.initial_values import (
    Initializer,
    as_initializer,
    initial_shards,
)
from meshtf.runtime.module_paths import (
    Path,
    complete_path,
    is_complete,
    new_path,
    path_text,
)
from meshtf.runtime.storage.asarray import asarray
from meshtf.runtime.storage.sharding import shards_on_source
from meshtf.runtime.storage.slot import Slot
from meshtf.runtime.storage.variable_slots import Region, regions_of, slots_with
from meshtf.runtime.storage.write_times import Writes, written
from meshtf.runtime.tensorflow_tracking import Untracked


class Variable(Operators[Tensor], Untracked):
    """A named tensor that stays between calls.

    Args:
      mesh: where it lies.
      shape: such as "d_model:512;d_ff:2048".
      initializer: called with (mesh, shape, name); returns the initial value, floats of
        any type for a variable of floats. Or the name of one that takes no arguments of
        its own: "zeros", "ones", "normal", "truncated", "uniform".
      name: its name in checkpoints, after the names of the enclosing modules; default, in
        the constructor of a module: the attribute that it is assigned to.
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
        name: str | None = None,
        dtype: object = "float32",
        trainable: bool = True,
        layout: Layout | None = None,
    ) -> None:
        as_mesh("mesh", mesh)
        if name is not None:
            as_text("name", name)
        as_bool("trainable", trainable)
        if layout is not None and not isinstance(layout, Layout):
            refuse("layout", layout, "a layout", 'Write mtf.Layout("d_model:data").')
        _check_outside_functions(name)
        context = current()
        self.changes = context.region
        self.stage = context.stage
        if layout is None:
            layout = mesh.layout_in(context.region, "variable")
        self.layout = layout
        self.mesh = mesh
        self.stack = context.stacked_dims  # of repeated layers: see `layers.Repeat`
        self.spec = Spec(Shape([*self.stack, *Shape(shape)]), dtype_name(dtype))
        self._path = _path_of(name)
        self.trainable = trainable
        self.kind: Literal["parameter", "state"] = "parameter" if trainable else "state"
        check_layout(
            [self.spec],
            mesh,
            self.layout,
            f"{path_text(self._path)!r}, {Source.of_caller()}",
            kind="variable",
        )
        record_layout_use(mesh, LayoutUse(frozenset(self.spec.shape.names)))
        self.placement: Placement = mesh.place(
            self.spec.shape, self.layout, self.stage
        )[0]
        self.writers = [Writes()]  # the first is for all writers but functions
        self._slots: Sequence[Slot | None] = ()
        # None: it has its initial value.
        self._initializer: Initializer | None = as_initializer(initializer)
        if is_complete(self._path):
            self.initialize()

    def initialize(self) -> None:
        """Draws the initial value, unless it was drawn before. The value depends on the
        name, which an attribute may give later than the constructor.
        """
        if self._initializer is not None:
            shards = initial_shards(self._initializer, self)
            self._initializer = None
            self._slots = self._slots_with(shards)

    @property
    def path(self) -> str:
        """The name in checkpoints, such as "decoder/layer_0/wq". Raises PlanError if the
        attribute that gives it is not known yet.
        """
        return "/".join(complete_path(self._path))

    @property
    def name(self) -> str:
        """The name in checkpoints, such as "decoder/layer_0/wq"."""
        return self.path

    @property
    def shape(self) -> Shape:
        """The named shape; in a layer of a `Repeat` that of the layer's entry, as of
        `tensor()`.
        """
        rows = current().layer_entries
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
        rows = current().layer_entries
        if rows is not None and id(self) in rows:
            return rows[id(self)]
        return apply(Read(self), mesh=self.mesh)

    @property
    def value(self) -> Tensor:
        """The present value, as a tensor: what `tensor()` returns."""
        return self.tensor()

    def assign(self, value: Any) -> None:
        """Gives the variable a new value: a Tensor of the same names, in any order, or
        an array.
        """
        if not isinstance(value, Tensor):
            value = asarray(self.mesh, value, self.shape, dtype=self.dtype)
        apply_all(Write(self), transpose_like(value, self.shape), mesh=self.mesh)

    def assign_add(self, increment: Any) -> None:
        """Adds a number, a Tensor of the same names, or an array."""
        self.assign(self + self._as_term(increment))

    def assign_sub(self, decrement: Any) -> None:
        """Subtracts a number, a Tensor of the same names, or an array."""
        self.assign(self - self._as_term(decrement))

    def _as_term(self, x: Any) -> Any:
        """Returns a tensor or a number as it is, and an array as a tensor."""
        if isinstance(x, Operators) or np.ndim(x) == 0:
            return x
        return asarray(self.mesh, x, self.shape, dtype=self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def numpy(self) -> Any:
        """Returns the whole value as a numpy array."""
        whole = np.empty(self.shape.sizes, tf.as_dtype(self.dtype).as_numpy_dtype)
        for part, slot in self.regions():
            whole[part] = slot.read()
        return whole

    def regions(self) -> list[tuple[Region, Slot]]:
        """Returns the distinct shards: the region of the whole that each is, and a slot
        that holds it.
        """
        return [(part, held[-1]) for part, held in self.holders()]

    def holders(self) -> list[tuple[Region, list[Slot]]]:
        """Returns the distinct regions of the whole, each with all slots that hold
        it.
        """
        return regions_of(self.slots(), self.shape, self.placement, self.mesh)

    def read(self) -> list[Any]:
        """Returns each position's shard as it is now, as TensorFlow tensors: the
        runtime's door.
        """
        slots = self.slots()
        values: dict[int, Any] = {}
        for device, slot in zip(devices_of(self.mesh), slots):
            if slot is not None and id(slot) not in values:
                values[id(slot)] = slot.value_on(device)
        return [values.get(id(slot)) for slot in slots]

    def slots(self) -> Sequence[Slot | None]:
        """Returns the slot that holds each position's shard, one object where they
        share it; None: the variable lies at another stage.
        """
        devices_of(self.mesh)  # refuses a mesh without hardware, where there are none
        if self._initializer is not None:
            complete_path(self._path)  # says that it has no name yet
        return self._slots

    def load(self, read_region: Callable[[Region], Any]) -> None:
        """Assigns every slot what `read_region` returns for its region of the whole."""
        as_callable("read_region", read_region)
        written(self)
        for part, held in self.holders():
            for slot in held:
                slot.assign(read_region(part))

    def bring_to_stage(self, stage: int | None) -> None:
        """Lets it lie at one stage of a pipeline, with its value; optimizers come after
        that.
        """
        if stage is not None:
            as_int("stage", stage)
        if stage == self.stage or self.mesh.axes.get(self.mesh.stages, 1) == 1:
            return
        has_value = not self.mesh.abstract and self._initializer is None
        whole = tf.constant(self.numpy()) if has_value else None
        self.stage = stage
        self.placement = self.mesh.place(self.spec.shape, self.layout, stage)[0]
        if whole is not None:
            pieces = shards_on_source(whole, self.spec, self.placement, self.mesh)
            self.use_slots(self._slots_with(pieces))

    def use_slots(self, slots: Sequence[Slot | None]) -> None:
        """Lets other slots hold its shards from now on; these have the values already.

        Functions that the placed runtime compiled before go on with the earlier slots.

        Args:
          slots: of each position, one object where positions share it; None: it has no
            shard.
        """
        are_slots = isinstance(slots, Sequence) and all(
            slot is None or hasattr(slot, "snapshot") for slot in slots
        )
        if not are_slots or len(slots) != self.mesh.size:
            refuse("slots", slots, f"slots or None, of {self.mesh.size} positions")
        self._slots = slots

    def _slots_with(self, shards: Sequence[Any]) -> Sequence[Slot | None]:
        """Returns slots with these first values, of each position; of an abstract mesh
        none.
        """
        if self.mesh.abstract:
            return []
        return slots_with(shards, self.placement, self.mesh, self.trainable)

    def _repr_html_(self) -> str:
        """Returns the mesh, coloured by the shard that each position holds."""
        title = f"{path_text(self._path)} {self.dtype} {self.spec.shape!r}"
        sizes = dict(zip(self.spec.shape.names, self.spec.shape.sizes))
        states = self.mesh.states(self.placement)
        return html_placement(title, self.mesh.axes, states, sizes)

    def __repr__(self) -> str:
        path = path_text(self._path)
        return f"<mtf.Variable {path!r} {self.dtype} {self.shape!r} {self.placement}>"


def _check_outside_functions(name: str | None) -> None:
    """Raises PlanError for a variable that is made while a function is recorded."""
    if isinstance(current_executor(), Graph):
        variable = "a variable" if name is None else f"variable {name!r}"
        raise PlanError(
            explain_error(
                f"{variable} is made inside a mtf.function.",
                **{"from": Source.of_caller()},
                way_out="Make variables before the function is called, most often in a "
                "module's __init__.",
            )
        )


def _path_of(name: str | None) -> Path:
    """Returns the path of a new variable. Raises ArgumentError if it has no name, nor a
    module that could give it one.
    """
    path = new_path(name)
    if path is None:
        way_out = "In the constructor of a module, its attribute gives it."
        refuse("name", name, "a string", way_out)
    return path
