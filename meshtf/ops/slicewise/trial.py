"""Runs of a function on small inputs, and on halves of them, by TensorFlow on a CPU.

for sizes in candidate_sizes(function):
  trial = run_trial(function, sizes)      # trial.dim: "", or a wrong one
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from meshtf.graph import Spec
from meshtf.names import dtype_bytes, is_complex, is_floating

_SMALL_SIZE = 3  # the size of a dimension that is not sharded
_SMALL_HALF = 2  # the size of each half of a sharded dimension
_MAX_ELEMENTS = 2**20  # the largest number of elements of the test's inputs
# Relative tolerance by the number of bytes of an element: for halves, a function may add up
# terms in another order.
_TOLERANCE = {2: 0.05, 4: 1e-3, 8: 1e-3}

_Sizes = dict[str, int]  # the size of each dimension in a test


class TriedFunction(NamedTuple):
    """A function, and what is said about it.

    Attributes:
      fn: the function, of TensorFlow tensors.
      inputs: the specs of all its inputs.
      outputs: the specs of all its outputs.
      dims: the dimensions along which inputs are halved, one after another.
    """

    fn: Callable[..., Any]
    inputs: Sequence[Spec]
    outputs: Sequence[Spec]
    dims: Sequence[str]


def candidate_sizes(function: TriedFunction) -> Iterator[_Sizes]:
    """Yields the sizes of all dimensions to test a function with, in the order of attempts.

    First all sizes are small; then dimensions that are not sharded have their full sizes;
    then all dimensions have.
    """
    full_sizes = {}
    for spec in (*function.inputs, *function.outputs):
        full_sizes.update({dim.name: dim.size for dim in spec.shape})
    small_sizes = {name: min(size, _SMALL_SIZE) for name, size in full_sizes.items()}
    sizes_of_sharded_dims = dict.fromkeys(function.dims, 2 * _SMALL_HALF)
    yield small_sizes | sizes_of_sharded_dims
    yield full_sizes | sizes_of_sharded_dims
    yield full_sizes


class Trial(NamedTuple):
    """What happened when a function ran on small inputs.

    Attributes:
      completed: whether it ran on a complete input, and on halves of it.
      dim: the dimension along which results for halves differ, or of which it takes no
        half; "" if there is none.
      refusal: why it does not run; "" if it ran, or if inputs have too many elements.
    """

    completed: bool
    dim: str = ""
    refusal: str = ""


def run_trial(function: TriedFunction, sizes: _Sizes) -> Trial:
    """Runs a function on inputs of several kinds of numbers, and on halves of them.

    Args:
      function: the function.
      sizes: the size of each dimension in this test.
    """
    inputs = function.inputs
    num_elements = sum(int(np.prod(_sizes_of(x, sizes))) for x in inputs)
    if num_elements > _MAX_ELEMENTS:
        return Trial(completed=False)
    runs = []
    refusal = ""
    for draw in (_draw_normal, _draw_from_unit_interval, _draw_positive_definite):
        arrays = [draw(seed=i, x=x, sizes=sizes) for i, x in enumerate(inputs)]
        try:
            runs.append((arrays, _run(function, arrays, sizes)))
        except _WrongShapeError:
            continue  # as for the true input, for which there is an error
        except _RefusalError as error:
            refusal = str(error)
    # A function may return NaN, and numbers without meaning, for what it does not take.
    meaningful_runs = [run for run in runs if not any(map(_has_nan, run[1]))]
    for arrays, expected in meaningful_runs or runs:
        for dim in _dims_with_halves(function.dims, sizes):
            try:
                joined_halves = _run_halves(function, arrays, dim, sizes)
            except _RefusalError as error:
                return Trial(completed=False, dim=dim, refusal=str(error))
            if not all(map(_are_close, expected, joined_halves)):
                return Trial(completed=True, dim=dim)
    return Trial(completed=bool(runs), refusal="" if runs else refusal)


def _dims_with_halves(dims: Sequence[str], sizes: _Sizes) -> list[str]:
    """Returns the dimensions that can be halved."""
    return [name for name in dims if sizes[name] >= 2 and sizes[name] % 2 == 0]


def _run_halves(
    function: TriedFunction, arrays: Sequence[Any], name: str, sizes: _Sizes
) -> list[Any]:
    """Returns each result of a function for the two halves of its inputs, concatenated.

    Args:
      function: the function.
      arrays: the complete inputs, of `sizes`.
      name: the dimension along which inputs are halved and results are concatenated.
      sizes: the size of each dimension in this test.

    Raises:
      _RefusalError: the function cannot run on a half.
    """
    half_sizes = sizes | {name: sizes[name] // 2}
    results_of_halves = []
    for half_index in range(2):
        half_arrays = [
            _half_of(array, x, name, half_index)
            for array, x in zip(arrays, function.inputs)
        ]
        results_of_halves.append(_run(function, half_arrays, half_sizes))
    joined_results = []
    # zip(*...) goes from the results of each half to the halves of each result.
    for output, half_results in zip(function.outputs, zip(*results_of_halves)):
        axis = output.shape.index(name)
        joined_results.append(np.concatenate(half_results, axis))
    return joined_results


def _sizes_of(x: Spec, sizes: _Sizes) -> list[int]:
    """Returns the size of each dimension of x in a test."""
    return [sizes[name] for name in x.shape.names]


def _draw_normal(seed: int, x: Spec, sizes: _Sizes) -> Any:
    """Returns an input of normally distributed numbers; for integer and boolean types, of
    0 and 1.

    Args:
      seed: the seed of the random numbers.
      x: the spec of the input.
      sizes: the size of each dimension in this test.
    """
    rng = np.random.default_rng(seed)
    shape = _sizes_of(x, sizes)
    if not is_floating(x.dtype) and not is_complex(x.dtype):
        # Small integers, since they may be indices.
        return rng.integers(0, 2, shape).astype(x.dtype)
    return rng.normal(size=shape).astype(tf.as_dtype(x.dtype).as_numpy_dtype)


def _draw_from_unit_interval(seed: int, x: Spec, sizes: _Sizes) -> Any:
    """Returns an input of numbers between 0 and 1, for functions that take only these. The
    arguments, and integer and boolean types, are as in `_draw_normal`.
    """
    y = _draw_normal(seed, x, sizes)
    is_integer_or_boolean = y.dtype.kind in "biu"
    if is_integer_or_boolean:
        return y
    return (0.1 + 0.8 * abs(np.tanh(y))).astype(y.dtype)


def _draw_positive_definite(seed: int, x: Spec, sizes: _Sizes) -> Any:
    """Returns an input of positive definite matrices, if the last two dimensions have equal
    sizes, for functions such as a Cholesky decomposition. The arguments, and all other
    inputs, are as in `_draw_normal`.
    """
    y = _draw_normal(seed, x, sizes)
    is_matrix = y.ndim > 1 and y.shape[-1] == y.shape[-2]
    if not is_matrix or y.dtype.kind in "biu":
        return y
    wide = y.astype("complex128" if y.dtype.kind == "c" else "float64")
    product = wide @ wide.swapaxes(-1, -2).conj()
    return (product + np.eye(y.shape[-1])).astype(y.dtype)


def _half_of(array: Any, x: Spec, name: str, half_index: int) -> Any:
    """Returns half 0 or 1 of the array of an input x along dimension `name`, or the
    complete array if x lacks the dimension.
    """
    if name not in x.shape:
        return array
    return np.split(array, 2, x.shape.index(name))[half_index]


class _RefusalError(Exception):
    """A function does not run on an input of a trial."""


class _WrongShapeError(_RefusalError):
    """A function gives results of other shapes or data types than it should."""


def _run(function: TriedFunction, arrays: Sequence[Any], sizes: _Sizes) -> list[Any]:
    """Returns the results of a function of arrays, as arrays.

    Raises:
      _RefusalError: it cannot run.
      _WrongShapeError: the results do not have the data types of `outputs` and the shapes
        that follow from `sizes`.
    """
    try:
        results = as_list(function.fn(*map(tf.constant, arrays)))
        ys = [tf.convert_to_tensor(y) for y in results]
    except Exception as error:
        # If fn also fails on the true input, its error is raised when the program runs.
        raise _RefusalError(_first_line(error)) from None
    expected = [(_sizes_of(spec, sizes), spec.dtype) for spec in function.outputs]
    specs = [(y.shape.as_list(), y.dtype.name) for y in ys]
    if specs != expected:
        shapes = " ".join(str(shape) for shape, _ in specs)
        raise _WrongShapeError(f"its results have the shapes {shapes}")
    return [y.numpy() for y in ys]


def _first_line(error: Exception) -> str:
    """Returns the first line of an error of TensorFlow, without the names of its ops."""
    message = str(error).strip().splitlines() or [""]
    text = re.sub(r"\{\{.*?\}\} ?| \[Op:.*", "", message[0])
    return f"{type(error).__name__}: {text}"


def as_list(ys: Any) -> list[Any]:
    """Returns the results of a function, one or several, as a list."""
    return list(ys) if isinstance(ys, (list, tuple)) else [ys]


def _has_nan(y: Any) -> bool:
    """Returns whether an array has an element that is NaN."""
    return y.dtype.kind in "fc" and bool(np.isnan(y).any())


def _are_close(y: Any, joined_halves: Any) -> bool:
    """Returns whether a result y and the joined results for halves agree within
    `_TOLERANCE`; integers, booleans and strings must be equal.
    """
    is_exact = y.dtype.kind in "biuOSU"  # boolean, integers, strings
    if is_exact:
        return bool(np.array_equal(y, joined_halves))
    tolerance = _TOLERANCE[min(8, dtype_bytes(y.dtype.name))]
    # Relative to the largest number, since small ones may be differences of large ones.
    magnitudes = np.abs(y[np.isfinite(y)].astype("complex128"))
    maximum = 0.0
    if magnitudes.size:
        maximum = magnitudes.max()
    wide_dtype = "float64"
    if y.dtype.kind == "c":  # complex
        wide_dtype = "complex128"
    close = np.allclose(
        y.astype(wide_dtype),
        joined_halves.astype(wide_dtype),
        rtol=tolerance,
        atol=tolerance * maximum,
        equal_nan=True,
    )
    return bool(close)
