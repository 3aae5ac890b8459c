"""Restoring: on any mesh and layout, and what is damaged is named.

    extra = restore(path, {v.name: v for v in model.variables})
    restore(path, {v.name: v for v in encoder.variables}, partly=True)     # leave out the rest
    restore(path, variables, partly=True, renames={"encoder": "bert/encoder"})
    found = restore_latest("runs/lm", variables)                           # the newest whole one

Each host reads the slices that its devices hold, one after another. Where what was
written is cut otherwise, it reads that, and cuts it again, so that nothing is read
twice. Large slices are freed before they are read: so no more than a slice is in memory
beside the variables.

Nothing is read for the sake of sums alone: the manifest has its own, and that of
TensorFlow's index; the index has one of every slice, with which TensorFlow compares
what it reads. Where that fails, `checking` reads slice after slice, and names the file.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.checkpoints.arguments import check_variables
from meshtf.checkpoints.inspection.verification import check
from meshtf.checkpoints.manifest import INDEX, PREFIX, Manifest, Saved
from meshtf.checkpoints.matching import check_fit, renamed
from meshtf.checkpoints.step_folders import newest_first, warn_of
from meshtf.checkpoints.tensor_slices import (
    Box,
    inside,
    numbers,
    overlap,
    runs,
    spec,
    whole,
)
from meshtf.checkpoints.write import PIECE
from meshtf.errors import DamageError
from meshtf.names.arguments import as_bool, as_callable, as_mapping, as_path
from meshtf.runtime.storage.slot import Slot
from meshtf.runtime.storage.write_times import written
from meshtf.runtime.variable import Variable

_UNREADABLE = (
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
    tf.errors.InvalidArgumentError,
)


class Restored(NamedTuple):
    """A checkpoint that was read: its step, its path, and what was saved beside the
    variables.
    """

    step: int
    path: str
    extra: dict[str, Any]


class _Read(NamedTuple):
    """Boxes of a tensor that are read, and the slots of one host that need them."""

    name: str
    saved: Saved
    boxes: list[Box]
    targets: Mapping[Box, list[Slot]]


def restore(
    path: str,
    variables: Mapping[str, Variable],
    partly: bool = False,
    renames: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Reads variables from a checkpoint of any layout, and returns what was saved as
    `extra`.

    Args:
      path: of the checkpoint.
      variables: what is read, under which names.
      partly: whether the checkpoint may hold more than these, as one of a model that
        they are a part of.
      renames: how names, or the first parts of names, are called in the checkpoint.

    Raises:
      CheckpointError: names or shapes differ; no variable was changed.
      DamageError: a file is not as it was written; some variables may have been read.
    """
    path = as_path("path", path)
    check_variables(variables)
    as_bool("partly", partly)
    if renames is not None:
        as_mapping(
            "renames",
            renames,
            'names by first parts of names, such as {"encoder": "bert"}',
        )
    manifest = Manifest.read(path)
    manifest.check_sizes(path)
    manifest.check_index(path)
    named = [
        (renamed(name, renames or {}), variable) for name, variable in variables.items()
    ]
    check_fit(path, manifest, named, partly)
    try:
        _load(
            os.path.abspath(f"{path}/{PREFIX}"), manifest, named
        )  # workers stand elsewhere
    except _UNREADABLE as error:
        check(path, manifest)  # names the file, unless the sums are right
        raise DamageError(
            path, INDEX, f"what it tells cannot be read: {error.message}"
        ) from error
    return {"step": manifest.step, **manifest.extra}


def restore_latest(
    directory: str,
    variables: Mapping[str, Variable],
    partly: bool = False,
    renames: Mapping[str, str] | None = None,
) -> Restored | None:
    """Reads the newest checkpoint of a folder that is whole; warns of those that are
    damaged.

    Returns:
      Which one was read; None: there is none.

    Raises:
      CheckpointError: names or shapes differ.
      DamageError: there are checkpoints, but none is whole.
    """
    check_variables(variables)
    as_bool("partly", partly)
    return newest_whole(
        directory, lambda path: restore(path, variables, partly, renames)
    )


def newest_whole(
    directory: str, read: Callable[[str], dict[str, Any]]
) -> Restored | None:
    """Reads the newest checkpoint of a folder that is whole; warns of those that are
    damaged.

    Args:
      directory: where the checkpoints are.
      read: reads the one with a path, and returns what was saved beside the variables.

    Raises:
      DamageError: there are checkpoints, but none is whole.
    """
    as_callable("read", read)
    damage = None
    for step, path, _ in newest_first(directory):
        try:
            return Restored(step, path, read(path))
        except DamageError as error:
            warn_of(error)
            damage = error
    if damage is not None:
        raise damage
    return None


def _load(
    prefix: str, manifest: Manifest, named: Sequence[tuple[str, Variable]]
) -> None:
    hosts: dict[str, list[_Read]] = defaultdict(list)
    for name, variable in named:
        written(variable)
        here: dict[str, dict[Box, list[Slot]]] = defaultdict(lambda: defaultdict(list))
        for region, holders in variable.holders():
            box = tuple((r.start, r.stop - r.start) for r in region)
            for slot in holders:
                here[slot.host][box].append(slot)
        for host, targets in here.items():
            hosts[host].extend(_planned(name, manifest.tensors[name], targets))
    with ThreadPoolExecutor(len(hosts) or 1) as readers:
        list(readers.map(lambda host: _load_host(prefix, host, hosts[host]), hosts))


def _planned(
    name: str, saved: Saved, targets: Mapping[Box, list[Slot]]
) -> Iterator[_Read]:
    """Yields what to read so that nothing is read twice: targets, or what
    was written.
    """
    apart: dict[Box, list[Slot]] = {}
    for box, slots in targets.items():
        if all(overlap(part, box) in (None, part) for part in saved.boxes):
            yield _Read(name, saved, [box], {box: slots})
        else:
            apart[box] = slots
    if apart:
        parts = [
            part
            for part in saved.boxes
            if any(overlap(part, box) is not None for box in apart)
        ]
        yield _Read(name, saved, parts, apart)


def _load_host(prefix: str, host: str, reads: Sequence[_Read]) -> None:
    straight = [
        (read, read.boxes[0]) for read in reads if read.boxes == list(read.targets)
    ]
    for batch in _batches(straight):
        with _room(batch[0][0]) if len(batch) == 1 else contextlib.nullcontext():
            values = _restored(prefix, host, batch)
            for read, box in reversed(batch):
                _assign(read.targets[box], values.pop())
    for read in reads:
        if read.boxes != list(read.targets):
            _load_in_parts(prefix, host, read)


def _load_in_parts(prefix: str, host: str, read: _Read) -> None:
    """Reads what was written, and cuts it for slices that are cut otherwise."""
    with _room(read), tf.device(host):
        made = {
            box: tf.raw_ops.Empty(
                shape=[size for _, size in box], dtype=read.saved.dtype
            )
            for box in read.targets
        }
        for batch in _batches([(read, box) for box in read.boxes]):
            values = _restored(prefix, host, batch)
            for _, part in reversed(batch):
                _put(values.pop(), part, made)
        for box in read.targets:
            _assign(read.targets[box], made.pop(box))


def _put(value: tf.Tensor, part: Box, made: Mapping[Box, tf.Tensor]) -> None:
    """Writes into tensors, in place, what of a part of the whole is theirs.

    A variable that was written in part would be copied at each reading from then on.
    """
    for box, tensor in made.items():
        common = overlap(part, box)
        if common is not None:
            length, rows = runs(common, box)
            tf.raw_ops.InplaceUpdate(
                x=tf.reshape(tensor, [-1, length]),
                i=rows,
                v=tf.reshape(value[inside(common, part)], [-1, length]),
            )


def _restored(
    prefix: str, host: str, batch: Sequence[tuple[_Read, Box]]
) -> list[tf.Tensor]:
    with tf.device(host):
        return list(
            tf.raw_ops.RestoreV2(
                prefix=prefix,
                tensor_names=[read.name for read, _ in batch],
                shape_and_slices=[spec(read.saved.sizes, box) for read, box in batch],
                dtypes=[tf.as_dtype(read.saved.dtype) for read, _ in batch],
            )
        )


def _assign(slots: Sequence[Slot], value: Any) -> None:
    for slot in slots:
        slot.assign(value)


@contextlib.contextmanager
def _room(read: _Read) -> Iterator[None]:
    """Frees the memory of large slots before they are read; they are zero if that
    fails.
    """
    slots = [slot for some in read.targets.values() for slot in some]
    if not any(
        _bytes(read, box) > PIECE for box in (*read.targets, whole(read.saved.sizes))
    ):
        yield
        return
    for slot in slots:
        slot.free()
    try:
        yield
    except BaseException:
        for slot in slots:
            slot.assign(tf.zeros(slot.shape, slot.dtype))
        raise


def _batches(reads: Sequence[tuple[_Read, Box]]) -> Iterator[list[tuple[_Read, Box]]]:
    """Yields what is read at once: few bytes, and many small variables."""
    batch: list[tuple[_Read, Box]] = []
    size = 0
    for read, box in reads:
        if batch and size + _bytes(read, box) > PIECE:
            yield batch
            batch, size = [], 0
        batch.append((read, box))
        size += _bytes(read, box)
    if batch:
        yield batch


def _bytes(read: _Read, box: Box) -> int:
    return numbers(box) * int(tf.as_dtype(read.saved.dtype).size)
