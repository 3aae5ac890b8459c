"""Restoring: on any mesh and layout; errors name the damaged file.

    extra = restore(path, {v.name: v for v in model.variables})
    restore(path, {v.name: v for v in encoder.variables}, partly=True)     # ignore the rest
    restore(path, variables, partly=True, renames={"encoder": "bert/encoder"})
    restored = restore_latest("runs/lm", variables)             # the newest complete one

Each host reads the shards of its devices, one after another. If the saved slices have other
boundaries, it reads these slices and copies from them, so that nothing is read twice. The
memory of large variables is freed before they are read: so at most one shard is in memory
in addition to the variables.

No file is read only to compute a checksum: the manifest has a checksum of itself, and of
TensorFlow's index; the index has one of every slice, which TensorFlow compares when it
reads the slice. If that fails, `inspection.verification` reads slice after slice, and names
the file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.checkpoints.arguments import check_variables
from meshtf.checkpoints.inspection.verification import check
from meshtf.checkpoints.manifest import INDEX, PREFIX, Manifest, Saved
from meshtf.checkpoints.matching import check_fit, saved_name
from meshtf.checkpoints.step_folders import latest, newest_first, warn_of
from meshtf.checkpoints.tensor_slices import (
    Box,
    full_box,
    num_elements,
    overlap,
    runs,
    slices_in,
    spec,
)
from meshtf.checkpoints.write import MAX_CHUNK_BYTES
from meshtf.errors import CheckpointError, DamageError
from meshtf.names.arguments import as_bool, as_callable, as_mapping, as_path
from meshtf.runtime.storage.slot import Slot
from meshtf.runtime.storage.write_times import record_write
from meshtf.runtime.variable import Variable

_UNREADABLE = (
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
    tf.errors.InvalidArgumentError,
)


class Restored(NamedTuple):
    """A checkpoint that was read: its step, its path, and the `extra` data that was saved
    with the variables.
    """

    step: int
    path: str
    extra: dict[str, Any]


class _Read(NamedTuple):
    """What one host reads of a tensor: boxes, and the shards and their slots to fill.

    If the boxes are those of the shards, the values are assigned; otherwise the shards are
    copied from several boxes.
    """

    name: str
    saved: Saved
    boxes: list[Box]
    targets: Mapping[Box, list[Slot]]

    @property
    def direct(self) -> bool:
        """Whether each box is a shard."""
        return self.boxes == list(self.targets)


def restore(
    path: str,
    variables: Mapping[str, Variable],
    partly: bool = False,
    renames: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Reads variables from a checkpoint of any layout, and returns its step and `extra`
    data.

    Args:
      path: the path of the checkpoint.
      variables: the variables to read, by name.
      partly: whether the checkpoint may have tensors that are not read, such as those of
        a larger model.
      renames: names of variables, or prefixes of names -> those in the checkpoint.

    Raises:
      CheckpointError: it is a folder of checkpoints, or names or shapes differ; no
        variable was changed.
      DamageError: a file has changed since it was written; some variables may have been
        restored.
    """
    path = as_path("path", path)
    check_variables(variables)
    as_bool("partly", partly)
    if renames is not None:
        as_mapping(
            "renames",
            renames,
            'names by prefixes of names, such as {"encoder": "bert"}',
        )
    newest = latest(path) if os.path.isdir(path) else None
    if newest is not None:
        raise CheckpointError(
            f"{path} is a folder of checkpoints, not one of them.\n"
            f"  Use mtf.checkpoints.restore_latest, or its newest: {newest[1]}."
        )
    manifest = Manifest.read(path)
    manifest.check_sizes(path)
    manifest.check_index(path)
    named_variables = [
        (saved_name(name, renames or {}), variable)
        for name, variable in variables.items()
    ]
    check_fit(path, manifest, named_variables, partly)
    try:
        # Absolute, since workers have other working directories.
        _load(os.path.abspath(f"{path}/{PREFIX}"), manifest, named_variables)
    except _UNREADABLE as error:
        check(path, manifest)  # raises with the file's name, if a checksum is wrong
        reason = f"its slices cannot be read: {error.message}"
        raise DamageError(path, INDEX, reason) from error
    return {"step": manifest.step, **manifest.extra}


def restore_latest(
    directory: str,
    variables: Mapping[str, Variable],
    partly: bool = False,
    renames: Mapping[str, str] | None = None,
) -> Restored | None:
    """Reads the newest complete checkpoint of a folder; warns of damaged ones.

    Returns:
      The checkpoint that was read; None: the folder has none.

    Raises:
      CheckpointError: names or shapes differ.
      DamageError: there are checkpoints, but all are damaged.
    """
    check_variables(variables)
    as_bool("partly", partly)
    return newest_complete(
        directory, lambda path: restore(path, variables, partly, renames)
    )


def newest_complete(
    directory: str, read: Callable[[str], dict[str, Any]]
) -> Restored | None:
    """Reads the newest complete checkpoint of a folder; warns of damaged ones.

    Args:
      directory: the folder of the checkpoints.
      read: reads the checkpoint with this path, and returns its `extra` data.

    Raises:
      DamageError: there are checkpoints, but all are damaged.
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
    prefix: str, manifest: Manifest, variables: Sequence[tuple[str, Variable]]
) -> None:
    """Reads variables, on all hosts in parallel."""
    reads_of_hosts: dict[str, list[_Read]] = defaultdict(list)
    for name, variable in variables:
        record_write(variable)
        for host, targets in _slots_by_host(variable).items():
            reads = _planned(name, manifest.tensors[name], targets)
            reads_of_hosts[host].extend(reads)
    with ThreadPoolExecutor(len(reads_of_hosts) or 1) as readers:
        load = partial(_load_host, prefix)
        list(readers.map(load, reads_of_hosts.keys(), reads_of_hosts.values()))


def _slots_by_host(variable: Variable) -> dict[str, dict[Box, list[Slot]]]:
    """Returns the slots of each shard, by host and the box of the shard."""
    by_host: dict[str, dict[Box, list[Slot]]] = defaultdict(lambda: defaultdict(list))
    for region, slots in variable.slots_by_region():
        box = tuple((r.start, r.stop - r.start) for r in region)
        for slot in slots:
            by_host[slot.host][box].append(slot)
    return by_host


def _planned(
    name: str, saved: Saved, targets: Mapping[Box, list[Slot]]
) -> Iterator[_Read]:
    """Yields the reads of a tensor, in which no saved box is read twice.

    A shard that consists of entire saved boxes is read directly; the saved boxes of all
    other shards are read once, and the shards are copied from them.
    """
    copied: dict[Box, list[Slot]] = {}
    for box, slots in targets.items():
        if all(
            overlap(saved_box, box) in (None, saved_box) for saved_box in saved.boxes
        ):
            yield _Read(name, saved, [box], {box: slots})
        else:
            copied[box] = slots
    if copied:
        needed_boxes = [
            saved_box
            for saved_box in saved.boxes
            if any(overlap(saved_box, box) is not None for box in copied)
        ]
        yield _Read(name, saved, needed_boxes, copied)


def _load_host(prefix: str, host: str, reads: Sequence[_Read]) -> None:
    """Carries out the reads of one host."""
    direct = [(read, read.boxes[0]) for read in reads if read.direct]
    for batch in _batches(direct):
        large = len(batch) == 1
        with _freed(batch[0][0]) if large else contextlib.nullcontext():
            values = _restored(prefix, host, batch)
            for read, box in reversed(batch):
                _assign(read.targets[box], values.pop())
    for read in reads:
        if not read.direct:
            _load_copied(prefix, host, read)


def _load_copied(prefix: str, host: str, read: _Read) -> None:
    """Reads saved boxes, and copies from them to shards with other boundaries."""
    with _freed(read), tf.device(host):
        shards = {
            box: tf.raw_ops.Empty(
                shape=[size for _, size in box], dtype=read.saved.dtype
            )
            for box in read.targets
        }
        for batch in _batches([(read, box) for box in read.boxes]):
            values = _restored(prefix, host, batch)
            for _, saved_box in reversed(batch):
                _copy(values.pop(), saved_box, shards)
        for box in read.targets:
            _assign(read.targets[box], shards.pop(box))


def _copy(value: tf.Tensor, saved_box: Box, shards: Mapping[Box, tf.Tensor]) -> None:
    """Copies elements of a saved box into the shards that contain them, in place.

    Tensors, not variables: TensorFlow copies a variable at each read after an assignment
    to a slice of it.
    """
    for box, shard in shards.items():
        common = overlap(saved_box, box)
        if common is not None:
            length, run_indices = runs(common, box)
            tf.raw_ops.InplaceUpdate(
                x=tf.reshape(shard, [-1, length]),
                i=run_indices,
                v=tf.reshape(value[slices_in(common, saved_box)], [-1, length]),
            )


def _restored(
    prefix: str, host: str, batch: Sequence[tuple[_Read, Box]]
) -> list[tf.Tensor]:
    """Returns the values of boxes, read by one op."""
    with tf.device(host):
        values = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=[read.name for read, _ in batch],
            shape_and_slices=[spec(read.saved.sizes, box) for read, box in batch],
            dtypes=[tf.as_dtype(read.saved.dtype) for read, _ in batch],
        )
        return list(values)


def _assign(slots: Sequence[Slot], value: Any) -> None:
    for slot in slots:
        slot.assign(value)


@contextlib.contextmanager
def _freed(read: _Read) -> Iterator[None]:
    """Frees the memory of large slots before they are read; sets them to zero if reading
    fails.
    """
    boxes = [*read.targets, full_box(read.saved.sizes)]
    if all(_bytes(read, box) <= MAX_CHUNK_BYTES for box in boxes):
        yield
        return
    slots = list(itertools.chain.from_iterable(read.targets.values()))
    for slot in slots:
        slot.free()
    try:
        yield
    except BaseException:
        for slot in slots:
            slot.assign(tf.zeros(slot.shape, slot.dtype))
        raise


def _batches(reads: Sequence[tuple[_Read, Box]]) -> Iterator[list[tuple[_Read, Box]]]:
    """Yields the boxes that one op reads: many small ones, or one large one."""
    batch: list[tuple[_Read, Box]] = []
    size = 0
    for read, box in reads:
        if batch and size + _bytes(read, box) > MAX_CHUNK_BYTES:
            yield batch
            batch = []
            size = 0
        batch.append((read, box))
        size += _bytes(read, box)
    if batch:
        yield batch


def _bytes(read: _Read, box: Box) -> int:
    return num_elements(box) * int(tf.as_dtype(read.saved.dtype).size)
