"""Data types as strings, such as "bfloat16", so that planning needs no TensorFlow.

>>> import numpy as np
>>> from meshtf.names import dtype_bytes, dtype_name
>>> dtype_name(np.float32), dtype_bytes("bfloat16")
('float32', 2)
"""

from __future__ import annotations

import numpy as np

from meshtf.errors import DTypeError, explain_error
from meshtf.names.arguments import described
from meshtf.names.source import Source

_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
# Python type -> the dtype that it means.
_PYTHON_TYPES = {bool: "bool", int: "int32", float: "float32", complex: "complex64"}


def dtype_name(dtype: object) -> str:
    """Returns the name of a data type.

    Args:
      dtype: a string, a Python type, or a dtype of NumPy or TensorFlow.

    Raises:
      DTypeError: the data type is unknown.
    """
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, type) and dtype in _PYTHON_TYPES:
        name = _PYTHON_TYPES[dtype]
    else:
        attribute = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
        name = attribute if isinstance(attribute, str) else described(dtype)
    if name not in _BYTES:
        raise DTypeError(
            explain_error(
                f"{name!r} is not a data type that meshtf knows; it knows "
                f"{', '.join(_BYTES)}.",
                source=Source.of_caller(),
            )
        )
    return name


def dtype_bytes(dtype: str) -> int:
    """Returns the bytes of one element of a data type."""
    return _BYTES[dtype]


def is_floating(dtype: str) -> bool:
    """Returns whether a data type is a floating-point type."""
    return dtype in ("bfloat16", "float16", "float32", "float64")


def is_complex(dtype: str) -> bool:
    """Returns whether a data type is complex."""
    return dtype in ("complex64", "complex128")


def has_gradient(dtype: str) -> bool:
    """Returns whether values of a data type can have gradients: floats, complex numbers."""
    return is_floating(dtype) or is_complex(dtype)


def accumulation_dtype(dtype: str) -> str:
    """Returns the data type in which sums and statistics are accumulated: float32 for
    bfloat16 and float16, otherwise the data type itself.
    """
    return "float32" if dtype in ("bfloat16", "float16") else dtype


def lowest_float(dtype: str) -> float:
    """Returns the lowest finite value of a floating-point type."""
    if dtype == "bfloat16":  # 8 bits of exponent, as float32, and 7 of mantissa
        return -(2 - 2**-7) * 2.0**127
    return float(np.finfo(dtype).min)


def is_integer(dtype: str) -> bool:
    """Returns whether a data type is a signed or unsigned integer."""
    return "int" in dtype


def complex_dtype(dtype: str) -> str:
    """Returns the complex type whose real and imaginary parts have this real type."""
    return {"float64": "complex128"}.get(dtype, "complex64")


def real_dtype(dtype: str) -> str:
    """Returns the type of the real part of a complex type; a real type unchanged."""
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
