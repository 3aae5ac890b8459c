"""What a program tells the world outside while it runs: printed values, and summaries.

    loss = mtf.print(loss, "loss")                       # loss float32 [] 0.693147182
    mtf.scalar_summary("loss", loss, step)               # to the tf.summary writer in force

Global tensors are printed, once for all devices, in the order of the code, also where
nothing else needs them. In a mtf.function this happens in every run, not only when it
is traced.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import (
    HostOp,
    Spec,
    Tensor,
    apply_all,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import is_complex
from meshtf.names.arguments import as_text

_METADATA = tf.compat.v1.SummaryMetadata(  # what TensorBoard knows a scalar by
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
    data_class="DATA_CLASS_SCALAR",
)


class Print(HostOp):
    """Prints the input."""

    message: str
    summarize: int

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return ()

    def run_on_host(self, *xs: Any) -> None:
        x = tf.strings.as_string(xs[0]) if xs[0].dtype.is_complex else xs[0]
        tf.print(self.message, x, summarize=self.summarize, output_stream=sys.stderr)


class ScalarSummary(HostOp):
    """Writes a number to the tf.summary writer in force; the step is the second input,
    or given.
    """

    name: str
    step: int | None = None

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        for x, what in zip(xs, (f"summary {self.name!r}", "its step")):
            if len(x.shape):
                raise ShapeError(
                    explain_error(
                        f"{what} is a {x.shape!r}, not a single number.",
                        way_out="Reduce it first, as in mtf.reduce_mean(x).",
                    )
                )
        if is_complex(xs[0].dtype):
            raise DTypeError(
                explain_error(
                    f"summary {self.name!r} is complex.",
                    way_out="Write abs(x), mtf.real(x) or mtf.imag(x).",
                )
            )
        return ()

    def run_on_host(self, *xs: Any) -> None:
        written = tf.get_static_value(tf.summary.should_record_summaries())
        if written is not None and not written:
            warnings.warn(
                explain_error(
                    f"summary {self.name!r} is written nowhere: no writer is in force.",
                    way_out="with tf.summary.create_file_writer(folder).as_default(): "
                    "around the first call of the mtf.function.",
                ),
                stacklevel=2,
            )
            return
        step = tf.cast(xs[1] if len(xs) > 1 else self.step, tf.int64)
        tf.summary.write(
            self.name, tf.cast(xs[0], tf.float32), step=step, metadata=_METADATA
        )


def print(x: Any, message: str = "", summarize: int = 3) -> Tensor:
    """Returns x, and prints it to standard error in each run, with its type and names.

    Args:
      x: a tensor; it is printed as a whole, for which its slices are gathered.
      message: what stands before it.
      summarize: how many first and last rows of each dimension are printed; -1: all.
    """
    x = as_tensor("x", x)
    as_text("message", message)
    apply_all(Print(f"{message} {x.dtype} {x.shape!r}".lstrip(), summarize), x)
    return x


def scalar_summary(name: str, x: Any, step: Any) -> Tensor:
    """Returns x, and writes it to the tf.summary writer in force, as TensorBoard reads
    it.

    In a mtf.function that is the writer in force at its first call, as in a
    tf.function. Without one there is a warning, and nothing is written.

    Args:
      name: the name of the curve.
      x: a scalar.
      step: where on the curve: a number, or a tensor or variable of one; in a
        mtf.function a tensor, since a Python number is that of the first call.

    Raises:
      ShapeError: x or the step is no scalar.
      DTypeError: x is complex.
    """
    x = as_tensor("x", x)
    if isinstance(step, int):
        apply_all(ScalarSummary(name, step), x)
    else:
        apply_all(ScalarSummary(name), x, step)
    return x
