"""The data types that functions of two tensors take and give.

result_dtype("less", "float32")      # "bool"
result_dtype("divide", "int32")      # DTypeError
"""

from __future__ import annotations

from meshtf.errors import DTypeError, explain_error
from meshtf.names import has_gradient, is_complex

COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
# The functions that also take complex numbers.
TAKES_COMPLEX = (
    "add subtract multiply divide pow equal not_equal divide_no_nan multiply_no_nan xdivy"
).split()
# The functions that do not take integers.
_FLOATS_ONLY = ("divide", "atan2", "logaddexp", "divide_no_nan")
# The functions without a gradient, since they are constant almost everywhere.
PIECEWISE_CONSTANT = ("floordiv", *COMPARISONS, *LOGICAL)
# The functions that refuse some integers as their second argument: 0 as a divisor, a negative
# exponent. None refuses 1, which is in the padding of shards.
REFUSES_INTEGERS = ("floordiv", "floormod", "pow")


def result_dtype(fn: str, dtype: str) -> str:
    """Returns the data type of the result of `fn` for inputs of type `dtype`.

    Raises:
      DTypeError: `fn` does not take this type.
    """
    takes_bool = fn in LOGICAL or fn in ("equal", "not_equal")
    if fn in LOGICAL and dtype != "bool":
        way_out = "Convert it to booleans first, as in x != 0."
    elif dtype == "bool" and not takes_bool:
        way_out = "Convert it to numbers first, as in mtf.cast(x, 'int32')."
    elif is_complex(dtype) and fn not in TAKES_COMPLEX:
        way_out = "Convert it to real numbers first: abs(x), mtf.math.real(x) or mtf.math.imag(x)."
    elif fn in _FLOATS_ONLY and not has_gradient(dtype):
        way_out = (
            "Use x // y, or convert it to floats first, as in mtf.cast(x, 'float32')."
        )
    else:
        return "bool" if fn in COMPARISONS else dtype
    raise DTypeError(
        explain_error(f"{fn} does not take the type {dtype}.", way_out=way_out)
    )
