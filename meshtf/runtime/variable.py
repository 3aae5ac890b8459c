"""Variables: tensors that keep their values between calls, stored as shards on devices.

A *slot* stores one shard on one device. Mesh positions (elements of the mesh's grid) that
are on the same device and have the same shard share a slot, which is updated once. On a
*live* mesh, on whose devices jax runs programs, initial values are computed at the first use
of a variable.

    w = Variable(mesh, "d_model:512;d_ff:2048", initializer, name="w")
    w.assign(w - 0.1 * dw)
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from meshtf.display import html_placement
from meshtf.graph import (
    Operators,
    Source,
    Spec,
    Tensor,
    apply,
    apply_all,
    current,
)
from meshtf.graph.arguments import as_mesh
from meshtf.graph.layout_check import check_variable
from meshtf.graph.used_layouts import record_layout_use
from meshtf.mesh import Layout, LayoutUse, Mesh, Placement
from meshtf.names import Names, Shape, ShapeLike, dtype_name, names_of
from meshtf.names.arguments import as_bool, as_callable, as_int, as_text, refuse
from meshtf.names.calls import explain_wrong_calls
from meshtf.ops.common.checks import require_dim_of_caller
from meshtf.ops.variables.read_write import Read, Write, transpose_like
from meshtf.partition.cost import local_shape
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.eager import run_recorded
from meshtf.runtime.initial_values import (
    Initializer,
    as_initializer,
    initial_shards,
    recorded_initial_value,
)
from meshtf.runtime.module_paths import (
    check_outside_functions,
    complete_path,
    is_complete,
    path_text,
    variable_path,
)
from meshtf.runtime.spmd.initial_values import compute_pending, defer, move_pending
from meshtf.runtime.storage.asarray import asarray
from meshtf.runtime.storage.sharding import (
    shards_on_source,
    with_padding,
    without_padding,
)
from meshtf.runtime.storage.slot import Slot
from meshtf.runtime.storage.variable_slots import Region, regions_of, slots_with
from meshtf.runtime.storage.write_times import WriteTime, record_write
from meshtf.runtime.tensorflow_tracking import Untracked


class Variable(Operators[Tensor], Untracked):
    """A named tensor that keeps its value between calls.

    Args:
      mesh: the mesh, whose devices store the shards.
      shape: the named shape, such as "d_model:512;d_ff:2048".
      initializer: a function (mesh, shape, name) -> initial value. For a variable of
        floats, it may return floats of any type. Or the name of an initializer without
        further arguments: "zeros", "ones", "normal", "truncated", "uniform".
      name: the name of the variable; in checkpoints, the names of the enclosing modules
        precede it. None, in the constructor of a module: the name of the attribute to
        which the variable is assigned.
      dtype: the data type.
      trainable: whether optimizers update the variable.
      layout: the layout of the variable; None: the layout of the mesh for variables, as
        changed by enclosing `mtf.layout` regions.
      stacked_dims: names of dimensions of `shape` along which independent variables are
        stacked, such as "experts": see `stack`.

    Attributes:
      stack: the dimensions along which independent variables are stacked: the layers of
        each enclosing `layers.Repeat`, and `stacked_dims`. Initializers and optimizers
        treat each entry as a variable of its own, of shape `entry_shape`.

    Raises:
      ArgumentError: an argument is missing, unknown or of another type.
      LayoutError: the layout cannot shard the variable.
      PlanError: the variable is created inside a mtf.function.
    """

    @explain_wrong_calls
    def __init__(
        self,
        mesh: Mesh,
        shape: ShapeLike,
        initializer: Initializer | str,
        name: str | None = None,
        dtype: object = "float32",
        trainable: bool = True,
        layout: Layout | None = None,
        stacked_dims: Names = "",
    ) -> None:
        # Functions `as_...` raise ArgumentError for values of another type.
        as_mesh("mesh", mesh)
        if name is not None:
            as_text("name", name)
        as_bool("trainable", trainable)
        if layout is not None and not isinstance(layout, Layout):
            refuse("layout", layout, "a layout", 'Write mtf.Layout("d_model:data").')
        path = variable_path(name)
        context = current()
        # The changes of the mesh's layout by enclosing `mtf.layout` regions.
        self.changes = context.region
        # The pipeline stage that has the variable; None: all stages.
        self.stage = context.stage
        if layout is None:
            layout = mesh.layout_in(context.region, "variable")
        self.layout = layout
        self.mesh = mesh
        own_shape = Shape(shape)
        stacked_names = names_of(stacked_dims, own_shape, argument="stacked_dims")
        require_dim_of_caller(own_shape, *stacked_names)
        # A variable of a layer in `layers.Repeat` has a further dimension, for the index of
        # the layer; in nested `Repeat`s, one for each.
        repeated_dims = context.stacked_dims
        self.stack = (*repeated_dims, *(own_shape.dim(name) for name in stacked_names))
        self.spec = Spec(Shape([*repeated_dims, *own_shape]), dtype_name(dtype))
        self._path = path
        self.trainable = trainable
        self.kind: Literal["parameter", "state"] = "parameter" if trainable else "state"
        self._source = Source.of_caller()
        # For the report of rules that match no dimension.
        record_layout_use(mesh, LayoutUse(frozenset(self.spec.shape.names)))
        self.placement: Placement
        self.placement, _conflicts = mesh.place(
            self.spec.shape, self.layout, self.stage
        )
        # The time of the last write by each writer. The first `WriteTime` is for all
        # writes outside of functions; each function that writes the variable adds one.
        self.writers = [WriteTime()]
        self._slots: Sequence[Slot | None] = ()
        # None once the variable has its initial value.
        self._initializer: Initializer | None = as_initializer(initializer)
        if is_complete(self._path):
            self.initialize()

    def initialize(self) -> None:
        """Checks the layout, and computes the initial value, unless the variable has one.

        The value depends on the name, which may be known only after the constructor: see
        `module_paths`.
        """
        initializer = self._initializer
        if initializer is None:
            return
        # Only now, so that the error has the complete path.
        check_variable(self.spec, self.mesh, self.layout, self.path, self._source)
        if self.mesh.live:
            # The devices compute all initial values of the mesh together.
            defer(self, functools.partial(recorded_initial_value, initializer))
            self._initializer = None
        else:
            shards = initial_shards(initializer, self)
            self._initializer = None
            self._slots = self._slots_with(shards)

    @property
    def path(self) -> str:
        """The name in checkpoints, such as "decoder/layer_0/wq". Raises PlanError if the
        attribute that gives the name is not known yet.
        """
        return "/".join(complete_path(self._path))

    @property
    def name(self) -> str:
        """The name in checkpoints, such as "decoder/layer_0/wq"."""
        return self.path

    @property
    def shape(self) -> Shape:
        """The named shape. While a layer of a `Repeat` runs, without the dimension of
        layers.
        """
        entries = current().layer_entries
        if entries is not None and id(self) in entries:
            return entries[id(self)].shape
        return self.spec.shape

    @property
    def entry_shape(self) -> Shape:
        """The shape of one of the variables that are stacked: `shape` without the dimensions
        in `stack`.
        """
        return self.shape.without(*(dim.name for dim in self.stack))

    @property
    def dtype(self) -> str:
        """The name of the data type."""
        return self.spec.dtype

    @property
    def slot_layout(self) -> Layout:
        """The layout of the variable's optimizer slots: the variables that an optimizer
        stores for it, such as its momentum.
        """
        return self.mesh.layout_in(self.changes, "slot")

    def tensor(self) -> Tensor:
        """Returns the current value as a tensor. Ops convert variables by this method.

        While a layer of a `Repeat` runs, it returns the entry of this layer.
        """
        entries = current().layer_entries
        if entries is not None and id(self) in entries:
            return entries[id(self)]
        return apply(Read(self), mesh=self.mesh)

    @property
    def value(self) -> Tensor:
        """The current value as a tensor; ops take the variable itself as well."""
        return self.tensor()

    def assign(self, value: Any) -> None:
        """Assigns a new value: a Tensor or Variable with the same dimensions in any
        order, or an array whose dimensions have the order of `shape`.
        """
        if isinstance(value, Variable):
            value = value.value
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
        """Returns an array as a tensor, and a tensor or a number unchanged."""
        if isinstance(x, Operators) or np.ndim(x) == 0:
            return x
        return asarray(self.mesh, x, self.shape, dtype=self.dtype)

    def numpy(self) -> Any:
        """Returns the global value as a numpy array."""
        array = np.empty(self.shape.sizes, tf.as_dtype(self.dtype).as_numpy_dtype)
        for region, slot in self.regions():
            array[region] = without_padding(slot.read(), region)
        return array

    def regions(self) -> list[tuple[Region, Slot]]:
        """Returns (region, slot) for each distinct shard: the region of the variable that
        the shard covers, and a slot that stores the shard.
        """
        by_region = self.slots_by_region()
        return [(region, slots[-1]) for region, slots in by_region]

    def slots_by_region(self) -> list[tuple[Region, list[Slot]]]:
        """Returns (region, slots) for each distinct shard: the region of the variable that
        the shard covers, and all slots that store the shard.
        """
        slots = self.slots()
        return regions_of(slots, self.shape, self.placement, self.mesh)

    def read(self) -> list[Any]:
        """Returns the current shard of each position, as a TensorFlow tensor on the device
        of the position; None: the position has no shard. Runtimes read variables by this
        method.
        """
        slots = self.slots()
        value_of: dict[
            int, Any
        ] = {}  # by the id of a slot, which several positions share
        for device, slot in zip(devices_of(self.mesh), slots):
            if slot is not None and id(slot) not in value_of:
                value_of[id(slot)] = slot.value_on(device)
        return [None if slot is None else value_of[id(slot)] for slot in slots]

    def slots(self) -> Sequence[Slot | None]:
        """Returns the slot of each position's shard; positions that share a slot get the
        same object. None: the variable is on another pipeline stage.

        Raises:
          MeshError: the mesh is abstract.
          PlanError: the variable has neither a name nor an initial value yet.
        """
        # Both calls are checks, which raise these errors.
        devices_of(self.mesh)
        if self._initializer is not None:
            complete_path(self._path)  # says that it has no name yet
        if self.mesh.live and not self._slots:
            compute_pending(self.mesh, run_recorded)
        return self._slots

    def load(self, read_region: Callable[[Region], Any]) -> None:
        """Assigns read_region(region) to each slot that covers this region.

        Checkpoints are read in this way, shard by shard.
        """
        as_callable("read_region", read_region)
        record_write(self)
        sizes = local_shape(self.spec.shape, self.placement, self.mesh).sizes
        for region, slots in self.slots_by_region():
            for slot in slots:
                slot.assign(with_padding(read_region(region), sizes))

    def move_to_stage(self, stage: int | None) -> None:
        """Moves the variable to a stage of a pipeline; None: to all stages.

        It must be called before an optimizer is created, since the optimizer places its
        optimizer slots like the variable.
        """
        if stage is not None:
            as_int("stage", stage)
        # `mesh.stages` is the mesh axis of pipeline stages.
        if stage == self.stage or self.mesh.num_stages == 1:
            return
        value = None
        has_value = not self.mesh.live or bool(self._slots)
        if not self.mesh.abstract and self._initializer is None and has_value:
            value = tf.constant(self.numpy())
        self.stage = stage
        self.placement, _conflicts = self.mesh.place(
            self.spec.shape, self.layout, stage
        )
        if self.mesh.live:
            move_pending(self)
        if value is not None:
            shards = shards_on_source(value, self.spec, self.placement, self.mesh)
            self.use_slots(self._slots_with(shards))

    def use_slots(self, slots: Sequence[Slot | None]) -> None:
        """Replaces the slots by slots that already have the values.

        Functions that the placed runtime has compiled still use the earlier slots.

        Args:
          slots: the slot of each position, the same object for positions that share a
            slot; None: the position has no shard.
        """
        # Runtimes have different classes of slots; all have a method `snapshot`.
        are_slots = isinstance(slots, Sequence) and all(
            slot is None or hasattr(slot, "snapshot") for slot in slots
        )
        if not are_slots or len(slots) != self.mesh.size:
            refuse("slots", slots, f"slots or None, of {self.mesh.size} positions")
        self._slots = slots

    def __copy__(self) -> Variable:
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        """Returns a variable with the same name, mesh and value, and storage of its own.
        Raises PlanError if it has no value yet, or a mtf.function is recorded.
        """
        name = self.name  # raises PlanError if it has no value yet
        check_outside_functions(name)
        slots = () if self.mesh.abstract else self.slots()
        duplicate = object.__new__(type(self))
        memo[id(self)] = duplicate
        duplicate.__dict__.update(vars(self))
        duplicate.writers = [WriteTime()]
        duplicate._slots = copy.deepcopy(slots, memo)
        return duplicate

    def _slots_with(self, shards: Sequence[Any]) -> Sequence[Slot | None]:
        """Returns new slots, one for each position, with these shards as values; [] on an
        abstract mesh.
        """
        if self.mesh.abstract:
            return []
        return slots_with(shards, self.placement, self.mesh, self.trainable)

    def _repr_html_(self) -> str:
        """Returns the mesh as HTML, coloured by the shard that each position holds."""
        title = f"{path_text(self._path)} {self.dtype} {self.spec.shape!r}"
        sizes = dict(zip(self.spec.shape.names, self.spec.shape.sizes))
        states = self.mesh.states(self.placement)
        return html_placement(title, self.mesh.axes, states, sizes)

    def __repr__(self) -> str:
        path = path_text(self._path)
        return f"<mtf.Variable {path!r} {self.dtype} {self.shape!r} {self.placement}>"
