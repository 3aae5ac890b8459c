"""Batches of which only shapes and types are known."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from meshtf.errors import ArgumentError, ShapeError, explain_error
from meshtf.tensorflow_import.check import labelled

_BATCH, _LENGTH = 8, 16  # sizes where a model's inputs have none


def specs_of(batch: Any) -> Any:
    """Returns the shapes and types of a batch, of arrays as Keras' `fit` would pass them.

    Raises:
        ArgumentError: It has something else than arrays and their specs.
        ShapeError: A size is not known, as in the `element_spec` of a dataset.
    """

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

    specs = tf.nest.map_structure(spec, batch)
    for label, x in labelled(specs, "batch"):
        if x is not None:
            _check_sizes(label, x.shape)
    return specs


def _check_sizes(label: str, shape: tf.TensorShape) -> None:
    """Raises ShapeError for a shape with a size that is not known."""
    sizes = shape.as_list() if shape.rank is not None else None
    if sizes is None or None in sizes:
        axes = "the number of its axes"
        if sizes is not None:
            unknown = [str(k) for k, size in enumerate(sizes) if size is None]
            axes = f"the size of its axis {', '.join(unknown)}"
        raise ShapeError(
            explain_error(
                f"{label} does not say {axes}, which costs depend on.",
                shape="unknown" if sizes is None else sizes,
                way_out="Give numbers, as in tf.TensorSpec([64, 16], tf.int32), or a batch; "
                "`dataset.batch(64, drop_remainder=True)` tells the first one.",
            )
        )


def check_labels(method: str, batch: Any, error: Exception) -> None:
    """Raises a clear error if a step failed for a batch without labels, which it may need.

    Args:
        method: The model's method.
        batch: The batch.
        error: What the step raised.

    Raises:
        ArgumentError: The batch has no labels.
    """
    labels = keras.utils.unpack_x_y_sample_weight(batch)[1]
    if method != "predict_step" and labels is None:
        raise ArgumentError(
            explain_error(
                f"{method} cannot be traced for a batch without labels.",
                error=error,
                way_out="Give a batch as the dataset yields it, with labels: (x, y). Or ask "
                'for explain(batch, method="predict_step").',
            )
        ) from error


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
                way_out="Call `fit` or `predict`; or call the model on a batch, which builds "
                "it, and ask for `explain(batch)`.",
            )
        )

    def spec(x: Any) -> tf.TensorSpec:
        sizes = [_BATCH, *(size or _LENGTH for size in x.shape[1:])]
        return tf.TensorSpec(sizes, tf.as_dtype(x.dtype))

    structure = getattr(model, "input", inputs)
    return (tf.nest.map_structure(spec, structure),)
