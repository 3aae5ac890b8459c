"""Output of a program while it runs: printed values, and summaries for TensorBoard.

    loss = mtf.print(loss, "loss")                       # loss float32 [] 0.693147182
    mtf.scalar_summary("loss", loss, step)               # to the default tf.summary writer

Global tensors are printed once, not by each device, in the order of the code, even if nothing
else uses them. In a mtf.function they are printed in every call, not only when it is traced.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import HostOp, Spec, Specs, Tensor, apply_all
from meshtf.graph.arguments import as_tensor
from meshtf.names import is_complex
from meshtf.names.arguments import as_text


class Print(HostOp):
    """Prints the input to standard error, after a message; a `HostOp` runs once, on the host,
    with the global input.

    Attributes:
      message: the text before the values.
      summarize: the number of elements that are printed at the start and at the end of each
        dimension; -1: all.
    """

    message: str
    summarize: int

    def output_specs(self, *xs: Spec) -> Specs:
        return ()

    def run_on_host(self, *xs: Any) -> None:
        (x,) = xs
        if x.dtype.is_complex:
            x = tf.strings.as_string(x)
        tf.print(self.message, x, summarize=self.summarize, output_stream=sys.stderr)


class ScalarSummary(HostOp):
    """Writes a scalar to the default tf.summary writer.

    The inputs are the scalar and, if the attribute `step` is None, the step.

    Attributes:
      name: the name of the curve.
      step: the training step.
    """

    name: str
    step: int | None = None

    def output_specs(self, *xs: Spec) -> Specs:
        labels = (f"summary {self.name!r}", "its step")
        for x, label in zip(xs, labels):
            if len(x.shape):
                raise ShapeError(
                    explain_error(
                        f"{label} is a {x.shape!r}, not a single number.",
                        way_out="Reduce it first, as in mtf.reduce_mean(x).",
                    )
                )
        if is_complex(xs[0].dtype):
            raise DTypeError(
                explain_error(
                    f"summary {self.name!r} is complex.",
                    way_out="Write abs(x), mtf.math.real(x) or mtf.math.imag(x).",
                )
            )
        return ()

    def run_on_host(self, *xs: Any) -> None:
        is_recorded = tf.get_static_value(tf.summary.should_record_summaries())
        if is_recorded is not None and not is_recorded:
            warnings.warn(
                explain_error(
                    f"summary {self.name!r} is not written: there is no default writer.",
                    way_out="with tf.summary.create_file_writer(folder).as_default(): "
                    "around the first call of the mtf.function.",
                ),
                stacklevel=2,
            )
            return
        if self.step is None:
            value, step = xs
        else:
            (value,) = xs
            step = self.step
        # The metadata by which TensorBoard recognizes the summary of a scalar.
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
            data_class="DATA_CLASS_SCALAR",
        )
        tf.summary.write(
            self.name,
            tf.cast(value, tf.float32),
            step=tf.cast(step, tf.int64),
            metadata=metadata,
        )


def print(x: Any, message: str = "", summarize: int = 3) -> Tensor:
    """Returns x [...], and prints it to standard error in each run, with its data type and
    shape.

    Args:
      x: a tensor. Its shards are gathered, and the global tensor is printed.
      message: the text before the tensor.
      summarize: the number of elements that are printed at the start and at the end of each
        dimension; -1: all.
    """
    x = as_tensor("x", x)
    message = as_text("message", message)
    text = f"{message} {x.dtype} {x.shape!r}".lstrip()
    apply_all(Print(text, summarize), x)  # without outputs
    return x


def scalar_summary(name: str, x: Any, step: Any) -> Tensor:
    """Returns x [], and writes it to the default tf.summary writer, for TensorBoard.

    In a mtf.function, as in a tf.function, this is the default writer at the first call.
    Without a default writer there is a warning, and nothing is written.

    Args:
      name: the name of the curve.
      x: a scalar.
      step: the training step: an integer, or a scalar tensor or variable. In a
        mtf.function it must be a tensor or variable, since a Python integer would keep the
        value that it has in the first call.

    Raises:
      ShapeError: x or the step is not a scalar.
      DTypeError: x is complex.
    """
    x = as_tensor("x", x)
    if isinstance(step, int):
        apply_all(ScalarSummary(name, step), x)
    else:
        apply_all(ScalarSummary(name), x, step)
    return x
