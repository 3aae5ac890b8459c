"""A user's TensorFlow function as an op, run on each shard.

    y = mtf.slicewise(tf_function("math.softsign"), [x], shardable="batch;d")    # the shape of x

The function gets the local shards of its inputs along the dimensions in `shardable`, and
all elements of the other dimensions. Its gradient is computed by TensorFlow's tape.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, overload

import tensorflow as tf

from meshtf.errors import PlanError, explain_error
from meshtf.graph import (
    Cotangents,
    Graph,
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
    current_executor,
)
from meshtf.graph.arguments import as_tensors
from meshtf.names import Dimension, Names, Shape, dtype_name, has_gradient, names_of
from meshtf.names.arguments import as_callable, as_dim, as_sequence, check_bools, refuse
from meshtf.ops.common.tensorflow_functions import tf_function
from meshtf.ops.slicewise.check import (
    check_names,
    check_result_specs,
    check_slices,
)


def _bounded_matmul(x: Any, w: Any) -> Any:
    """Returns tanh(x @ w): a function for the conformance suite."""
    return tf.tanh(x @ w)


def _floats(shape: str) -> tuple[Spec, ...]:
    """Returns the specs of one float32 result, for the conformance suite."""
    return (Spec(Shape(shape), "float32"),)


@dataclasses.dataclass(frozen=True)
class TapeGradient:
    """The gradient of a function of TensorFlow tensors, by TensorFlow's tape: a function of the
    same inputs and of the cotangents of the results, which returns the cotangents of the
    floating and complex inputs.

    Attributes:
      fn: the function.
      num_inputs: the number of its inputs.
      has_cotangent: for each of its results, whether it has a cotangent.
    """

    fn: Callable[..., Any]
    num_inputs: int
    has_cotangent: tuple[bool, ...]

    @property
    def __name__(self) -> str:
        return f"the gradient of {name_of(self.fn)}"

    def __call__(self, *xs: Any) -> tuple[Any, ...]:
        inputs = xs[: self.num_inputs]
        sources = [x for x in inputs if has_gradient(x.dtype.name)]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            ys = _as_tuple(self.fn(*inputs))
        gradients = tape.gradient(
            list(itertools.compress(ys, self.has_cotangent)),
            sources,
            output_gradients=list(xs[self.num_inputs :]),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # The gradient of a gather is no tensor, but its slices.
        return tuple(map(tf.convert_to_tensor, gradients))


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
            (
                TapeGradient(_bounded_matmul, 2, (True,)),
                (*_floats("b:4;h:8"), *_floats("h:8;o:6")),
                frozenset({"b", "o"}),
            ),
            ("b:4;h:8", "h:8;o:6", "b:4;o:6"),
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
        if factor not in self.shardable:
            return Role.UNSHARDED
        if all(factor in y.shape for y in self.result_specs):
            return Role.MAP  # sharded inputs give sharded outputs
        # In a gradient: element i of the function's outputs depends only on element i of its
        # inputs, so the gradient of an input that lacks the dimension is a sum of terms of
        # the elements.
        return Role.SUM

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        # fn may refuse values that only padding has. A cotangent of 0 adds nothing to a sum.
        return "first" if input_index < _num_function_inputs(self.fn) else 0.0

    def local(self, context: Any, *xs: Any) -> LocalTensors:
        ys = _as_tuple(self.fn(*xs))
        num_none = sum(y is None for y in ys)
        if len(ys) != len(self.result_specs) or num_none:
            raise _wrong_number(self, len(ys), num_none)
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
            function=name_of(self.fn),
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
        gradient = TapeGradient(self.fn, len(xs), has_cotangent)
        specs = tuple(x.spec for x in xs if has_gradient(x.dtype))
        op = Slicewise(gradient, specs, self.shardable)
        gradients = iter(apply_all(op, *xs, *cotangents))
        return [next(gradients) if has_gradient(x.dtype) else None for x in xs]


def _num_function_inputs(fn: Any) -> int:
    """Returns the number of the first inputs of fn that are inputs of the user's function; the
    others are cotangents.
    """
    num_inputs = sys.maxsize
    while isinstance(fn, TapeGradient):
        num_inputs = fn.num_inputs
        fn = fn.fn
    return num_inputs


def _wrong_number(op: Slicewise, num_results: int, num_none: int) -> PlanError:
    """Returns the error for a function with another number of results than it should have.

    Args:
      op: the op.
      num_results: the number of results.
      num_none: how many of them are None.
    """
    return PlanError(
        explain_error(
            f"the function of slicewise gave {num_results} results, {num_none} of them "
            f"None, and shapes= names {len(op.result_specs)}.",
            outputs=" ".join(repr(y.shape) for y in op.result_specs),
            function=name_of(op.fn),
            way_out="Return a tensor for each shape, and give a list of as many shapes.",
        )
    )


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

    A TensorFlow tensor that fn reads from outside is a constant of a recorded function. A
    tf.Variable is refused there: pass it in xs.

    Raises:
      ShapeError: `shardable` has a name that no input has, or that an output lacks.
      PlanError: along a name of `shardable`, results for halves differ from the result for
        the complete input; or results have other shapes or data types than announced; or fn
        reads a tf.Variable from outside in a recorded function.
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
    op = Slicewise(fn, outputs, frozenset(dims))
    if check and dims:
        check_slices(fn, inputs, outputs, dims)
    if isinstance(current_executor(), Graph):
        # Otherwise later ops would meet the wrong shape, and tell it at their lines.
        check_result_specs(fn, inputs, outputs, op.wrong_result)
    ys = apply_all(op, *xs)
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


def _as_tuple(ys: Any) -> tuple[Any, ...]:
    """Returns a value as a tuple of one element, and a tuple or list as a tuple."""
    if isinstance(ys, (tuple, list)):
        return tuple(ys)
    return (ys,)


def name_of(fn: Callable[..., Any]) -> str:
    """Returns the name of a function for errors."""
    return str(getattr(fn, "__name__", repr(fn)))
