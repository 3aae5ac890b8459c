"""Functions that TensorFlow does not inline, and calls of them.

    double = trace(lambda x: [x + x], [tf.TensorSpec([4])])
    (y,) = double([x])                     # while another graph is traced

Programs have hundreds of calls with dozens of arguments each, so that a call is one op made with
attributes that are known. `tf.raw_ops.PartitionedCall` finds them out from every argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.quick_ops import add_op, quick_ops


def _config() -> bytes:
  """Returns a session configuration without the graph optimiser: it costs start-up and gains
  nothing on segments, and turning it off here leaves the user's other functions alone."""
  config = tf.compat.v1.ConfigProto()
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  return config.SerializeToString()


PLAIN_CONFIG = _config()


class Callee:
  """A traced function of tensors without captures, which a graph calls with a list, for a list.

  Args:
    function: the concrete function.
    stateful: whether it reads or writes variables.
  """

  def __init__(self, function: Any, stateful: bool) -> None:
    self.function, self.stateful = function, stateful
    self.shapes = [y.shape for y in function.outputs]
    self.dtypes = [y.dtype for y in function.outputs]
    self.attrs = _attrs(function)

  def __call__(self, args: Sequence[Any]) -> list[Any]:
    self.function.add_to_graph(tf.compat.v1.get_default_graph())
    ys = add_op("StatefulPartitionedCall" if self.stateful else "PartitionedCall", args,
                self.dtypes, self.attrs)
    for y, shape in zip(ys, self.shapes):
      y.set_shape(shape)
    return list(ys)


def trace(body: Callable[..., list[Any]], specs: Iterable[tf.TensorSpec], stateful: bool = False,
          ordered: bool = False) -> Callee:
  """Traces a function.

  Args:
    body: of tensors, returns a list of them; takes nothing else from outside.
    specs: of the arguments.
    stateful: whether it reads or writes variables.
    ordered: whether it writes, so that ops must run in the order in which they were made.
  """
  def traced(*args: Any) -> list[Any]:
    with quick_ops():
      return body(*args)
  attributes = {"_noinline": True} | ({} if ordered else {"_disable_acd": True})
  function = tf.function(traced, autograph=False, experimental_attributes=attributes)
  return Callee(function.get_concrete_function(*specs), stateful)


def _attrs(function: Any) -> dict[str, Any]:
  """Returns the attributes of a call."""
  def value(**kind: Any) -> Any:
    return tf.compat.v1.AttrValue(**kind)

  def types(tensors: Iterable[Any]) -> Any:
    return value(list=tf.compat.v1.AttrValue.ListValue(
        type=[t.dtype.as_datatype_enum for t in tensors]))
  return {"Tin": types(function.inputs), "Tout": types(function.outputs),
          "f": value(func=tf.compat.v1.NameAttrList(name=function.name)),
          "config": value(s=b""), "config_proto": value(s=PLAIN_CONFIG),
          "executor_type": value(s=b""), "_disable_call_shape_inference": value(b=True)}
