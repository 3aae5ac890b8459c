"""Arrays to shards: which part of an array lies at which position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Spec
from meshtf.mesh import Mesh, Placement, Sharded
from meshtf.names import Shape
from meshtf.runtime.devices.resolve import devices_of, one_memory


def distinct(values: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Returns the different objects among `values`, and the number of each value's
    object.
    """
    first: dict[int, int] = {id(None): -1}  # of a tensor that lies at one stage
    found: list[Any] = []
    for x in values:
        if id(x) not in first:
            first[id(x)] = len(found)
            found.append(x)
    return found, tuple(first[id(x)] for x in values)


def slice_keys(placement: Placement, mesh: Mesh) -> list[tuple[int, ...]]:
    """Returns for each position which slice it holds: equal keys, equal slices."""
    return [
        tuple(c if isinstance(s, Sharded) else 0 for s, c in zip(placement, coord))
        for coord in mesh.coords
    ]


def region(
    shape: Shape, placement: Placement, key: tuple[int, ...], mesh: Mesh
) -> tuple[slice, ...]:
    """Returns which part of a whole the slice of these coordinates is."""
    spans = {d.name: (0, d.size) for d in shape}
    for state, c, parts in zip(placement, key, mesh.axes.values()):
        if isinstance(state, Sharded):
            start, stop = spans[state.dim]
            size = (stop - start) // parts
            spans[state.dim] = start + c * size, start + (c + 1) * size
    return tuple(slice(*span) for span in spans.values())


def slices_of(array: Any, spec: Spec, placement: Placement, mesh: Mesh) -> list[Any]:
    """Returns each position's slice of a whole array, cut where the array is.

    Where devices see one memory, nobody in a graph brings a slice to its device:
    TensorFlow does so.
    """
    pieces = pieces_of(array, spec, placement, mesh)
    if not tf.executing_eagerly() and one_memory(mesh):
        return pieces
    done: dict[Any, Any] = {}
    out: list[Any] = []
    for device, x in zip(devices_of(mesh), pieces):
        if x is not None and (device, id(x)) not in done:
            with tf.device(device):
                done[device, id(x)] = tf.identity(x)
        out.append(None if x is None else done[device, id(x)])
    return out


def pieces_of(array: Any, spec: Spec, placement: Placement, mesh: Mesh) -> list[Any]:
    """Returns each position's slice of a whole array, on the device of the array."""
    with tf.device(getattr(array, "device", "") or "/device:CPU:0"):
        cut = _cut(array, spec, placement, mesh)
    return [
        cut[key] if there else None
        for key, there in zip(slice_keys(placement, mesh), mesh.has(placement))
    ]


def _cut(
    array: Any, spec: Spec, placement: Placement, mesh: Mesh
) -> dict[tuple[int, ...], Any]:
    """Returns the different slices of a whole array, by their keys as `slice_keys` has
    them.
    """
    cut: dict[tuple[int, ...], Any] = {(): array}
    for state, parts in zip(placement, mesh.axes.values()):
        if isinstance(state, Sharded):
            axis = spec.shape.index(state.dim)
            cut = {
                (*key, j): part
                for key, whole in cut.items()
                for j, part in enumerate(tf.split(whole, parts, axis))
            }
        else:
            cut = {(*key, 0): whole for key, whole in cut.items()}
    return cut
