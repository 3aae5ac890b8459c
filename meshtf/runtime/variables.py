"""Variables: tensors that stay, in slices on the devices that hold them.

There is one tf.Variable for each different slice on each device. Positions of one device that hold
the same slice share it, and it is updated once.

    w = Variable(mesh, "d_model:512;d_ff:2048", initializer, name="w")
    w.assign(w - 0.1 * dw)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from meshtf.graph.check import check_layout
from meshtf.mesh import Mesh, Placement
from meshtf.names import Shape, ShapeLike, dtype_name
from meshtf.ops.state import Read, Write, transpose_like
from meshtf.runtime.devices import devices_of, share_memory
from meshtf.runtime.eager import bring, export
from meshtf.runtime.stores import import_tensor, slice_keys, slices_of

Initializer = Callable[[Mesh, Shape, str], Tensor]


class Variable(Operators, tf.Module):
  """A named tensor that stays between calls.

  Args:
    mesh: where it lies; its slices follow the mesh's `variable_layout`.
    shape: such as "d_model:512;d_ff:2048".
    initializer: called with (mesh, shape, name); returns the first value.
    name: its name in checkpoints, after the names of the modules around.
    dtype: the data type.
    trainable: whether optimizers update it.

  Raises:
    LayoutError: the layout cannot hold it.
    PlanError: it is made inside a mtf.function.
  """

  def __init__(self, mesh: Mesh, shape: ShapeLike, initializer: Initializer, name: str,
               dtype: object = "float32", trainable: bool = True) -> None:
    super().__init__(name=None)
    if isinstance(current_executor(), Graph):
      raise PlanError(explain_error(
          f"variable {name!r} is made inside a mtf.function.", **{"from": Source.here()},
          way_out="Make variables before the function is called, most often in a module's "
                  "__init__."))
    around = current()
    layout = mesh.variable_layout if around.layout is None else around.layout
    self.mesh = mesh
    self.spec = Spec(Shape(shape), dtype_name(dtype))
    self.path = "/".join((*around.path, name))
    self.trainable = trainable
    check_layout([self.spec], mesh, layout, f"{self.path!r}, {Source.here()}", what="variable")
    self.placement: Placement = mesh.place(self.spec.shape, layout)[0]
    self._slices = self._make_slices(initializer, layout)

  @property
  def name(self) -> str:
    """The name in checkpoints, such as "decoder/layer_0/wq"."""
    return self.path

  @property
  def shape(self) -> Shape:
    """The named shape."""
    return self.spec.shape

  @property
  def dtype(self) -> str:
    """The name of the data type."""
    return self.spec.dtype

  def tensor(self) -> Tensor:
    """Returns the present value as a tensor; ops do this by themselves."""
    return apply(Read(self), mesh=self.mesh)

  def assign(self, value: Any) -> None:
    """Gives the variable a new value: a Tensor of the same names, in any order, or an array."""
    if not isinstance(value, Tensor):
      value = import_tensor(self.mesh, value, self.shape, dtype=self.dtype)
    apply_all(Write(self), transpose_like(value, self.shape), mesh=self.mesh)

  def numpy(self) -> Any:
    """Returns the whole value as a numpy array."""
    whole = np.empty(self.shape.sizes, tf.as_dtype(self.dtype).as_numpy_dtype)
    for region, slice_ in self.regions():
      whole[region] = slice_.numpy()
    return whole

  def regions(self) -> list[tuple[tuple[slice, ...], tf.Variable]]:
    """Returns the different slices, each with the region of the whole that it is."""
    keys = slice_keys(self.placement, self.mesh)
    found = dict(zip(keys, self._slices))
    return [(self._region(key), variable) for key, variable in found.items()]

  def read(self) -> list[Any]:
    """Returns each position's slice as it is now: the runtime's door."""
    done: dict[int, Any] = {}
    for device, variable in zip(devices_of(self.mesh), self._slices):
      if id(variable) not in done:
        with tf.device(device):
          done[id(variable)] = variable.read_value()
    return [done[id(v)] for v in self._slices]

  def slices(self) -> list[tf.Variable]:
    """Returns each position's tf.Variable: the runtime's door."""
    return self._slices

  def load(self, read_region: Callable[[tuple[slice, ...]], Any]) -> None:
    """Assigns every slice what `read_region` returns for its region of the whole."""
    keys = slice_keys(self.placement, self.mesh)
    for key, variable in {id(v): (k, v) for k, v in zip(keys, self._slices)}.values():
      variable.assign(read_region(self._region(key)))

  def _region(self, key: tuple[int, ...]) -> tuple[slice, ...]:
    from_to = {name: (0, size) for name, size in zip(self.shape.names, self.shape.sizes)}
    for state, c, parts in zip(self.placement, key, self.mesh.axes.values()):
      dim = getattr(state, "dim", None)
      if dim is not None:
        start, stop = from_to[dim]
        size = (stop - start) // parts
        from_to[dim] = (start + c * size, start + (c + 1) * size)
    return tuple(slice(*span) for span in from_to.values())

  def _make_slices(self, initializer: Initializer, layout: Any) -> list[tf.Variable]:
    slices = self._first_slices(initializer, layout)
    done: dict[Any, tf.Variable] = {}
    out = []
    for device, key, x in zip(devices_of(self.mesh), slice_keys(self.placement, self.mesh), slices):
      if (device, key) not in done:
        with tf.device(device):
          done[device, key] = tf.Variable(x, trainable=self.trainable, name=self.path)
      out.append(done[device, key])
    return out

  def _first_slices(self, initializer: Initializer, layout: Any) -> list[Any]:
    """Returns each position's slice of the first value; values do not depend on the mesh.

    Where all devices see one memory, the whole is drawn at once and cut: one draw instead of many.
    """
    together = share_memory(devices_of(self.mesh))
    mesh = Mesh("", seed=self.mesh.seed) if together else self.mesh
    with context(layout=None if together else layout, path=()), executing():
      value = initializer(mesh, self.shape, self.path)
    if value.shape != self.shape or value.dtype != self.dtype:
      raise ShapeError(f"the initializer of variable {self.path!r} gave {value.dtype} "
                       f"{value.shape!r}, not {self.dtype} {self.shape!r}.")
    if value.mesh is self.mesh:
      return bring(value, self.placement)
    return slices_of(export(value), self.spec, self.placement, self.mesh)

  def __repr__(self) -> str:
    return f"<mtf.Variable {self.path!r} {self.dtype} {self.shape!r} {self.placement}>"
