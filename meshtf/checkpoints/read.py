"""Restores variables from a checkpoint, on any mesh and layout.

    extra = restore(path, {v.name: v for v in model.variables})
    restore(path, {v.name: v for v in encoder.variables}, partly=True)     # ignore the rest
    restore(path, variables, partly=True, renames={"encoder": "bert/encoder"})
    restored = restore_latest("runs/lm", variables)             # the newest complete one

Each host reads the shards of its devices, one after another. A slot stores one shard on one
device; a box is the (start, size) of a slice along each dimension. If the saved boxes have
other boundaries than the shards, the host reads each saved box once and copies from it. The
memory of a large variable is freed before it is read: at most one shard needs more memory.

The manifest has a checksum of itself and of TensorFlow's index; the index has a checksum of
every slice, which TensorFlow compares when it reads the slice. If one differs,
`inspection.verification` reads slice after slice to find the damaged file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.checkpoints.arguments import check_variables
from meshtf.checkpoints.foreign_format import refuse_foreign
from meshtf.checkpoints.inspection.verification import check
from meshtf.checkpoints.manifest import INDEX, PREFIX, Manifest, SavedTensor
from meshtf.checkpoints.matching import check_fit, saved_name
from meshtf.checkpoints.step_folders import latest, newest_first, warn_of
from meshtf.checkpoints.tensor_slices import (
    Box,
    box_of,
    contiguous_runs,
    full_box,
    num_elements,
    overlap,
    slice_spec,
    slices_in,
)
from meshtf.checkpoints.write import MAX_CHUNK_BYTES
from meshtf.errors import CheckpointError, DamageError
from meshtf.names.arguments import as_callable, as_mapping, as_path, check_bools
from meshtf.runtime.devices.names import cpu_of_host
from meshtf.runtime.devices.processes import is_of_other_process
from meshtf.runtime.storage.slot import Slot
from meshtf.runtime.storage.write_times import record_write
from meshtf.runtime.variable import Variable

# The errors in `tf.errors` that TensorFlow raises for files that are damaged or missing.
_READ_ERRORS = (
    "DataLossError",
    "NotFoundError",
    "OutOfRangeError",
    "InvalidArgumentError",
)


class Restored(NamedTuple):
    """A checkpoint that was read.

    Attributes:
      step: the step of the checkpoint.
      path: the path of the checkpoint.
      extra: the data that was saved with the variables, and the step as "step".
    """

    step: int
    path: str
    extra: dict[str, Any]


class _TensorRead(NamedTuple):
    """A tensor, or some of its slices, that one host reads from files.

    If the boxes are those of the shards, the values that are read are assigned to the
    slots; otherwise the shards are copied from the values of several boxes.

    Attributes:
      name: the name of the tensor in the checkpoint.
      saved: the manifest's entry of the tensor.
      boxes: the boxes of the tensor to read.
      slots_by_shard: the slots to fill of each shard, by the box of the shard.
    """

    name: str
    saved: SavedTensor
    boxes: list[Box]
    slots_by_shard: Mapping[Box, list[Slot]]

    @property
    def is_direct(self) -> bool:
        """Whether each box is a shard."""
        return self.boxes == list(self.slots_by_shard)


class _BoxRead(NamedTuple):
    """One box that one host reads of a tensor."""

    tensor: _TensorRead
    box: Box

    @property
    def bytes(self) -> int:
        """The size of the box in bytes."""
        return _num_bytes(self.tensor.saved, self.box)


def restore(
    path: str,
    variables: Mapping[str, Variable],
    partly: bool = False,
    renames: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Reads variables from a checkpoint that was saved under any layout.

    Args:
      path: the path of the checkpoint.
      variables: the variables to read, by name.
      partly: whether the checkpoint may have tensors that are not read, such as those of
        a larger model.
      renames: a dict from names of variables, or prefixes of names, to names or prefixes
        in the checkpoint; see `saved_name`.

    Returns:
      The data that was saved as `extra`, and the step as "step".

    Raises:
      CheckpointError: `path` is a folder of checkpoints, or names or shapes differ. No
        variable has been changed.
      DamageError: a file has changed since it was written. Some variables may have been
        restored.
    """
    path = as_path("path", path)
    check_variables(variables)
    check_bools(partly=partly)
    if renames is not None:
        takes = 'names by prefixes of names, such as {"encoder": "bert"}'
        renames = as_mapping("renames", renames, takes)
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
        (saved_name(name, renames or {}), v) for name, v in variables.items()
    ]
    check_fit(path, manifest, named_variables, partly=partly)
    try:
        # Absolute, since workers have other working directories.
        _load(os.path.abspath(f"{path}/{PREFIX}"), manifest, named_variables)
    except tuple(getattr(tf.errors, name) for name in _READ_ERRORS) as error:
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
    """Reads variables from the newest complete checkpoint of a folder; warns of damaged
    checkpoints.

    Args:
      directory: the folder of the checkpoints.
      variables: the variables to read, by name.
      partly: whether the checkpoint may have tensors that are not read.
      renames: names or prefixes in the checkpoint by those of variables, as in `restore`.

    Returns:
      The checkpoint that was read, or None if the folder has no checkpoint.

    Raises:
      CheckpointError: names or shapes differ, or another library has written the folder.
      DamageError: there are checkpoints, but all are damaged.
    """
    check_variables(variables)
    check_bools(partly=partly)
    read = partial(restore, variables=variables, partly=partly, renames=renames)
    return newest_complete(directory, read)


def newest_complete(
    directory: str, read: Callable[[str], dict[str, Any]]
) -> Restored | None:
    """Reads the newest complete checkpoint of a folder; warns of damaged checkpoints.

    Args:
      directory: the folder of the checkpoints.
      read: a function that reads the checkpoint at a path, and returns its `extra` data.

    Returns:
      The checkpoint that was read, or None if the folder has no checkpoint.

    Raises:
      DamageError: there are checkpoints, but all are damaged.
    """
    read = as_callable("read", read)
    damage = None
    for step, path, _ in newest_first(directory):
        try:
            return Restored(step, path, read(path))
        except DamageError as error:
            warn_of(error)
            damage = error
    if damage is not None:
        raise damage
    refuse_foreign(directory)
    return None


def _load(
    prefix: str, manifest: Manifest, variables: Sequence[tuple[str, Variable]]
) -> None:
    """Reads variables, on all hosts in parallel.

    Args:
      prefix: the prefix of TensorFlow's files, an absolute path.
      manifest: the manifest of the checkpoint.
      variables: each variable with its name in the checkpoint.
    """
    reads_by_host: dict[str, list[_TensorRead]] = defaultdict(list)
    for name, variable in variables:
        record_write(variable)  # values that were read before are out of date
        for host, slots_by_shard in _slots_by_host(variable).items():
            reads = _plan_reads(name, manifest.tensors[name], slots_by_shard)
            reads_by_host[host].extend(reads)
    load = partial(_load_host, prefix)
    with ThreadPoolExecutor(len(reads_by_host) or 1) as readers:
        # `list` waits for all, and raises the first error.
        list(readers.map(load, reads_by_host.keys(), reads_by_host.values()))


def _slots_by_host(variable: Variable) -> dict[str, dict[Box, list[Slot]]]:
    """Returns this process's slots, first by host and then by the box of their shard."""
    by_host: dict[str, dict[Box, list[Slot]]] = defaultdict(lambda: defaultdict(list))
    for slices, slots in variable.slots_by_region():  # slices: those of one shard
        for slot in slots:
            if not is_of_other_process(slot.host):
                by_host[slot.host][box_of(slices)].append(slot)
    return by_host


def _plan_reads(
    name: str, saved: SavedTensor, slots_by_shard: Mapping[Box, list[Slot]]
) -> Iterator[_TensorRead]:
    """Yields the reads of a tensor by one host, in which no saved box is read twice.

    A shard that consists of entire saved boxes is read directly. The saved boxes that the
    other shards overlap are read once, and these shards are copied from them.

    Args:
      name: the name of the tensor in the checkpoint.
      saved: the manifest's entry of the tensor.
      slots_by_shard: the host's slots of each shard, by the box of the shard.
    """
    copied_shards: dict[Box, list[Slot]] = {}
    for box, slots in slots_by_shard.items():
        # Each saved box is either outside of the shard or entirely within it.
        overlaps = [(saved_box, overlap(saved_box, box)) for saved_box in saved.boxes]
        if all(common in (None, saved_box) for saved_box, common in overlaps):
            yield _TensorRead(name, saved, boxes=[box], slots_by_shard={box: slots})
        else:
            copied_shards[box] = slots
    if copied_shards:
        boxes = [box for box in saved.boxes if _overlaps_any(box, copied_shards)]
        yield _TensorRead(name, saved, boxes, slots_by_shard=copied_shards)


def _overlaps_any(box: Box, shards: Iterable[Box]) -> bool:
    """Returns whether a box overlaps at least one shard."""
    return any(overlap(box, shard) is not None for shard in shards)


def _load_host(prefix: str, host: str, reads: Sequence[_TensorRead]) -> None:
    """Carries out the reads of one host."""
    direct_reads = [_BoxRead(read, read.boxes[0]) for read in reads if read.is_direct]
    for batch in _batches(direct_reads):
        with contextlib.ExitStack() as stack:
            if len(batch) == 1:
                stack.enter_context(_free_large_slots(batch[0].tensor))
            values = _read_boxes(prefix, host, batch)
            # Values are popped, so that the memory of each is freed after its assignment.
            for read, box in reversed(batch):
                _assign(read.slots_by_shard[box], values.pop())
    for read in reads:
        if not read.is_direct:
            _load_copied(prefix, host, read)


def _load_copied(prefix: str, host: str, read: _TensorRead) -> None:
    """Reads saved boxes, and copies from them to shards with other boundaries."""
    with _free_large_slots(read), tf.device(cpu_of_host(host)):
        shards = {}
        for box in read.slots_by_shard:
            sizes = [size for _, size in box]
            shards[box] = tf.raw_ops.Empty(shape=sizes, dtype=read.saved.dtype)
        for batch in _batches([_BoxRead(read, box) for box in read.boxes]):
            values = _read_boxes(prefix, host, batch)
            for _, saved_box in reversed(batch):
                _copy_to_shards(values.pop(), saved_box, shards)
        for box, slots in read.slots_by_shard.items():
            _assign(slots, shards.pop(box))


def _copy_to_shards(
    value: tf.Tensor, saved_box: Box, shards: Mapping[Box, tf.Tensor]
) -> None:
    """Copies the elements of a saved box into the shards that contain them, in place.

    Shards are tensors, not variables, since TensorFlow copies a variable at each read after
    an assignment to a slice of it.

    Args:
      value: the elements of the saved box.
      saved_box: the saved box.
      shards: the shards, by their boxes.
    """
    for box, shard in shards.items():
        common = overlap(saved_box, box)
        if common is not None:
            length, run_indices = contiguous_runs(common, box)
            tf.raw_ops.InplaceUpdate(
                x=tf.reshape(shard, [-1, length]),
                i=run_indices,
                v=tf.reshape(value[slices_in(common, saved_box)], [-1, length]),
            )


def _read_boxes(prefix: str, host: str, batch: Sequence[_BoxRead]) -> list[tf.Tensor]:
    """Returns the values of boxes, read by one op on a host."""
    with tf.device(cpu_of_host(host)):
        values = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=[read.name for read, _ in batch],
            shape_and_slices=[slice_spec(read.saved.sizes, box) for read, box in batch],
            dtypes=[tf.as_dtype(read.saved.dtype) for read, _ in batch],
        )
        return list(values)


def _assign(slots: Sequence[Slot], value: Any) -> None:
    """Assigns a value to all slots of a shard, with zeros as padding."""
    for slot in slots:
        pads = [(0, size - n) for size, n in zip(slot.shape, value.shape)]
        slot.assign(tf.pad(value, pads) if any(map(any, pads)) else value)


@contextlib.contextmanager
def _free_large_slots(read: _TensorRead) -> Iterator[None]:
    """Frees the slots that the context fills, if they are large; zeros if it raises."""
    boxes = [*read.slots_by_shard, full_box(read.saved.sizes)]
    if all(_num_bytes(read.saved, box) <= MAX_CHUNK_BYTES for box in boxes):
        yield
        return
    slots = list(itertools.chain.from_iterable(read.slots_by_shard.values()))
    for slot in slots:
        slot.free()
    try:
        yield
    except BaseException:
        for slot in slots:
            slot.assign(tf.zeros(slot.shape, slot.dtype))
        raise


def _batches(reads: Sequence[_BoxRead]) -> Iterator[list[_BoxRead]]:
    """Yields the boxes that one op reads: several small ones, of at most `MAX_CHUNK_BYTES`
    together, or one large one.
    """
    batch: list[_BoxRead] = []
    batch_bytes = 0
    for read in reads:
        if batch and batch_bytes + read.bytes > MAX_CHUNK_BYTES:
            yield batch
            batch = []
            batch_bytes = 0
        batch.append(read)
        batch_bytes += read.bytes
    if batch:
        yield batch


def _num_bytes(saved: SavedTensor, box: Box) -> int:
    """Returns the size of a box of a tensor in bytes."""
    return num_elements(box) * int(tf.as_dtype(saved.dtype).size)
