"""All ops of the library, and random values for their samples.

>>> import numpy as np
>>> from meshtf.testing.conformance.samples import draw
>>> array, dims = draw("int b:4", below=3, rng=np.random.default_rng(0))
>>> array.dtype, dims
(dtype('int32'), [b:4])

"ties" are multiples of 0.75, and "whole" is 0 or 3: values repeat, and their partial sums
are exact, so that equal values stay equal under every layout. "unit" is between -0.9 and
0.9.
"""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import meshtf.ops
from meshtf.graph import Op, Sample
from meshtf.names import Shape

MESHES = ("x:2;y:2", "x:2", "x:4")
HALF = tf.bfloat16.as_numpy_dtype
_KINDS = ("int", "bool", "ties", "positive", "unit", "whole", "complex", "half")


def registered_ops() -> list[type[Op]]:
    """Returns every op of the library, in the order of their labels.

    A class whose name begins with "_" is a base class, not an op.
    """
    for module in pkgutil.walk_packages(meshtf.ops.__path__, meshtf.ops.__name__ + "."):
        importlib.import_module(module.name)
    ops = {
        op
        for op in _subclasses(Op)
        if op.__module__.startswith(meshtf.ops.__name__) and op.__name__[0] != "_"
    }
    return sorted(ops, key=label)


def label(op: type[Op]) -> str:
    """Returns module and name of an op, such as "indexing.Gather"."""
    return f"{op.__module__.rpartition('.')[2]}.{op.__name__}"


def _subclasses(base: type[Op]) -> Iterator[type[Op]]:
    for op in base.__subclasses__():
        yield op
        yield from _subclasses(op)


def generator(seed: int, *names: object) -> np.random.Generator:
    """Returns a random generator that depends only on a seed and on names."""
    text = "/".join(map(str, names))
    checksum = zlib.crc32(text.encode())
    return np.random.default_rng([seed, checksum])


def draw_all(
    sample: Sample,
    rng: np.random.Generator,
) -> list[tuple[Any, Shape]]:
    """Returns an array and a shape for each input of a sample."""
    return [draw(text, sample.below, rng) for text in sample.inputs]


def draw(text: str, below: int, rng: np.random.Generator) -> tuple[Any, Shape]:
    """Returns an array and its shape for one input, such as "b:4" or "int b:4"."""
    kind, _, rest = text.partition(" ")
    shape = Shape(rest if kind in _KINDS else text)
    sizes = shape.sizes
    if kind == "int":
        array = rng.integers(0, below, sizes).astype("int32")
    elif kind == "bool":
        array = rng.integers(0, 2, sizes).astype("bool")
    elif kind == "ties":
        array = (rng.integers(-1, 3, sizes) * 0.75).astype("float32")
    elif kind == "positive":
        array = rng.uniform(0.25, 2.0, sizes).astype("float32")
    elif kind == "unit":
        array = rng.uniform(-0.9, 0.9, sizes).astype("float32")
    elif kind == "whole":
        array = (rng.integers(0, 2, sizes) * 3).astype("float32")
    elif kind == "complex":
        array = (rng.normal(size=sizes) + 1j * rng.normal(size=sizes)).astype(
            "complex64"
        )
    else:
        array = rng.normal(size=sizes).astype("float32" if kind != "half" else HALF)
    return np.asarray(array), shape
