"""Saving: each host writes the slices that its devices hold, and nothing is sent or
joined.

    path = save("runs/lm", 600, {v.name: v for v in model.variables}, extra={"seed": 1})

The files are TensorFlow's V2 format with slice specifications, so a plain
`tf.train.load_checkpoint(path + "/variables")` reads whole tensors. A host writes many
files, two at a time, each of a few slices: so no more than that is ever copied from the
memory of devices.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import tensorflow as tf

from meshtf.checkpoints.arguments import check_numbers, check_variables
from meshtf.checkpoints.inspection.verification import data_file
from meshtf.checkpoints.manifest import INDEX, PREFIX, Manifest, Saved, Sum
from meshtf.checkpoints.step_folders import path_of, prune, replace, temporary
from meshtf.checkpoints.tensor_slices import (
    Box,
    cut,
    inside,
    numbers,
    spans,
    spec,
    whole,
)
from meshtf.errors import WriteError
from meshtf.names.arguments import as_path
from meshtf.runtime.heartbeat import beat
from meshtf.runtime.storage.slot import Slot
from meshtf.runtime.variable import Variable

PIECE = 32 << 20  # bytes that are written or read at a time
_AT_ONCE = 2  # files that a host writes
_ONLY = "data-00000-of-00001"
_MOST_PIECES = 64  # of one slice: readers look through all of them
NEVER_CUT = (
    "float16",
    "uint16",
    "uint32",
    "uint64",
)  # V2 files hold no slices of these
_OF_OPS = re.compile(
    r"\{\{.*?\}\} ?| ?\[Op:.*"
)  # what TensorFlow tells of its own nodes


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a variable on its way to a file.

    Args:
      name: of the variable.
      sizes: of all of it.
      box: which part.
      bytes: how large it is.
      host: the CPU that writes it: see `Slot.host`.
      value: returns it.
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
      directory: where the folder of the checkpoint will be.
      step: by which it goes.
      variables: what is saved, under which names.
      extra: what JSON can hold, to be saved with them.
      keep: how many of the newest checkpoints stay.
      keep_every: those of steps that are multiples of it stay as well; 0: no others.

    Raises:
      WriteError: it could not be written; nothing of it is left, and those before are
        there.
    """
    directory = as_path("directory", directory)
    check_numbers(step, keep, keep_every, extra)
    return write(directory, step, variables, pieces(variables), extra, keep, keep_every)


def write(
    directory: str,
    step: int,
    variables: Mapping[str, Variable],
    parts: list[Piece],
    extra: Mapping[str, Any] | None,
    keep: int,
    keep_every: int,
) -> str:
    """Writes pieces of variables as a checkpoint, as `save` does; takes them out of the
    list.
    """
    step = int(step)  # NumPy's are nothing that JSON can hold
    path = path_of(directory, step)
    unfinished = temporary(path)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        os.makedirs(unfinished)
        shards = _write_files(
            os.path.abspath(unfinished), parts
        )  # workers stand elsewhere
        files = {INDEX: Sum.of(os.path.join(unfinished, INDEX))}
        files |= {
            data_file(k, len(shards)): Sum(sum(p.bytes for p in shard))
            for k, shard in enumerate(shards)
        }
        Manifest(step, dict(extra or {}), _described(variables, shards), files).write(
            unfinished
        )
        replace(unfinished, path)
        prune(directory, step, keep, keep_every)
    except (OSError, tf.errors.OpError) as error:
        reason = _OF_OPS.sub("", getattr(error, "message", None) or str(error))
        raise WriteError(
            f"the checkpoint of step {step:,} could not be written to {directory}: "
            f"{reason}"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return path


def pieces(variables: Mapping[str, Variable], snapshot: bool = False) -> list[Piece]:
    """Returns what is to be written of variables: each different slice once.

    Of several hosts that hold the same slice, that one writes it which has the least to
    write.

    Args:
      variables: what is saved, under which names.
      snapshot: whether the values are those of now, whatever is assigned to the
        variables later. Where devices see the host's memory nothing is copied yet: what
        is changed before it is written is copied then.
    """
    check_variables(variables)
    load: dict[str, int] = defaultdict(int)
    found: list[Piece] = []
    for name, variable in variables.items():
        if variable.dtype in NEVER_CUT and len(variable.holders()) > 1:
            found.append(_joined(name, variable, snapshot))
            continue
        for region, holders in variable.holders():
            slot = min(holders, key=lambda held: load[held.host])
            box = tuple((r.start, r.stop - r.start) for r in region)
            load[slot.host] += _bytes(variable, box)
            found.extend(_cut(name, variable, box, slot, snapshot))
    return found


def _cut(
    name: str, variable: Variable, box: Box, slot: Slot, snapshot: bool
) -> Iterator[Piece]:
    host, item = slot.host, _bytes(variable, ())
    value = slot.snapshot() if snapshot else partial(slot.value_on, host)
    at_most = (
        numbers(box)
        if variable.dtype in NEVER_CUT
        else max(PIECE // item, -(-numbers(box) // _MOST_PIECES))
    )
    for part in cut(box, at_most):
        yield Piece(
            name,
            variable.shape.sizes,
            part,
            item * numbers(part),
            host,
            value if part == box else partial(_part, value, inside(part, box)),
        )


def _part(value: Callable[[], Any], where: tuple[slice, ...]) -> Any:
    return value()[where]


def _joined(name: str, variable: Variable, snapshot: bool) -> Piece:
    """Returns all of a variable whose data type files hold in one piece only."""
    sizes, host = variable.shape.sizes, variable.holders()[0][1][0].host
    value = partial(tf.constant, variable.numpy()) if snapshot else variable.numpy
    return Piece(name, sizes, whole(sizes), _bytes(variable, whole(sizes)), host, value)


def _write_files(folder: str, parts: list[Piece]) -> list[list[Piece]]:
    """Writes pieces as files of TensorFlow's, all hosts at once; returns which are in
    which file.
    """
    hosts: dict[str, list[Piece]] = defaultdict(list)
    while parts:
        hosts[parts[-1].host].append(parts.pop())
    with ThreadPoolExecutor(_AT_ONCE * len(hosts) or 1) as writers:
        shards = list(
            writers.map(
                partial(_write_shard, folder), itertools.count(), _shards(hosts)
            )
        )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[os.path.join(folder, str(k)) for k in range(len(shards))],
        destination_prefix=os.path.join(folder, PREFIX),
        delete_old_dirs=False,
    )
    return shards


def _shards(hosts: dict[str, list[Piece]]) -> Iterator[list[Piece]]:
    """Takes pieces away for one file after another, from each host in turn."""
    while hosts:
        for host, own in list(hosts.items()):
            shard = [own.pop()]
            while own and sum(p.bytes for p in shard) + own[-1].bytes <= PIECE:
                shard.append(own.pop())
            if not own:
                del hosts[host]
            yield shard


def _write_shard(folder: str, number: int, shard: list[Piece]) -> list[Piece]:
    """Writes a file, and returns what is in it without the values."""
    prefix = os.path.join(folder, str(number))
    with tf.device(shard[0].host):
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=[p.name for p in shard],
            shape_and_slices=[spec(p.sizes, p.box) for p in shard],
            tensors=[p.value() for p in shard],
        )
    size, expected = os.path.getsize(f"{prefix}.{_ONLY}"), sum(p.bytes for p in shard)
    if size != expected:
        raise OSError(f"{prefix} has {size:,} bytes, not {expected:,}")
    beat(f"ran the saving of {prefix}")  # a save may take longer than any call
    return [dataclasses.replace(p, value=_gone) for p in shard]


def _gone() -> Any:
    raise AssertionError("a piece that was written has no value any more")


def _described(
    variables: Mapping[str, Variable], shards: Sequence[Sequence[Piece]]
) -> dict[str, Saved]:
    found: dict[str, list[tuple[Box, int]]] = defaultdict(list)
    for number, shard in enumerate(shards):
        for piece in shard:
            found[piece.name].append((piece.box, number))
    for held in found.values():
        held.sort()
    return {
        name: Saved(
            "; ".join(f"{d.name}:{d.size}" for d in v.shape),
            v.dtype,
            tuple(spans(box) for box, _ in found[name]) if len(found[name]) > 1 else (),
            tuple(number for _, number in found[name]),
        )
        for name, v in variables.items()
    }


def _bytes(variable: Variable, box: Box) -> int:
    return numbers(box) * int(tf.as_dtype(variable.dtype).size)
