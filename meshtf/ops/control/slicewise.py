"""A user's TensorFlow function as an op, run on each shard.

    y = mtf.slicewise(tf_function("math.softsign"), [x], shardable="batch;d")    # the shape of x

The function gets the local shards of its inputs along the dimensions in `shardable`, and
all elements of the other dimensions. Its gradient is computed by TensorFlow's tape.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, overload

import tensorflow as tf

from meshtf.errors import PlanError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalTensors,
    Op,
    Operators,
    PaddingValue,
    Role,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply_all,
)
from meshtf.graph.arguments import as_tensors
from meshtf.names import Dimension, Names, Shape, dtype_name, has_gradient, names_of
from meshtf.names.arguments import as_callable, as_dim, as_sequence, check_bools, refuse
from meshtf.ops.common.tensorflow_functions import tf_function
from meshtf.ops.control.slicewise_check import check_names, check_slices


def _bounded_matmul(x: Any, w: Any) -> Any:
    """Returns tanh(x @ w): a function for the conformance suite."""
    return tf.tanh(x @ w)


def _floats(shape: str) -> tuple[Spec, ...]:
    """Returns the specs of one float32 result, for the conformance suite."""
    return (Spec(Shape(shape), "float32"),)


class Slicewise(Op):
    """A user's TensorFlow function, run on each shard.

    Attributes:
      fn: the function.
      result_specs: the global spec of each result.
      shardable: the names of the dimensions that may be sharded.
    """

    fn: Callable[..., Any]
    result_specs: tuple[Spec, ...]
    shardable: frozenset[str]
    # Each sample: the attributes (fn, result_specs, shardable), and the shapes of inputs.
    conformance_samples = (
        Sample(
            (tf_function("math.softsign"), _floats("b:4;h:8"), frozenset({"b", "h"})),
            ("b:4;h:8",),
        ),
        Sample(
            (tf_function("linalg.matvec"), _floats("b:4;h:8"), frozenset({"b"})),
            ("b:4;h:8;k:3", "b:4;k:3"),
        ),
        Sample(
            (_bounded_matmul, _floats("b:4;o:6"), frozenset({"b", "o"})),
            ("b:4;h:8", "h:8;o:6"),
        ),
        Sample(
            (tf_function("linalg.inv"), _floats("b:7;i:2;j:2"), frozenset({"b"})),
            ("b:7;i:2;j:2",),
        ),
    )

    def output_specs(self, *xs: Spec) -> Specs:
        return self.result_specs

    def role(self, factor: str) -> Role:
        # A factor is the name of a dimension of an input or output.
        if factor in self.shardable:
            return Role.MAP  # sharded inputs give sharded outputs
        return Role.UNSHARDED

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        return "first"  # fn may refuse values that only padding has

    def local(self, context: Any, *xs: Any) -> LocalTensors:
        ys = _as_tuple(self.fn(*xs))
        num_none = sum(y is None for y in ys)
        if len(ys) != len(self.result_specs) or num_none:
            raise PlanError(
                explain_error(
                    f"the function of slicewise gave {len(ys)} results, {num_none} of "
                    f"them None, and shapes= names {len(self.result_specs)}.",
                    outputs=" ".join(repr(y.shape) for y in self.result_specs),
                    function=getattr(self.fn, "__name__", repr(self.fn)),
                    way_out="Return a tensor for each shape, and give a list of as "
                    "many shapes.",
                )
            )
        return ys

    def wrong_result(
        self, result: str, announced: str, inputs: str, source: str
    ) -> str:
        """Returns the text of the error for a result of fn whose shape or data type is not
        the expected one. The runtime calls it.

        Args:
          result: the data type and shape of the result of fn on one device.
          announced: the data type and shape that follow from `shapes` and `dtypes`.
          inputs: the shapes of the arguments of fn.
          source: the user's line.
        """
        return explain_error(
            f"slicewise: fn returned {result}, but its shard of the result is {announced}.",
            function=getattr(self.fn, "__name__", repr(self.fn)),
            inputs=inputs,
            result=" ".join(repr(spec.shape) for spec in self.result_specs),
            source=source,
            way_out="Give the global shape and data type of what fn returns, as "
            "slicewise(..., shapes=, dtypes=): by default they are those of xs[0]. Or "
            "correct fn.",
        )

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        dys = _as_tuple(dy)
        has_cotangent = tuple(cotangent is not None for cotangent in dys)
        cotangents = [cotangent for cotangent in dys if cotangent is not None]
        input_specs = tuple(x.spec for x in xs)
        op = SlicewiseGrad(self.fn, input_specs, has_cotangent, self.shardable)
        return _cotangents_of_inputs(xs, apply_all(op, *xs, *cotangents))


class SlicewiseGrad(Op):
    """The gradient of a user's function, by TensorFlow's tape on each shard.

    The inputs are those of the function, followed by the cotangents. The outputs are the
    gradients of the floating and complex inputs.

    Attributes:
      fn: the function.
      input_specs: the spec of each input of the function.
      has_cotangent: for each result of the function, whether it has a cotangent.
      shardable: the names of the dimensions that may be sharded.
    """

    fn: Callable[..., Any]
    input_specs: tuple[Spec, ...]
    has_cotangent: tuple[bool, ...]
    shardable: frozenset[str]
    # The attributes (fn, input_specs, has_cotangent, shardable), and the shapes of inputs.
    conformance_samples = (
        Sample(
            (
                tf_function("math.softsign"),
                _floats("b:4;h:8"),
                (True,),
                frozenset({"b", "h"}),
            ),
            ("b:4;h:8", "b:4;h:8"),
            gradient=False,
        ),
    )

    def output_specs(self, *xs: Spec) -> Specs:
        return tuple(x for x in self.input_specs if has_gradient(x.dtype))

    def role(self, factor: str) -> Role:
        if factor not in self.shardable:
            return Role.UNSHARDED
        # The outputs have the shapes of these inputs.
        shapes = [x.shape for x in self.input_specs if has_gradient(x.dtype)]
        if all(factor in shape for shape in shapes):
            return Role.MAP
        # All elements of the dimension use an input that lacks it, so the gradient of this
        # input is a sum over the dimension: sharded, a partial sum. One role holds for all
        # outputs, so a mixture of both cases is not sharded.
        if any(factor in shape for shape in shapes):
            return Role.UNSHARDED
        return Role.SUM

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        # With cotangents of 0, copies of the first element add nothing to a sum.
        return "first" if input_index < len(self.input_specs) else 0.0

    def local(self, context: Any, *xs: Any) -> LocalTensors:
        num_inputs = len(self.input_specs)
        inputs = xs[:num_inputs]
        cotangents = list(xs[num_inputs:])
        sources = [x for x in inputs if has_gradient(x.dtype.name)]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            ys = _as_tuple(self.fn(*inputs))
        targets = list(itertools.compress(ys, self.has_cotangent))
        gradients = tape.gradient(
            targets,
            sources,
            output_gradients=cotangents,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return tuple(gradients)


@overload
def slicewise(
    fn: Callable[..., Any],
    xs: Sequence[Operators[Any]],
    shapes: Shape | str | Dimension | None = None,
    dtypes: object = None,
    shardable: Names = (),
    check: bool = True,
) -> Tensor: ...


@overload
def slicewise(
    fn: Callable[..., Any],
    xs: Sequence[Operators[Any]],
    shapes: list[Any],
    dtypes: object = None,
    shardable: Names = (),
    check: bool = True,
) -> list[Tensor]: ...


def slicewise(
    fn: Callable[..., Any],
    xs: Sequence[Any],
    shapes: Any = None,
    dtypes: Any = None,
    shardable: Names = (),
    check: bool = True,
) -> Any:
    """Returns fn(*xs), run on each shard: your TensorFlow function as an op.

    Args:
      fn: a pure function of TensorFlow tensors that have the local shapes of xs; it
        returns one tensor or several.
      xs: the inputs of fn, tensors or variables.
      shapes: the global shape of the output, or a list of shapes for several outputs;
        None: the shape of xs[0].
      dtypes: the data type of the outputs, or a list of data types; None: that of xs[0].
      shardable: names of dimensions along which fn may get shards, such as "batch": element
        i of the outputs must depend only on element i of the inputs. fn gets all elements
        of the other dimensions.
      check: whether to test at the first call of fn, on a small input, that the results
        for two halves are halves of the result.

    Raises:
      ShapeError: `shardable` has a name that no input has, or that an output lacks.
      PlanError: along a name of `shardable`, results for halves differ from the result for
        the complete input.
    """
    fn = as_callable("fn", fn)
    check_bools(check=check)
    xs = as_tensors("xs", xs)
    if not xs:
        refuse("xs", xs, "a list of at least one tensor")
    if not isinstance(shardable, str):
        names = as_sequence("shardable", shardable, "names of dimensions")
        shardable = [as_dim("shardable", name) for name in names]
    outputs = _result_specs(xs[0], shapes, dtypes)
    inputs = [Spec(x.shape, x.dtype) for x in xs]
    dims = names_of(shardable, *(spec.shape for spec in (*inputs, *outputs)))
    check_names(dims, inputs, outputs)
    if check and dims:
        check_slices(fn, inputs, outputs, dims)
    ys = apply_all(Slicewise(fn, outputs, frozenset(dims)), *xs)
    if isinstance(shapes, list):
        return list(ys)
    (y,) = ys
    return y


def _result_specs(x: Tensor, shapes: Any, dtypes: Any) -> tuple[Spec, ...]:
    """Returns the specs of the outputs.

    Args:
      x: the first input, whose shape and data type are the default.
      shapes, dtypes: the arguments of `slicewise`.
    """
    if shapes is None:
        shapes = x.shape
    if isinstance(shapes, list):
        shape_list = shapes
    else:
        shape_list = [shapes]
    if dtypes is None:
        dtypes = x.dtype
    if isinstance(dtypes, list):
        dtype_list = dtypes
    else:
        dtype_list = [dtypes] * len(shape_list)
    if len(dtype_list) != len(shape_list):
        refuse("dtypes", dtypes, f"one data type for each of {len(shape_list)} shapes")
    pairs = zip(shape_list, dtype_list, strict=True)
    return tuple(Spec(Shape(shape), dtype_name(dtype)) for shape, dtype in pairs)


def _cotangents_of_inputs(
    xs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> Cotangents:
    """Returns a list with the gradient of each input, or None for an input that has none.

    Args:
      xs: the inputs.
      gradients: the gradients of the floating and complex inputs, in order.
    """
    remaining = iter(gradients)
    cotangents: Cotangents = []
    for x in xs:
        if has_gradient(x.dtype):
            cotangents.append(next(remaining))
        else:
            cotangents.append(None)
    return cotangents


def _as_tuple(ys: Any) -> tuple[Any, ...]:
    """Returns a value as a tuple of one element, and a tuple or list as a tuple."""
    if isinstance(ys, (tuple, list)):
        return tuple(ys)
    return (ys,)
