"""Compares an imported function with TensorFlow's, on random numbers and one device.

The program is recorded for a mesh of one position and run operation by operation, as an
exported function is: no device of the user's mesh is needed, and nothing is compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import NumericsError, explain_error
from meshtf.function.function import Function
from meshtf.graph import Tensor
from meshtf.mesh import Mesh
from meshtf.partition import build
from meshtf.runtime.variable import Variable
from meshtf.saved_model.single_device import SingleDevice, unsharded_value
from meshtf.tensorflow_import.graph.program import Value
from meshtf.tensorflow_import.graph.state import path_of
from meshtf.tensorflow_import.named_program import NamedProgram
from meshtf.tensorflow_import.traced import TracedFunction

# A result's label and value, and TensorFlow's array of it.
_Result = tuple[str, Value, np.ndarray]

# Largest differences, as a share of the largest number of a result.
TOLERANCES = {"float64": 1e-6, "float32": 1e-3, "float16": 5e-2, "bfloat16": 0.1}


def check_outputs(
    named: NamedProgram, traced: TracedFunction, stored: Sequence[Variable]
) -> None:
    """Compares a program's results, and what it assigns to variables, with TensorFlow's.

    Programs that draw random numbers, which are others than TensorFlow's, are not compared. Where
    a result is not finite, as 0 / 0 of a mask without elements, TensorFlow's kernels differ among
    each other (some make 0 of NaN), so that positive numbers are tried.

    Args:
        named: The program.
        traced: TensorFlow's function.
        stored: The mesh's variables, in the order of the program's.

    Raises:
        NumericsError: A result differs; the first one is named.
    """
    program = named.program
    if any("Random" in node.kind for node in program.all_nodes()):
        return
    for positive in (False, True):
        arrays = _random_arrays(program.inputs, positive)
        results = _run_imported(named, stored, arrays)
        references = _run_tensorflow(named, traced, arrays)
        if all(map(_is_finite, [*results, *(x for _, _, x in references)])):
            break
    for result, (label, value, reference) in zip(results, references):
        _compare(label, value, result, reference)


def _is_finite(x: np.ndarray) -> bool:
    # NumPy knows no NaN of TensorFlow's small types.
    return x.dtype.kind in "biuSU" or bool(np.isfinite(x.astype("complex128")).all())


def _random_arrays(inputs: Iterable[Value], positive: bool) -> list[np.ndarray]:
    """Returns small arguments. Integers are 0 or 1, which are ids of every table; 1, if all
    numbers are to be positive.
    """
    rng = np.random.default_rng(0)
    arrays = []
    for value in inputs:
        if value.dtype.is_floating or value.dtype.is_complex:
            array = rng.normal(size=value.shape)
            array = np.abs(array) + 0.5 if positive else array
        else:
            array = rng.integers(int(positive), 2, size=value.shape)
        arrays.append(np.asarray(array).astype(value.dtype.as_numpy_dtype))
    return arrays


def _run_imported(
    named: NamedProgram, stored: Sequence[Variable], arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns what the program computes: outputs, then new values of variables."""
    program, mesh = named.program, Mesh("")
    variables = dict(zip(program.on_entry, stored))

    def body(inputs: list[Tensor]) -> list[Tensor]:
        outputs, updates = named.lower(mesh, variables).evaluate(inputs)
        return [*outputs, *updates.values()]

    shapes = [named.shape_of(value) for value in program.inputs]
    sizes = [named.sizes_of(value) for value in program.inputs]
    inputs = [x.reshape(size) for x, size in zip(arrays, sizes)]
    names: Any = {"inputs": shapes}
    function = Function(body, mesh=mesh, names=names)
    recording = function.record_on(mesh, (inputs,), {})
    recorded = recording.recorded
    planned = build(recorded.nodes, recorded.results, mesh)
    values: dict[Any, Any] = dict(zip(recording.arguments, inputs))
    source_of = {
        id(variable): value.variable
        for variable, value in zip(stored, program.on_entry.values())
    }
    for store in planned.read_stores:
        if store.kind == "number":
            continue
        if id(store) in source_of:
            array = np.asarray(source_of[id(store)].numpy())
            values[store] = array.reshape(store.spec.shape.sizes)
        elif store not in values:
            values[store] = unsharded_value(store)
    return [np.asarray(x) for x in SingleDevice(planned, values).run()]


def _run_tensorflow(
    named: NamedProgram, traced: TracedFunction, arrays: Sequence[np.ndarray]
) -> list[_Result]:
    """Returns TensorFlow's results, then new values of variables, which get their old values
    back.
    """
    program = named.program
    variables = [program.on_entry[key].variable for key in program.updates]
    before = [np.asarray(v.numpy()) for v in variables]
    tensors = [tf.constant(x, v.dtype) for x, v in zip(arrays, program.inputs)]
    results = [
        (f"the result {path}".rstrip(), leaf.numpy())
        for path, leaf in labelled(traced.concrete(tensors), "")
        if leaf is not None
    ]
    results += [(f"the new value of {path_of(v)}", v.numpy()) for v in variables]
    for variable, array in zip(variables, before):
        variable.assign(array)
    values = [v for v in program.outputs if v.is_tensor]
    values += program.updates.values()
    return [(label, v, np.asarray(x)) for (label, x), v in zip(results, values)]


def labelled(nesting: Any, label: str) -> Iterator[tuple[str, Any]]:
    """Yields each leaf of a result with what errors call it, in TensorFlow's order."""
    if isinstance(nesting, Mapping):
        for key in sorted(nesting):
            yield from labelled(nesting[key], f"{label}[{key!r}]")
    elif isinstance(nesting, (list, tuple)):
        for k, item in enumerate(nesting):
            yield from labelled(item, f"{label}[{k}]")
    else:
        yield label, nesting


def _compare(
    label: str, value: Value, result: np.ndarray, reference: np.ndarray
) -> None:
    """Raises NumericsError if a result differs by more than rounding. Warns of elements that are
    NaN in TensorFlow only.
    """
    result = result.reshape(reference.shape)
    is_unknown = (reference != reference) & (result == result)
    if np.any(is_unknown):
        warnings.warn(
            f"{label} of the imported function is NaN in TensorFlow, for all random numbers that "
            f"were tried, in {np.sum(is_unknown)} of {reference.size} elements, which were not "
            "compared. Compare it on numbers of your own.",
            stacklevel=2,
        )
        result = np.where(is_unknown, reference, result)
    difference = difference_of(value.dtype.name, result, reference)
    if difference:
        raise NumericsError(
            explain_error(
                f"{label} of the imported function differs from TensorFlow's.",
                difference=difference,
                node=value.path or "a constant",
                way_out="Rounding may do this to functions that are not continuous; then "
                "write check=False. Otherwise please report it: the import of an operation "
                "is wrong.",
            )
        )


def difference_of(dtype: str, result: np.ndarray, reference: np.ndarray) -> str:
    """Returns how far a result is off, in words; "" if it is equal but for rounding."""
    x = result.reshape(reference.shape)
    if dtype not in TOLERANCES:
        num_wrong = np.sum(x != reference)
        return f"{num_wrong} of {x.size} elements" if num_wrong else ""
    x, y = x.astype("float64"), reference.astype("float64")
    equal = (x == y) | (np.isnan(x) & np.isnan(y))
    num_wrong = np.sum(np.isnan(x) != np.isnan(y))
    if num_wrong:
        return f"{num_wrong} of {x.size} elements are NaN in only one of the two"
    off = float(np.max(np.where(equal, 0, np.abs(x - y)), initial=0))
    scale = float(np.max(np.abs(y[np.isfinite(y)]), initial=0))
    if off <= TOLERANCES[dtype] * max(scale, 1e-6):
        return ""
    return f"by {off:.2g}; its largest number is {scale:.2g}"
