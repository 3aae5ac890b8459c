"""Saving: each host writes the shards of its devices; nothing is sent between hosts.

    path = save("runs/lm", 600, {v.name: v for v in model.variables}, extra={"seed": 1})

The files are TensorFlow's V2 format with slice specifications, so a plain
`tf.train.load_checkpoint(path + "/variables")` reads unsharded tensors. A host writes many
files of a few slices each, two at a time: so it never copies more than that from device
memory.
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
from meshtf.checkpoints.manifest import INDEX, PREFIX, Manifest, Saved, Sum
from meshtf.checkpoints.step_folders import path_of, prune, replace, temporary
from meshtf.checkpoints.tensor_slices import (
    Box,
    full_box,
    num_elements,
    slices_in,
    spans,
    spec,
    split,
)
from meshtf.errors import WriteError
from meshtf.names.arguments import as_path
from meshtf.runtime.heartbeat import beat
from meshtf.runtime.storage.slot import Slot
from meshtf.runtime.variable import Variable

MAX_CHUNK_BYTES = 32 << 20  # that are written or read at a time
_WRITERS_PER_HOST = 2
_MAX_CHUNKS_OF_SHARD = 64  # readers search all chunks of a variable
_DATA_SUFFIX = "data-00000-of-00001"
# Data types of which V2 files cannot store slices.
UNSPLIT_DTYPES = ("float16", "uint16", "uint32", "uint64")
# The names of TensorFlow's nodes in its error messages.
_NODE_NAMES = re.compile(r"\{\{.*?\}\} ?| ?\[Op:.*")


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A slice of a variable that is to be written to a file.

    Args:
      name: of the variable.
      sizes: of the variable.
      box: the slice.
      bytes: of the slice.
      host: the CPU that writes it: see `Slot.host`.
      value: returns its elements.
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
      directory: the folder in which the checkpoint's folder is created.
      step: the checkpoint's name and order.
      variables: what is saved, under which names.
      extra: data that JSON can represent, to be saved as well.
      keep: how many of the newest checkpoints to keep.
      keep_every: those of steps that are multiples of it are kept as well; 0: none.

    Raises:
      WriteError: it could not be written; its files are deleted, and the checkpoints
        before it remain.
    """
    directory = as_path("directory", directory)
    check_settings(step, keep, keep_every, extra)
    chunks = chunks_of(variables)
    return write(directory, step, variables, chunks, extra, keep, keep_every)


def write(
    directory: str,
    step: int,
    variables: Mapping[str, Variable],
    chunks: list[Chunk],
    extra: Mapping[str, Any] | None,
    keep: int,
    keep_every: int,
) -> str:
    """Writes chunks of variables as a checkpoint, as `save` does; removes them from the
    list, so that the memory of snapshots is freed.
    """
    step = int(step)  # JSON cannot represent integers of NumPy
    path = path_of(directory, step)
    unfinished = temporary(path)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        os.makedirs(unfinished)
        # Absolute, since workers have other working directories.
        chunks_by_file = _write_files(os.path.abspath(unfinished), chunks)
        manifest = Manifest(
            step,
            dict(extra or {}),
            _saved_tensors(variables, chunks_by_file),
            _file_sums(unfinished, chunks_by_file),
        )
        manifest.write(unfinished)
        replace(unfinished, path)
        prune(directory, step, keep, keep_every)
    except (OSError, tf.errors.OpError) as error:
        reason = _NODE_NAMES.sub("", getattr(error, "message", None) or str(error))
        raise WriteError(
            f"the checkpoint of step {step:,} could not be written to {directory}: "
            f"{reason}"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return path


def _file_sums(
    folder: str, chunks_by_file: Sequence[Sequence[Chunk]]
) -> dict[str, Sum]:
    """Returns size and checksum of the index, and sizes of the data files, by name."""
    sums = {INDEX: Sum.of(os.path.join(folder, INDEX))}
    for file_index, chunks in enumerate(chunks_by_file):
        name = data_file(file_index, len(chunks_by_file))
        sums[name] = Sum(sum(chunk.bytes for chunk in chunks))
    return sums


def chunks_of(variables: Mapping[str, Variable], snapshot: bool = False) -> list[Chunk]:
    """Returns the chunks to write of variables: each different shard once.

    If several hosts hold the same shard, the one with the fewest bytes to write writes it.

    Args:
      variables: what is saved, under which names.
      snapshot: whether to write the values of this moment, even if the variables are
        assigned to before that. On devices with the host's memory nothing is copied yet:
        a value is copied if it is assigned to before it is written.
    """
    check_variables(variables)
    bytes_of_hosts: dict[str, int] = defaultdict(int)
    chunks: list[Chunk] = []
    for name, variable in variables.items():
        if variable.dtype in UNSPLIT_DTYPES and len(variable.slots_by_region()) > 1:
            chunks.append(_unsharded(name, variable, snapshot))
            continue
        for region, slots in variable.slots_by_region():
            slot = min(slots, key=lambda slot: bytes_of_hosts[slot.host])
            box = tuple((r.start, r.stop - r.start) for r in region)
            bytes_of_hosts[slot.host] += _bytes(variable, box)
            chunks.extend(_chunks_of_shard(name, variable, box, slot, snapshot))
    return chunks


def _chunks_of_shard(
    name: str, variable: Variable, box: Box, slot: Slot, snapshot: bool
) -> Iterator[Chunk]:
    """Yields the chunks that a shard is split into."""
    host = slot.host
    item_bytes = _bytes(variable, ())
    value = slot.snapshot() if snapshot else partial(slot.value_on, host)
    max_elements = num_elements(box)
    if variable.dtype not in UNSPLIT_DTYPES:
        fewest = math.ceil(num_elements(box) / _MAX_CHUNKS_OF_SHARD)
        max_elements = max(MAX_CHUNK_BYTES // item_bytes, fewest)
    for chunk_box in split(box, max_elements):
        chunk_value = value
        if chunk_box != box:
            chunk_value = partial(_sliced, value, slices_in(chunk_box, box))
        size = item_bytes * num_elements(chunk_box)
        yield Chunk(name, variable.shape.sizes, chunk_box, size, host, chunk_value)


def _sliced(value: Callable[[], Any], slices: tuple[slice, ...]) -> Any:
    return value()[slices]


def _unsharded(name: str, variable: Variable, snapshot: bool) -> Chunk:
    """Returns one chunk for a variable of a data type that files cannot split."""
    sizes = variable.shape.sizes
    _, slots = variable.slots_by_region()[0]
    value = partial(tf.constant, variable.numpy()) if snapshot else variable.numpy
    box = full_box(sizes)
    return Chunk(name, sizes, box, _bytes(variable, box), slots[0].host, value)


def _write_files(folder: str, chunks: list[Chunk]) -> list[list[Chunk]]:
    """Writes chunks as TensorFlow's files, on all hosts in parallel.

    Returns:
      The chunks of each file.
    """
    hosts: dict[str, list[Chunk]] = defaultdict(list)
    while chunks:
        chunk = chunks.pop()
        hosts[chunk.host].append(chunk)
    with ThreadPoolExecutor(_WRITERS_PER_HOST * len(hosts) or 1) as writers:
        write_file = partial(_write_file, folder)
        chunks_by_file = list(
            writers.map(write_file, itertools.count(), _group_by_file(hosts))
        )
    file_indices = range(len(chunks_by_file))
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[os.path.join(folder, str(k)) for k in file_indices],
        destination_prefix=os.path.join(folder, PREFIX),
        delete_old_dirs=False,
    )
    return chunks_by_file


def _group_by_file(hosts: dict[str, list[Chunk]]) -> Iterator[list[Chunk]]:
    """Yields the chunks of one file after another, of each host in turn; removes them
    from the lists.
    """
    while hosts:
        for host, chunks in list(hosts.items()):
            file_chunks = [chunks.pop()]
            size = file_chunks[0].bytes
            while chunks and size + chunks[-1].bytes <= MAX_CHUNK_BYTES:
                size += chunks[-1].bytes
                file_chunks.append(chunks.pop())
            if not chunks:
                del hosts[host]
            yield file_chunks


def _write_file(folder: str, file_index: int, chunks: list[Chunk]) -> list[Chunk]:
    """Writes a file, and returns its chunks without the values."""
    prefix = os.path.join(folder, str(file_index))
    with tf.device(chunks[0].host):
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=[chunk.name for chunk in chunks],
            shape_and_slices=[spec(chunk.sizes, chunk.box) for chunk in chunks],
            tensors=[chunk.value() for chunk in chunks],
        )
    size = os.path.getsize(f"{prefix}.{_DATA_SUFFIX}")
    expected = sum(chunk.bytes for chunk in chunks)
    if size != expected:
        raise OSError(f"{prefix} has {size:,} bytes, not {expected:,}")
    beat(f"ran the saving of {prefix}")  # a save may take longer than any call
    return [dataclasses.replace(chunk, value=_no_value) for chunk in chunks]


def _no_value() -> Any:
    raise AssertionError("a chunk that was written has no value any more")


def _saved_tensors(
    variables: Mapping[str, Variable], chunks_by_file: Sequence[Sequence[Chunk]]
) -> dict[str, Saved]:
    """Returns the manifest's entries of variables, by name."""
    boxes: dict[str, list[tuple[Box, int]]] = defaultdict(list)
    for file_index, chunks in enumerate(chunks_by_file):
        for chunk in chunks:
            boxes[chunk.name].append((chunk.box, file_index))
    return {
        name: _saved_tensor(variable, sorted(boxes[name]))
        for name, variable in variables.items()
    }


def _saved_tensor(variable: Variable, boxes: Sequence[tuple[Box, int]]) -> Saved:
    slices = tuple(spans(box) for box, _ in boxes)
    return Saved(
        "; ".join(f"{dim.name}:{dim.size}" for dim in variable.shape),
        variable.dtype,
        slices if len(slices) > 1 else (),
        tuple(file_index for _, file_index in boxes),
    )


def _bytes(variable: Variable, box: Box) -> int:
    return num_elements(box) * int(tf.as_dtype(variable.dtype).size)
