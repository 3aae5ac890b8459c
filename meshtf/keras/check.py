"""Compares a model's predictions on a mesh with those on one device."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from meshtf.errors import NumericsError, explain_error
from meshtf.tensorflow_import.check import difference_of, labelled


def check_predictions(model: Any, batch: Any) -> None:
    """Compares predictions for a batch, `x` or `(x, y)`.

    Raises:
        NumericsError: A prediction differs; the first one is named.
    """
    x = keras.utils.unpack_x_y_sample_weight(batch)[0]
    results = tf.nest.flatten(model.predict_on_batch(x))
    references = labelled(model(x, training=False), "")
    for result, (label, tensor) in zip(results, references):
        reference = np.asarray(tensor)
        difference = difference_of(tensor.dtype.name, np.asarray(result), reference)
        if difference:
            raise NumericsError(
                explain_error(
                    f"the prediction{label} of {model.name} on the mesh differs from that on "
                    "one device.",
                    difference=difference,
                    way_out="Models that draw random numbers differ always, those with a "
                    "choice of the largest by rounding. Otherwise please report it: the "
                    "import of an operation is wrong.",
                )
            )
