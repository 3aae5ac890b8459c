"""The elements of a tensor that are NaN or infinity, over all its shards.

    x = CheckedTensor.of(spec, placement, shards, mesh)
    x.locate(np.isnan)                   # "3 of 32, first at batch 1, d 2"; "": there is none

A region is what a shard covers of the global tensor: a slice for each dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from meshtf.graph import Spec
from meshtf.mesh import Mesh, Placement
from meshtf.names import Shape
from meshtf.runtime.placed.resharding import Shards
from meshtf.runtime.storage.sharding import region, shard_keys, without_padding


class CheckedTensor(NamedTuple):
    """A tensor whose elements are checked.

    Attributes:
      spec: the global shape and data type.
      shards: the shard of each mesh position (an element of the mesh's grid), without
        padding.
      regions: the region of each shard.
      is_infinite: the test of elements for infinity.
    """

    spec: Spec
    shards: Shards
    regions: Sequence[tuple[slice, ...]]
    is_infinite: Callable[[Any], Any] = np.isinf

    @staticmethod
    def of(
        spec: Spec, placement: Placement, shards: Sequence[Any], mesh: Mesh
    ) -> CheckedTensor:
        """Returns a tensor with these shards, which may have padding."""
        regions = [
            region(spec.shape, placement, key, mesh)
            for key in shard_keys(placement, mesh)
        ]
        true_shards = [
            without_padding(x, bounds) if tf.is_tensor(x) else None
            for x, bounds in zip(shards, regions)
        ]
        return CheckedTensor(spec, true_shards, regions, _infinity_test(placement))

    def contains(self, test: Callable[[Any], Any]) -> bool:
        """Returns whether an element satisfies a test, such as `np.isnan`."""
        return any(test(array).any() for array, _ in self._arrays())

    def is_mask(self) -> bool:
        """Returns whether all elements are 0 or negative infinity."""
        return all(
            ((array == 0) | (array == -np.inf)).all() for array, _ in self._arrays()
        )

    def locate(self, test: Callable[[Any], Any]) -> str:
        """Returns how many elements satisfy a test, and the first of them, such as "3 of 8,
        first at batch 1, d 2"; "" if none does.
        """
        if not self.contains(test):
            return ""
        matches = np.zeros(self.spec.shape.sizes, bool)
        for array, bounds in self._arrays():
            matches[bounds] |= test(array)
        count = f"{matches.sum()} of {matches.size}"
        if matches.all():
            return count
        return f"{count}, first at {_first_index(matches, self.spec.shape)}"

    def description(self) -> str:
        """Returns the data type and shape, and the range of real elements."""
        arrays = [array for array, _ in self._arrays() if array.size]
        text = f"{self.spec.dtype} {self.spec.shape!r}"
        if not arrays or np.iscomplexobj(arrays[0]):
            return text
        minimum = min(array.min() for array in arrays)
        maximum = max(array.max() for array in arrays)
        return f"{text} from {minimum:.4g} to {maximum:.4g}"

    def _arrays(self) -> Iterator[tuple[np.ndarray, tuple[slice, ...]]]:
        """Yields the distinct shards as NumPy arrays, with their regions; real numbers as
        float64, since NumPy has no bfloat16.
        """
        distinct_shards = {id(x): k for k, x in enumerate(self.shards) if x is not None}
        for k in distinct_shards.values():
            shard = self.shards[k]
            if not shard.dtype.is_complex:
                shard = tf.cast(shard, tf.float64)
            yield np.asarray(shard), self.regions[k]


def _infinity_test(placement: Placement) -> Callable[[Any], Any]:
    """Returns the test of a value for infinity. The maximum of a shard without elements is
    -infinity, which changes no maximum, and the minimum is infinity.
    """
    kinds = {state.kind for state in placement.partial.values()}
    if kinds == {"max"}:
        return np.isposinf
    if kinds == {"min"}:
        return np.isneginf
    return np.isinf


def _first_index(matches: np.ndarray, shape: Shape) -> str:
    """Returns the first index at which `matches` is true, such as "batch 1, d 2"."""
    first = np.argmax(matches)
    indices = np.unravel_index(first, matches.shape)
    texts = [f"{name} {index}" for name, index in zip(shape.names, indices)]
    return ", ".join(texts)
