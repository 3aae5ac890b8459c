"""Mixed precision: a layer computes in the type of its input, and its variables stay as
they are.

    x = mtf.cast(x, "bfloat16")
    y = Dense(mesh, "d_model:512", "d_ff:2048")(x)      # bfloat16, by a kernel of float32

A variable is cast where it is used. That is done on its slices, so half as many bytes
are gathered of one that is cut, and its gradient comes back through the cast in the
variable's own type.
"""

from __future__ import annotations

from typing import Any

from meshtf.graph import Tensor
from meshtf.names import is_floating
from meshtf.ops.elementwise.where_cast_clip import cast


def in_type_of(x: Tensor, variable: Any) -> Any:
    """Returns a variable, or what comes beside x, in the type of x, if both are of
    floats.
    """
    mixed = (
        x.dtype != variable.dtype
        and is_floating(x.dtype)
        and is_floating(variable.dtype)
    )
    return cast(variable, x.dtype) if mixed else variable
