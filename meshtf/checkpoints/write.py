"""Saves variables: each host writes the shards of its devices, and no shard is sent between
hosts.

    path = save("runs/lm", 600, {v.name: v for v in model.variables}, extra={"seed": 1})

The files have TensorFlow's V2 format with slice specifications, so
`tf.train.load_checkpoint(path + "/variables")` can read them without meshtf. A host writes
files of a few slices each, two files at a time, and copies only the slices of these two
from device memory. A slot is the storage of one shard on one device; a box is the
(start, size) of a slice along each dimension.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import tensorflow as tf

from meshtf.checkpoints.arguments import check_settings, check_variables
from meshtf.checkpoints.inspection.verification import data_file
from meshtf.checkpoints.manifest import INDEX, PREFIX, FileSum, Manifest, SavedTensor
from meshtf.checkpoints.process_barrier import ProcessBarrier, common_suffix
from meshtf.checkpoints.step_folders import (
    common_temporary_path,
    path_of,
    prune,
    rename_complete,
    temporary_path,
)
from meshtf.checkpoints.tensor_slices import (
    Box,
    box_of,
    full_box,
    num_elements,
    slice_spec,
    slices_in,
    spans,
    split,
)
from meshtf.errors import WriteError
from meshtf.names.arguments import as_path
from meshtf.runtime.devices.names import cpu_of_host
from meshtf.runtime.devices.processes import is_of_other_process, processes
from meshtf.runtime.heartbeat import beat
from meshtf.runtime.storage.slot import Slot
from meshtf.runtime.variable import Variable

MAX_CHUNK_BYTES = 32 << 20  # the bytes that are written or read at a time
_WRITERS_PER_HOST = 2
# A limit, since a reader searches all chunks of a variable.
_MAX_CHUNKS_OF_SHARD = 64
_DATA_SUFFIX = "data-00000-of-00001"  # of a file that `SaveV2` writes
# Data types of which V2 files cannot store slices.
UNSPLIT_DTYPES = ("float16", "uint16", "uint32", "uint64")
# The names of TensorFlow's nodes in its error messages.
_NODE_NAMES = re.compile(r"\{\{.*?\}\} ?| ?\[Op:.*")


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A slice of a variable that is to be written to a file.

    Attributes:
      name: the name of the variable in the checkpoint.
      sizes: the sizes of the variable.
      box: the start and size of the slice along each dimension.
      bytes: the size of the slice in bytes.
      host: the CPU device that writes the slice: see `Slot.host`.
      value: a function that returns the elements of the slice.
    """

    name: str
    sizes: tuple[int, ...]
    box: Box
    bytes: int
    host: str
    value: Callable[[], Any]


def save(
    directory: str,
    step: int,
    variables: Mapping[str, Variable],
    extra: Mapping[str, Any] | None = None,
    keep: int = 2,
    keep_every: int = 0,
) -> str:
    """Writes a checkpoint and returns its path.

    Args:
      directory: the folder of all checkpoints of a run.
      step: the step of the checkpoint, which determines its name and order.
      variables: the variables to save, by the names that they get in the checkpoint.
      extra: data that JSON can represent, to be saved as well.
      keep: the count of newest checkpoints to keep.
      keep_every: checkpoints whose step is a multiple of it are kept as well; 0: none.

    Raises:
      WriteError: the checkpoint could not be written. Its files are deleted, and earlier
        checkpoints remain.
    """
    directory = as_path("directory", directory)
    check_settings(step=step, keep=keep, keep_every=keep_every, extra=extra)
    chunks = chunks_of(variables)
    return write(
        directory, step, variables, chunks, extra, keep=keep, keep_every=keep_every
    )


def write(
    directory: str,
    step: int,
    variables: Mapping[str, Variable],
    chunks: list[Chunk],
    extra: Mapping[str, Any] | None,
    keep: int,
    keep_every: int,
) -> str:
    """Writes chunks of variables as a checkpoint, and returns its path.

    The chunks are removed from the list, so that the memory of snapshots is freed as they
    are written. The other arguments are those of `save`.
    """
    step = int(step)  # JSON cannot represent integers of NumPy
    path = path_of(directory, step)
    incomplete = temporary_path(path)
    if processes().count > 1:
        incomplete = common_temporary_path(path, common_suffix())
    barrier = ProcessBarrier(incomplete)
    try:
        barrier.begin()
        # Absolute, since workers have other working directories.
        chunks_by_file = _write_files(os.path.abspath(incomplete), chunks, barrier)
        if not processes().is_first:
            barrier.wait_for_end(path)
            return path
        barrier.wait_for_all()
        _merge_files(os.path.abspath(incomplete), len(chunks_by_file))
        manifest = Manifest(
            step=step,
            extra=dict(extra or {}),
            tensors=_saved_tensors(variables, chunks_by_file),
            files=_file_sums(incomplete, chunks_by_file),
        )
        manifest.write(incomplete)
        rename_complete(incomplete, path)
        prune(directory, step, keep, keep_every)
    except (OSError, tf.errors.OpError) as error:
        reason = _NODE_NAMES.sub("", getattr(error, "message", None) or str(error))
        raise WriteError(
            f"the checkpoint of step {step:,} could not be written to {directory}: "
            f"{reason}"
        ) from error
    finally:
        if processes().is_first:
            shutil.rmtree(incomplete, ignore_errors=True)
    return path


def _file_sums(
    folder: str, chunks_by_file: Sequence[Sequence[Chunk]]
) -> dict[str, FileSum]:
    """Returns the size of each file by name, and the checksum of the index."""
    sums = {INDEX: FileSum.of(os.path.join(folder, INDEX))}
    for file_index, chunks in enumerate(chunks_by_file):
        name = data_file(file_index, len(chunks_by_file))
        sums[name] = FileSum(sum(chunk.bytes for chunk in chunks))
    return sums


def chunks_of(variables: Mapping[str, Variable], snapshot: bool = False) -> list[Chunk]:
    """Returns the chunks of variables to write: each distinct shard once.

    If several hosts store the same shard, the one with the fewest bytes to write writes it.

    Args:
      variables: the variables to save, by the names that they get in the checkpoint.
      snapshot: whether to write the current values, even if the variables are assigned to
        before they are written. On devices that share the host's memory a value is copied
        only then; on others it is copied now.
    """
    check_variables(variables)
    # All processes have to read a variable that is not a snapshot, each only its own shards.
    snapshot = snapshot or processes().count > 1
    bytes_by_host: dict[str, int] = defaultdict(int)
    chunks: list[Chunk] = []
    for name, variable in variables.items():
        is_sharded = len(variable.slots_by_region()) > 1
        if is_sharded and variable.dtype in UNSPLIT_DTYPES:
            chunks.append(_unsharded_chunk(name, variable, snapshot))
            continue
        # Each region (the elements of one distinct shard), and the slots that store it.
        for slices, slots in variable.slots_by_region():
            slot = min(slots, key=lambda slot: bytes_by_host[slot.host])
            box = box_of(slices)
            bytes_by_host[slot.host] += _num_bytes(variable, box)
            chunks.extend(_chunks_of_shard(name, variable, box, slot, snapshot))
    return chunks


def _chunks_of_shard(
    name: str, variable: Variable, box: Box, slot: Slot, snapshot: bool
) -> Iterator[Chunk]:
    """Yields the chunks that a shard is split into.

    Args:
      name: the name of the variable in the checkpoint.
      variable: the variable.
      box: the box of the shard.
      slot: the slot that stores the shard.
      snapshot: whether to write the current value, as in `chunks_of`.
    """
    item_bytes = _num_bytes(variable, box=())
    read_shard: Callable[[], Any] = partial(slot.value_on, slot.host)
    if is_of_other_process(slot.host):
        read_shard = _no_value
    elif snapshot:
        read_shard = slot.snapshot()
    max_elements = num_elements(box)
    if variable.dtype not in UNSPLIT_DTYPES:
        min_chunk_elements = math.ceil(num_elements(box) / _MAX_CHUNKS_OF_SHARD)
        max_elements = max(MAX_CHUNK_BYTES // item_bytes, min_chunk_elements)
    for chunk_box in split(box, max_elements):
        read_chunk = read_shard
        if tuple(size for _start, size in chunk_box) != slot.shape:  # some elements
            read_chunk = partial(_read_slice, read_shard, slices_in(chunk_box, box))
        yield Chunk(
            name=name,
            sizes=variable.shape.sizes,
            box=chunk_box,
            bytes=item_bytes * num_elements(chunk_box),
            host=slot.host,
            value=read_chunk,
        )


def _read_slice(read_shard: Callable[[], Any], slices: tuple[slice, ...]) -> Any:
    """Returns a slice of the elements that `read_shard` returns."""
    return read_shard()[slices]


def _unsharded_chunk(name: str, variable: Variable, snapshot: bool) -> Chunk:
    """Returns one chunk for a variable of a data type that files cannot split."""
    sizes = variable.shape.sizes
    _, slots = variable.slots_by_region()[0]
    read_value: Callable[[], Any] = variable.numpy
    if snapshot:
        read_value = partial(tf.constant, variable.numpy())
    box = full_box(sizes)
    return Chunk(
        name=name,
        sizes=sizes,
        box=box,
        bytes=_num_bytes(variable, box),
        host=slots[0].host,
        value=read_value,
    )


def _write_files(
    folder: str, chunks: list[Chunk], barrier: ProcessBarrier
) -> list[list[Chunk]]:
    """Writes chunks as TensorFlow's files, on all hosts in parallel; removes them from the
    list. Each process writes its files, and tells the others.

    Returns:
      The chunks of each file, without their values; also of the files of other processes.
    """
    error_text = "it has ended"  # reported after Ctrl-C, which is no `Exception`
    try:
        chunks_by_file = _write_files_of_process(folder, chunks)
        error_text = ""
    except Exception as error:
        error_text = str(error)
        raise
    finally:
        barrier.report(error_text)
    return chunks_by_file


def _write_files_of_process(folder: str, chunks: list[Chunk]) -> list[list[Chunk]]:
    """Writes the files of this process, and returns the chunks of all files; see
    `_write_files`.
    """
    chunks_by_host: dict[str, list[Chunk]] = defaultdict(list)
    while chunks:
        chunk = chunks.pop()
        chunks_by_host[chunk.host].append(chunk)
    with ThreadPoolExecutor(_WRITERS_PER_HOST * len(chunks_by_host) or 1) as writers:
        write_file = partial(_write_file, folder)
        groups = _group_by_file(chunks_by_host)
        return list(writers.map(write_file, itertools.count(), groups))


def _merge_files(folder: str, count: int) -> None:
    """Renames the files 0, 1, ..., count - 1, and merges their indices."""
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[os.path.join(folder, str(k)) for k in range(count)],
        destination_prefix=os.path.join(folder, PREFIX),
        delete_old_dirs=False,
    )


def _group_by_file(chunks_by_host: dict[str, list[Chunk]]) -> Iterator[list[Chunk]]:
    """Yields the chunks of one file after another, of each host in turn; removes them
    from the lists.
    """
    while chunks_by_host:
        for host, chunks in list(chunks_by_host.items()):
            file_chunks = [chunks.pop()]
            file_bytes = file_chunks[0].bytes
            while chunks and file_bytes + chunks[-1].bytes <= MAX_CHUNK_BYTES:
                file_bytes += chunks[-1].bytes
                file_chunks.append(chunks.pop())
            if not chunks:
                del chunks_by_host[host]
            yield file_chunks


def _write_file(folder: str, file_index: int, chunks: list[Chunk]) -> list[Chunk]:
    """Writes a file, unless another process writes it, and returns its chunks without
    their values.

    Raises:
      OSError: the file does not have the size of the chunks, as on a full disk.
    """
    without_values = [dataclasses.replace(chunk, value=_no_value) for chunk in chunks]
    if is_of_other_process(chunks[0].host):
        return without_values
    prefix = os.path.join(folder, str(file_index))
    with tf.device(cpu_of_host(chunks[0].host)):
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=[chunk.name for chunk in chunks],
            shape_and_slices=[slice_spec(chunk.sizes, chunk.box) for chunk in chunks],
            tensors=[chunk.value() for chunk in chunks],
        )
    size = os.path.getsize(f"{prefix}.{_DATA_SUFFIX}")
    expected = sum(chunk.bytes for chunk in chunks)
    if size != expected:
        raise OSError(f"{prefix} has {size:,} bytes, not {expected:,}")
    # A sign of life for the supervisor: a save may take longer than the
    # longest call that it waits for.
    beat(f"ran the saving of {prefix}")
    return without_values


def _no_value() -> Any:
    """Takes the place of the value of a chunk that was written, to free its memory, or that
    another process writes.
    """
    raise AssertionError("this chunk has no value here")


def _saved_tensors(
    variables: Mapping[str, Variable], chunks_by_file: Sequence[Sequence[Chunk]]
) -> dict[str, SavedTensor]:
    """Returns the manifest's entries of variables, by name."""
    boxes_and_files: dict[str, list[tuple[Box, int]]] = defaultdict(list)
    for file_index, chunks in enumerate(chunks_by_file):
        for chunk in chunks:
            boxes_and_files[chunk.name].append((chunk.box, file_index))
    return {
        name: _saved_tensor(variable, sorted(boxes_and_files[name]))
        for name, variable in variables.items()
    }


def _saved_tensor(
    variable: Variable, boxes_and_files: Sequence[tuple[Box, int]]
) -> SavedTensor:
    """Returns the manifest's entry of a variable.

    Args:
      variable: the variable.
      boxes_and_files: each box that was written, with the index of its file.
    """
    slices = tuple(spans(box) for box, _ in boxes_and_files)
    return SavedTensor(
        shape="; ".join(f"{dim.name}:{dim.size}" for dim in variable.shape),
        dtype=variable.dtype,
        slices=slices if len(slices) > 1 else (),
        files=tuple(file_index for _, file_index in boxes_and_files),
    )


def _num_bytes(variable: Variable, box: Box) -> int:
    """Returns the size of a box of a variable in bytes; the box () is one element."""
    return num_elements(box) * int(tf.as_dtype(variable.dtype).size)
