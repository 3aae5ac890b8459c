"""Tests on a small input whether a function may be run shard by shard.

    mtf.slicewise(tf.nn.softmax, [x], shardable="d")        # error: each half would sum to 1

A function is tested at its first call, outside of any program, by TensorFlow on a CPU. Its
results for two halves of a small input, concatenated, must equal its result for the complete
input. If the function cannot run on so small an input, the dimensions that are not sharded
get their full sizes in a second attempt, and all dimensions do in a third. If it runs on a
complete input and on no half of it, the dimension must not be sharded. If it runs on no
input, it is not tested, and a warning says so.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import (
    LayoutWarning,
    PlanError,
    ShapeError,
    explain_error,
)
from meshtf.graph import Source, Spec
from meshtf.mesh.axes import caller_stacklevel
from meshtf.names import nested
from meshtf.ops.common.checks import did_you_mean
from meshtf.ops.slicewise.trial import (
    Trial,
    TriedFunction,
    as_list,
    candidate_sizes,
    run_trial,
)

_MAX_PASSED_KEYS = 1000  # the largest number of entries of `_passed_keys`
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
            known_names = [known for x in inputs for known in x.shape.names]
            suggestion = did_you_mean(name, known_names)
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
    of its result, or if it takes no halves. A function that passes is not tested again for
    the same arguments.

    Args:
      fn: the function, of TensorFlow tensors.
      inputs: the specs of all its inputs.
      outputs: the specs of all its outputs.
      dims: the dimensions along which inputs are halved, one after another.
    """
    key = (_function_key(fn), tuple(inputs), tuple(outputs), tuple(dims))
    if key in _passed_keys:
        return
    facts = {
        "function": getattr(fn, "__name__", repr(fn)),
        "inputs": " ".join(repr(x.shape) for x in inputs),
        "source": Source.of_caller(),
    }
    trials = []
    function = TriedFunction(fn, inputs, outputs, dims)
    for sizes in candidate_sizes(function):
        # init_scope: runs at once, even while a tf.function is traced.
        with tf.init_scope(), tf.device("CPU:0"):
            trials.append(run_trial(function, sizes))
        if trials[-1].completed:
            break
    _raise_for(trials, facts)
    _add_passed_key(key)


def _add_passed_key(key: Any) -> None:
    """Adds the key of a function that passed."""
    while len(_passed_keys) >= _MAX_PASSED_KEYS:
        oldest = next(iter(_passed_keys))
        del _passed_keys[oldest]
    _passed_keys[key] = None


def _raise_for(trials: Sequence[Trial], facts: dict[str, Any]) -> None:
    """Raises PlanError if a trial found a dimension that must not be sharded, and warns if the
    function could not run at all.

    Args:
      trials: the trials, of which the last one may be complete.
      facts: the facts for the error.
    """
    last = trials[-1]
    if last.completed and last.dim:
        raise PlanError(
            explain_error(
                f'slicewise gets other numbers slice by slice along "{last.dim}": on a '
                "small input, halves of it do not give halves of the result.",
                **facts,
                way_out=f'Take "{last.dim}" out of `shardable`: fn then gets all of it. '
                "If the results may differ, pass check=False.",
            )
        )
    if last.completed:
        return
    refusals = [trial for trial in trials if trial.refusal]
    for trial in refusals:
        if trial.dim:
            raise PlanError(
                explain_error(
                    f'slicewise cannot run slice by slice along "{trial.dim}": the '
                    "function takes a small input, but no half of it.",
                    **facts,
                    **{"the function says": trial.refusal},
                    way_out=f'Take "{trial.dim}" out of `shardable`: fn then gets all of '
                    "it. If it takes the shards of the true input, pass check=False.",
                )
            )
    if refusals:
        warnings.warn(
            explain_error(
                "slicewise could not try whether the function may run slice by slice: it "
                "takes none of the small inputs of the trial.",
                **facts,
                **{"the function says": refusals[-1].refusal},
                way_out="Pass check=False if `shardable` is right.",
            ),
            LayoutWarning,
            stacklevel=caller_stacklevel(),
        )


def check_result_specs(
    fn: Callable[..., Any],
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    wrong_result: Callable[..., str],
) -> None:
    """Raises PlanError if a function's results have other shapes or data types than they
    should have. The function is traced, and does not run.

    Args:
      fn: the function, of TensorFlow tensors.
      inputs: the specs of all its inputs.
      outputs: the specs that its outputs should have.
      wrong_result: the method of `Slicewise`.
    """
    key = (_function_key(fn), tuple(inputs), tuple(outputs))
    if key in _passed_keys:
        return
    arguments = [tf.TensorSpec(x.shape.sizes, x.dtype) for x in inputs]
    try:
        with tf.init_scope():
            function = tf.function(lambda *xs: as_list(fn(*xs)), autograph=False)
            ys = function.get_concrete_function(*arguments).structured_outputs
        specs = [(y.shape.as_list(), y.dtype.name) for y in ys]
    except Exception:
        # If fn fails on its true arguments as well, the program says so when it runs.
        return
    expected = [(list(y.shape.sizes), y.dtype) for y in outputs]
    is_known = all(None not in sizes for sizes, _ in specs)
    # Another number of results is an error when the program is compiled.
    if is_known and len(specs) == len(expected) and specs != expected:
        raise PlanError(
            wrong_result(
                ", ".join(f"{dtype} {sizes}" for sizes, dtype in specs),
                ", ".join(f"{y.dtype} {y.shape!r}" for y in outputs),
                inputs=" ".join(repr(x.shape) for x in inputs),
                source=str(Source.of_caller()),
            )
        )
    _add_passed_key(key)


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
