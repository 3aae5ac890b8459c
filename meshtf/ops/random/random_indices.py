"""Indices that stand for others in random ops: parts of a tensor, or another order.

    with random_indices({Dimension("length", 4): lambda index: index + 12}):
      mask = dropout(x[batch length:4], 0.1)     # that of the last 4 of 16 positions

An algorithm that computes a tensor in parts, such as attention to one chunk of keys after
another, draws the numbers that it would draw for the entire tensor. So they depend neither on
the algorithm nor on the layout, which may choose it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from meshtf.graph import Tensor, context, current
from meshtf.mesh import Mesh
from meshtf.names import Dimension, Shape
from meshtf.ops.indexing.one_hot_and_range import range as index_range

# A function of indices along a dimension, int32 [dim]. It returns the indices for which
# random ops draw, int32 [dim], or with further dimensions that all of these random ops have.
IndexOf = Callable[[Tensor], Tensor]


@contextlib.contextmanager
def random_indices(functions: Mapping[Dimension, IndexOf]) -> Iterator[None]:
    """Sets, for a `with` block, the indices for which random ops draw numbers.

    Args:
      functions: for each dimension whose indices stand for others, these others.
    """
    with context(random_indices={**(current().random_indices or {}), **functions}):
        yield


def index_function(dim: Dimension) -> IndexOf:
    """Returns the function that is set for a dimension; the identity if there is none."""
    functions: Mapping[Dimension, IndexOf] = current().random_indices or {}
    return functions.get(dim, _identity)


def drawn_indices(mesh: Mesh | None, shape: Shape) -> dict[str, Tensor]:
    """Returns the indices for which a random op draws, for each dimension of the op's shape
    whose indices stand for others: int32 [..., dim].

    Args:
      mesh: the mesh of the op.
      shape: the shape of its output.
    """
    indices = {}
    for dim in shape:
        function = index_function(dim)
        if function is not _identity:
            index = function(index_range(mesh, dim))
            if set(index.shape) <= set(shape):
                indices[dim.name] = index
    return indices


def _identity(index: Tensor) -> Tensor:
    """Returns indices as they are."""
    return index
