"""What a Keras model's steps would do on a mesh, without running them."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from meshtf.errors import ArgumentError, explain_error
from meshtf.forecast import Forecast
from meshtf.function.compiled_forecast import CompiledForecast
from meshtf.function.function import Function
from meshtf.function.without_running import compile_for, explain
from meshtf.keras.placed_variables import PlacedVariables
from meshtf.layout_search import SearchResult, search
from meshtf.mesh import Layout, Mesh
from meshtf.tensorflow_import.dimensions.table import DimensionTable, dimension_table
from meshtf.tensorflow_import.named_program import NamedProgram
from meshtf.tensorflow_import.without_running import (
    abstract_mesh,
    arguments_of,
    builder,
)

_BATCH, _LENGTH = 8, 16  # sizes where a model's inputs have none


def explain_step(
    named: NamedProgram, placed: PlacedVariables, method: str, **settings: Any
) -> Forecast:
    """Returns the forecast of a step; `settings` are those of `mtf.explain`."""
    if not placed.mesh.abstract:
        settings.setdefault("runtime", "spmd" if placed.mesh.live else "placed")
    step = _function(named, placed, method)
    return explain(step, arguments_of(named), **settings)


def compile_step_for(
    named: NamedProgram, placed: PlacedVariables, method: str, topology: str
) -> CompiledForecast:
    """Returns what XLA makes of a step for devices that need not be there."""
    step = _function(named, placed, method)
    return compile_for(step, arguments_of(named), topology=topology)


def search_step(
    named: NamedProgram, placed: PlacedVariables, method: str, **settings: Any
) -> SearchResult:
    """Returns the best layouts of a step; `settings` are those of `mtf.search`."""

    def layout_of(mesh: Mesh, key: int) -> Layout | None:
        return placed.layout_by_region(mesh, named.program.on_entry[key])

    build = builder(named, method, layout_of)
    return search(build, arguments_of(named), **settings)


def table_of_step(
    named: NamedProgram, placed: PlacedVariables, input_names: Any
) -> DimensionTable:
    """Returns the table of a step's dimensions."""
    if named.lowering is None:
        step = _function(named, placed, "step")
        step.record_call((arguments_of(named),), {})
    return dimension_table(named, placed.mesh, input_names)


def specs_of(batch: Any) -> Any:
    """Returns the shapes and types of a batch, of arrays as Keras' `fit` would pass them."""

    def spec(x: Any) -> Any:
        if x is None:
            return None
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise ArgumentError(
                f"a batch consists of arrays, or of what has a shape and a dtype, such as "
                f"tf.TensorSpec, not of {type(x).__name__}"
            )
        dtype = tf.as_dtype(x.dtype)
        if isinstance(x, np.ndarray) and dtype.is_floating:
            dtype = tf.as_dtype(keras.config.floatx())
        return tf.TensorSpec(x.shape, dtype)

    return tf.nest.map_structure(spec, batch)


def inputs_of(model: Any) -> Any:
    """Returns specs of a model's inputs: where they have no size, batches of 8, lengths of 16.

    Raises:
        ArgumentError: The model does not say what it takes.
    """
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise ArgumentError(
            explain_error(
                f"{type(model).__name__} does not say which inputs it takes, so its "
                "dimensions are known only after a step.",
                way_out="Ask for `explain(batch)` first, or call `fit` or `predict`.",
            )
        )

    def spec(x: Any) -> tf.TensorSpec:
        sizes = [_BATCH, *(size or _LENGTH for size in x.shape[1:])]
        return tf.TensorSpec(sizes, tf.as_dtype(x.dtype))

    structure = getattr(model, "input", inputs)
    return (tf.nest.map_structure(spec, structure),)


def _function(
    named: NamedProgram, placed: PlacedVariables, method: str
) -> Function[..., Any]:
    mesh = abstract_mesh(placed.mesh)
    layout_of = functools.partial(_layout_of, named, placed)
    return builder(named, method, layout_of)(mesh)


def _layout_of(
    named: NamedProgram, placed: PlacedVariables, mesh: Mesh, key: int
) -> Layout | None:
    return placed.layout_of(mesh, named, named.program.on_entry[key])
