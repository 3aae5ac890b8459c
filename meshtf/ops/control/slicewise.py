"""A function of the user's own, run on each shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import PlanError, explain_error
from meshtf.graph import (
    Op,
    Role,
    Sample,
    Spec,
    apply_all,
)
from meshtf.graph.arguments import as_tensors
from meshtf.names import Names, Shape, dtype_name, has_gradient, names_of
from meshtf.names.arguments import as_callable, as_dim, as_sequence, check_bools, refuse
from meshtf.ops.control.slicewise_check import check_names, check_slices


def _bounded_product(x: Any, w: Any) -> Any:
    return tf.tanh(x @ w)


class Slicewise(Op):
    """A user's TensorFlow function, run on each slice."""

    fn: Callable[..., Any]
    outs: tuple[Spec, ...]
    cut: frozenset[str]
    samples = (
        Sample(
            (
                tf.math.softsign,
                (Spec(Shape("b:4;h:8"), "float32"),),
                frozenset(("b", "h")),
            ),
            ("b:4;h:8",),
        ),
        Sample(
            (tf.linalg.matvec, (Spec(Shape("b:4;h:8"), "float32"),), frozenset("b")),
            ("b:4;h:8;k:3", "b:4;k:3"),
        ),
        Sample(
            (
                _bounded_product,
                (Spec(Shape("b:4;o:6"), "float32"),),
                frozenset(("b", "o")),
            ),
            ("b:4;h:8", "h:8;o:6"),
        ),
    )

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return self.outs

    def role(self, factor: str) -> Role:
        return Role.MAP if factor in self.cut else Role.WHOLE

    def local(self, context: Any, *xs: Any) -> tuple[Any, ...]:
        ys = _as_tuple(self.fn(*xs))
        if len(ys) != len(self.outs) or any(y is None for y in ys):
            raise PlanError(
                explain_error(
                    f"the function of slicewise gave {len(ys)} results, "
                    f"{sum(y is None for y in ys)} of them None, and shapes= names "
                    f"{len(self.outs)}.",
                    outputs=" ".join(repr(y.shape) for y in self.outs),
                    function=getattr(self.fn, "__name__", repr(self.fn)),
                    way_out="Return a tensor for each shape, and give a list of as "
                    "many shapes.",
                )
            )
        return ys

    def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
        dys = dy if isinstance(dy, tuple) else (dy,)
        there = tuple(d is not None for d in dys)
        specs = tuple(x.spec for x in xs)
        op = SlicewiseGrad(self.fn, specs, there, self.cut)
        dxs = iter(apply_all(op, *xs, *(d for d in dys if d is not None)))
        return [next(dxs) if has_gradient(x.dtype) else None for x in xs]


class SlicewiseGrad(Op):
    """The gradient of a user's function, by TensorFlow's tape on each slice."""

    fn: Callable[..., Any]
    ins: tuple[Spec, ...]
    there: tuple[bool, ...]  # which outputs have a cotangent
    cut: frozenset[str]
    samples = (
        Sample(
            (
                tf.math.softsign,
                (Spec(Shape("b:4;h:8"), "float32"),),
                (True,),
                frozenset(("b", "h")),
            ),
            ("b:4;h:8", "b:4;h:8"),
            gradient=False,
        ),
    )

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return tuple(x for x in self.ins if has_gradient(x.dtype))

    def role(self, factor: str) -> Role:
        if factor not in self.cut:
            return Role.WHOLE
        floats = [x.shape for x in self.ins if has_gradient(x.dtype)]
        if all(factor in shape for shape in floats):
            return Role.MAP
        # An input without this name meets all its rows: its gradient is a sum over
        # them.
        return Role.WHOLE if any(factor in shape for shape in floats) else Role.SUM

    def local(self, context: Any, *xs: Any) -> tuple[Any, ...]:
        inputs, dys = xs[: len(self.ins)], xs[len(self.ins) :]
        floats = [x for x in inputs if has_gradient(x.dtype.name)]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            ys = [
                y for y, there in zip(_as_tuple(self.fn(*inputs)), self.there) if there
            ]
        return tuple(
            tape.gradient(
                ys,
                floats,
                output_gradients=list(dys),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        )


def slicewise(
    fn: Callable[..., Any],
    xs: Sequence[Any],
    shapes: Any = None,
    dtypes: Any = None,
    cut: Names = (),
    check: bool = True,
) -> Any:
    """Returns fn's result on each slice: your own TensorFlow function as an op.

    Args:
      fn: a pure function of TensorFlow tensors with the local shapes of xs; it returns
        tensors.
      xs: its inputs.
      shapes: the shape of the output; a list of shapes for several outputs; default: of
        xs[0].
      dtypes: the data types, likewise.
      cut: names along which fn may be run slice by slice, since element i of its
        outputs depends on element i of its inputs alone, as in "batch"; of all others
        it gets the whole.
      check: whether to try that when fn is first seen here, on a small input, in halves
        and at once.

    Raises:
      ShapeError: `cut` has a name that no input has, or that an output lacks.
      PlanError: along a name of `cut`, results differ from those of all at once.
    """
    as_callable("fn", fn)
    check_bools(check=check)
    xs = as_tensors("xs", xs)
    if not xs:
        refuse("xs", xs, "a list of at least one tensor")
    if not isinstance(cut, str):
        cut = [
            as_dim("cut", name)
            for name in as_sequence("cut", cut, "names of dimensions")
        ]
    several = isinstance(shapes, list)
    shape_list = shapes if several else [xs[0].shape if shapes is None else shapes]
    dtype = xs[0].dtype if dtypes is None else dtypes
    dtype_list = dtypes if isinstance(dtypes, list) else [dtype] * len(shape_list)
    if len(dtype_list) != len(shape_list):
        refuse("dtypes", dtypes, f"one data type for each of {len(shape_list)} shapes")
    outs = tuple(
        Spec(Shape(s), dtype_name(d))
        for s, d in zip(shape_list, dtype_list, strict=True)
    )
    specs = [Spec(x.shape, x.dtype) for x in xs]
    names = names_of(cut, *(x.shape for x in (*specs, *outs)))
    check_names(names, specs, outs)
    if check and names:
        check_slices(fn, specs, outs, names)
    ys = apply_all(Slicewise(fn, outs, frozenset(names)), *xs)
    return list(ys) if several else ys[0]


def _as_tuple(ys: Any) -> tuple[Any, ...]:
    return tuple(ys) if isinstance(ys, (tuple, list)) else (ys,)
