"""Mixed precision: a layer computes in the data type of its input, whatever the data type
of its variables.

    x = mtf.cast(x, "bfloat16")
    y = Dense(mesh, "d_model:512", "d_ff:2048")(x)      # bfloat16; the kernel is float32

A variable is cast where it is used. Each device casts its shard before shards are
gathered, which halves the bytes that are exchanged. The gradient of the cast has the type
of the variable.
"""

from __future__ import annotations

from typing import Any

from meshtf.graph import Tensor
from meshtf.names import is_floating
from meshtf.ops.elementwise.where_cast_clip import cast


def cast_like(variable: Any, x: Tensor) -> Any:
    """Returns a variable or tensor [...] cast to the data type of x, if both are floats."""
    both_floating = is_floating(x.dtype) and is_floating(variable.dtype)
    if both_floating and x.dtype != variable.dtype:
        return cast(variable, x.dtype)
    return variable


def add_bias(y: Tensor, bias: Any) -> Tensor:
    """Returns y [...] plus a variable, cast like y; y itself if the bias is None."""
    return y if bias is None else y + cast_like(bias, y)
