"""All ops of the library, and random values for their samples.

>>> import numpy as np
>>> from meshtf.testing.conformance.samples import draw
>>> array, shape = draw("int b:4", below=3, rng=np.random.default_rng(0))
>>> array.dtype, shape
(dtype('int32'), [b:4])

A description of an input is a shape, with a kind of values in front of it; without a kind
values are normal float32:

    int         int32 from 0 to below - 1
    natural     int32 from 1 to below - 1
    bool        False or True
    ties        multiples of 0.75 from -0.75 to 1.5: values repeat
    nan         NaN of both signs, infinities, 0.0, -0.0, -0.75 and 1.5: values repeat
    whole       0 or 3
    positive    0.25 to 2
    unit        -0.9 to 0.9
    complex     normal complex64
    half        normal bfloat16

Partial sums of "ties" and "whole" are exact, so equal values stay equal under every layout.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import meshtf.ops
from meshtf.graph import Op, Sample
from meshtf.names import Shape

# The axes of the meshes on which ops are checked.
MESHES = ("x:2;y:2", "x:2", "x:4")
_KINDS = (
    "int",
    "natural",
    "bool",
    "ties",
    "nan",
    "positive",
    "unit",
    "whole",
    "complex",
    "half",
)

_WITH_NAN = (math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, -0.75, 1.5)


class NamedArray(NamedTuple):
    """The value of an input or output.

    Attributes:
      array: a NumPy array.
      shape: the names and sizes of its dimensions.
    """

    array: Any
    shape: Shape


def registered_ops() -> list[type[Op]]:
    """Returns every op class of the library, sorted by label.

    A class whose name begins with "_" is a base class, not an op.
    """
    for module in pkgutil.walk_packages(meshtf.ops.__path__, meshtf.ops.__name__ + "."):
        importlib.import_module(module.name)
    ops = {
        op
        for op in _subclasses(Op)
        if op.__module__.startswith(meshtf.ops.__name__)
        and not op.__name__.startswith("_")
    }
    return sorted(ops, key=label)


def label(op: type[Op]) -> str:
    """Returns the module and the name of an op class, such as "gather.Gather"."""
    _, _, module = op.__module__.rpartition(".")
    return f"{module}.{op.__name__}"


def _subclasses(base: type[Op]) -> Iterator[type[Op]]:
    """Yields all direct and indirect subclasses."""
    for op in base.__subclasses__():
        yield op
        yield from _subclasses(op)


def random_generator(seed: int, *names: object) -> np.random.Generator:
    """Returns a random generator that depends only on a seed and on the text of `names`."""
    text = "/".join(map(str, names))
    checksum = zlib.crc32(text.encode())
    return np.random.default_rng([seed, checksum])


def draw_inputs(sample: Sample, rng: np.random.Generator) -> list[NamedArray]:
    """Returns random values for each input of a sample."""
    return [draw(description, sample.below, rng) for description in sample.inputs]


def draw(description: str, below: int, rng: np.random.Generator) -> NamedArray:
    """Returns random values for one input.

    Args:
      description: the kind of the values, if any, and the shape: "b:4" or "int b:4".
      below: the exclusive upper bound of integers.
      rng: the generator of the values.
    """
    kind, _, shape_text = description.partition(" ")
    if kind not in _KINDS:
        kind = "normal"
        shape_text = description
    shape = Shape(shape_text)
    sizes = shape.sizes
    if kind == "int":
        array = rng.integers(0, below, sizes).astype("int32")
    elif kind == "natural":
        array = rng.integers(1, below, sizes).astype("int32")
    elif kind == "bool":
        array = rng.integers(0, 2, sizes).astype("bool")
    elif kind == "ties":
        array = (rng.integers(-1, 3, sizes) * 0.75).astype("float32")
    elif kind == "nan":
        array = rng.choice(_WITH_NAN, sizes).astype("float32")
    elif kind == "positive":
        array = rng.uniform(0.25, 2.0, sizes).astype("float32")
    elif kind == "unit":
        array = rng.uniform(-0.9, 0.9, sizes).astype("float32")
    elif kind == "whole":
        array = (rng.integers(0, 2, sizes) * 3).astype("float32")
    elif kind == "complex":
        array = rng.normal(size=sizes) + 1j * rng.normal(size=sizes)
        array = array.astype("complex64")
    elif kind == "half":
        array = rng.normal(size=sizes).astype(tf.bfloat16.as_numpy_dtype)
    else:
        array = rng.normal(size=sizes).astype("float32")
    return NamedArray(np.asarray(array), shape)
