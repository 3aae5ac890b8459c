"""Tests on a small input whether a function may be run shard by shard.

    mtf.slicewise(tf.nn.softmax, [x], shardable="d")        # error: each half would sum to 1

A function is tested at its first call, outside of any program, by TensorFlow on a CPU. Its
results for two halves of a small input, concatenated, must equal its result for the complete
input. If the function cannot run on so small an input, the dimensions that are not sharded
get their full sizes in a second attempt, and all dimensions do in a third. If the function
still cannot run, it is not tested.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import PlanError, ShapeError, explain_error, near_misses
from meshtf.graph import Source, Spec
from meshtf.names import dtype_bytes, is_complex, is_floating, nested

_SMALL_SIZE = 3  # the size of a dimension that is not sharded
_SMALL_HALF = 2  # the size of each half of a sharded dimension
_MAX_ELEMENTS = 2**20  # the largest number of elements of the test's inputs
_MAX_PASSED_KEYS = 1000  # the largest number of entries of `_passed_keys`
# Relative tolerance by the number of bytes of an element: for halves, a function may add up
# terms in another order.
_TOLERANCE = {2: 0.05, 4: 1e-3, 8: 1e-3}

_Sizes = dict[str, int]  # the size of each dimension in a test
_EMPTY_CELL = types.CellType()  # the closure cell of a variable without a value
# The keys of functions that passed, the oldest first: a dict serves as an ordered set.
_passed_keys: dict[Any, None] = {}


def check_names(
    dims: Sequence[str], inputs: Sequence[Spec], outputs: Sequence[Spec]
) -> None:
    """Raises ShapeError if a name of `shardable` is in no input, or an output lacks it.

    Args:
      dims: the dimensions named by `shardable`.
      inputs: the specs of all inputs of the function.
      outputs: the specs of all its outputs.
    """
    facts = {
        "inputs": " ".join(repr(x.shape) for x in inputs),
        "outputs": " ".join(repr(y.shape) for y in outputs),
        "from": Source.of_caller(),
    }
    for name in dims:
        if not any(name in x.shape for x in inputs):
            known_names: list[str] = []
            for x in inputs:
                known_names.extend(x.shape.names)
            close = near_misses(name, known_names)
            suggestion = ""
            if close:
                suggestion = f" Did you mean {close}?"
            raise ShapeError(
                explain_error(
                    f'no input of slicewise has the dimension "{name}" of `shardable`.'
                    f"{suggestion}",
                    **facts,
                    way_out="Name dimensions of the inputs.",
                )
            )
        if not all(name in y.shape for y in outputs):
            raise ShapeError(
                explain_error(
                    f'slicewise cannot run slice by slice along "{name}", which an '
                    "output lacks.",
                    **facts,
                    way_out="Take it out of `shardable`: fn then gets all of it.",
                )
            )


def check_slices(
    fn: Callable[..., Any],
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    dims: Sequence[str],
) -> None:
    """Raises PlanError if the results of a function for halves of its inputs are not halves
    of its result. A function that passes is not tested again for the same arguments.

    Args:
      fn: the function, of TensorFlow tensors.
      inputs: the specs of all its inputs.
      outputs: the specs of all its outputs.
      dims: the dimensions along which inputs are halved, one after another.
    """
    key = (_function_key(fn), tuple(inputs), tuple(outputs), tuple(dims))
    if key in _passed_keys:
        return
    for sizes in _candidate_sizes(inputs, outputs, dims):
        # init_scope: runs at once, even while a tf.function is traced.
        with tf.init_scope(), tf.device("CPU:0"):
            mismatch = _first_mismatch(fn, inputs, outputs, dims, sizes)
        could_run = mismatch is not None
        if could_run:
            break
    if mismatch:
        raise PlanError(
            explain_error(
                f'slicewise gets other numbers slice by slice along "{mismatch}": on a '
                "small input, halves of it do not give halves of the result.",
                function=getattr(fn, "__name__", repr(fn)),
                inputs=" ".join(repr(x.shape) for x in inputs),
                source=Source.of_caller(),
                way_out=f'Take "{mismatch}" out of `shardable`: fn then gets all of it. If the '
                "results may differ, pass check=False.",
            )
        )
    while len(_passed_keys) >= _MAX_PASSED_KEYS:
        oldest = next(iter(_passed_keys))
        del _passed_keys[oldest]
    _passed_keys[key] = None


def _function_key(fn: Any, depth: int = 3) -> Any:
    """Returns a key that identifies a function, without references to large objects.

    Each evaluation of a lambda gives a new object, but its code is the same. Many
    functions of TensorFlow share one wrapper's code, and differ by the function in its
    closure, so closures and defaults are part of the key, up to `depth` levels.

    Args:
      fn: the function; in recursive calls a value in its closure or a default value, which
        may be of any type.
      depth: the number of levels.
    """
    if isinstance(fn, (bool, int, float, str)):
        return nested.exact(fn)
    fn = getattr(fn, "__func__", fn)  # the function of a bound method
    code = getattr(fn, "__code__", None)
    if code is None or depth == 0:
        return type(fn), getattr(fn, "__qualname__", "")
    values = []
    for cell in fn.__closure__ or ():
        if cell != _EMPTY_CELL:
            values.append(cell.cell_contents)
    values.extend(fn.__defaults__ or ())
    return (code, *(_function_key(value, depth - 1) for value in values))


def _candidate_sizes(
    inputs: Sequence[Spec], outputs: Sequence[Spec], dims: Sequence[str]
) -> Iterator[_Sizes]:
    """Yields the sizes of all dimensions to test with, in the order of attempts.

    First all sizes are small; then dimensions that are not sharded have their full sizes;
    then all dimensions have.
    """
    full_sizes = {}
    for spec in (*inputs, *outputs):
        full_sizes.update({dim.name: dim.size for dim in spec.shape})
    small_sizes = {name: min(size, _SMALL_SIZE) for name, size in full_sizes.items()}
    sizes_of_sharded_dims = dict.fromkeys(dims, 2 * _SMALL_HALF)
    yield small_sizes | sizes_of_sharded_dims
    yield full_sizes | sizes_of_sharded_dims
    yield full_sizes


def _first_mismatch(
    fn: Callable[..., Any],
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    dims: Sequence[str],
    sizes: _Sizes,
) -> str | None:
    """Returns the first of `dims` along which the results for halves differ from the
    result for the complete input.

    Args:
      fn, inputs, outputs, dims: the arguments of `check_slices`.
      sizes: the size of each dimension in this test.

    Returns:
      The name of the dimension. "" if there is none; None if the function cannot run on
      inputs of these sizes, or they have too many elements.
    """
    num_elements = sum(int(np.prod(_sizes_of(x, sizes))) for x in inputs)
    if num_elements > _MAX_ELEMENTS:
        return None
    for draw in (_draw_normal, _draw_from_unit_interval):
        arrays = [draw(seed=i, x=x, sizes=sizes) for i, x in enumerate(inputs)]
        expected = _run(fn, arrays, outputs, sizes)
        if expected is None:
            return None
        for name in dims:
            has_halves = sizes[name] >= 2 and sizes[name] % 2 == 0
            if not has_halves:
                continue
            joined_halves = _run_halves(fn, arrays, inputs, outputs, name, sizes)
            if joined_halves is None:
                return None
            if not all(map(_are_close, expected, joined_halves)):
                return name
    return ""


def _run_halves(
    fn: Callable[..., Any],
    arrays: Sequence[Any],
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    name: str,
    sizes: _Sizes,
) -> list[Any] | None:
    """Returns each result of a function for the two halves of its inputs, concatenated;
    None if the function cannot run on a half.

    Args:
      fn, inputs, outputs: the arguments of `check_slices`.
      arrays: the complete inputs, of `sizes`.
      name: the dimension along which inputs are halved and results are concatenated.
      sizes: the size of each dimension in this test.
    """
    half_sizes = sizes | {name: sizes[name] // 2}
    results_of_halves = []
    for half_index in range(2):
        half_arrays = [
            _half_of(array, x, name, half_index) for array, x in zip(arrays, inputs)
        ]
        results = _run(fn, half_arrays, outputs, half_sizes)
        if results is None:
            return None
        results_of_halves.append(results)
    joined_results = []
    # zip(*...) goes from the results of each half to the halves of each result.
    for output, half_results in zip(outputs, zip(*results_of_halves)):
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


def _half_of(array: Any, x: Spec, name: str, half_index: int) -> Any:
    """Returns half 0 or 1 of the array of an input x along dimension `name`, or the
    complete array if x lacks the dimension.
    """
    if name not in x.shape:
        return array
    return np.split(array, 2, x.shape.index(name))[half_index]


def _run(
    fn: Callable[..., Any],
    arrays: Sequence[Any],
    outputs: Sequence[Spec],
    sizes: _Sizes,
) -> list[Any] | None:
    """Returns the results of fn(*arrays) as arrays; None if fn cannot run, or if the results
    do not have the data types of `outputs` and the shapes that follow from `sizes`.
    """
    try:
        ys = fn(*map(tf.constant, arrays))
        if not isinstance(ys, (list, tuple)):
            ys = [ys]
        ys = [tf.convert_to_tensor(y) for y in ys]
        expected = [(_sizes_of(spec, sizes), spec.dtype) for spec in outputs]
        if [(y.shape, y.dtype.name) for y in ys] != expected:
            return None
        return [y.numpy() for y in ys]
    except Exception:
        # If fn also fails on the true input, its error is raised when the program runs.
        return None


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
