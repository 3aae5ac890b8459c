"""Dimensions, shapes and dtypes, the strings that describe them, and checks of arguments.

>>> from meshtf.names import Shape
>>> Shape("batch:8;d_model:512").resize("batch", 4)
[batch:4 d_model:512]
"""

from meshtf.names.dimension import Dimension
from meshtf.names.dtype import (
    accumulation_dtype,
    complex_dtype,
    dtype_bytes,
    dtype_name,
    has_gradient,
    is_complex,
    is_floating,
    is_integer,
    lowest_float,
    real_dtype,
)
from meshtf.names.name_lists import Names, name_of, names_of
from meshtf.names.parse import parse_pairs
from meshtf.names.shape import Shape, ShapeLike
from meshtf.names.source import Source

__all__ = [
    "Dimension",
    "Names",
    "Shape",
    "ShapeLike",
    "Source",
    "complex_dtype",
    "dtype_bytes",
    "dtype_name",
    "has_gradient",
    "is_complex",
    "is_floating",
    "is_integer",
    "lowest_float",
    "name_of",
    "names_of",
    "parse_pairs",
    "real_dtype",
    "accumulation_dtype",
]
