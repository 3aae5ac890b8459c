"""Names: dimensions, shapes, data types, and the strings that spell them.

>>> from meshtf.names import Shape
>>> Shape("batch:8;d_model:512").resize("batch", 4)
[batch:4 d_model:512]
"""

from meshtf.names.dimension import Dimension
from meshtf.names.dtype import dtype_bytes, dtype_name, is_floating, is_integer
from meshtf.names.parse import parse_pairs
from meshtf.names.shape import Shape, ShapeLike

__all__ = ["Dimension", "Shape", "ShapeLike", "dtype_bytes", "dtype_name", "is_floating",
           "is_integer", "parse_pairs"]
