"""Restoring: on any mesh and layout, and what is damaged is named.

    extra = restore(path, {v.name: v for v in model.variables})
    restore(path, {v.name: v for v in encoder.variables}, partly=True)     # leave out the rest
    restore(path, variables, partly=True, renames={"encoder": "bert/encoder"})
    found = restore_latest("runs/lm", variables)                           # the newest whole one

Each host reads, one after another, the slices that were written and that its devices need some of,
and puts them where they belong. So each is read once, whatever the layouts, and only a few slices
are in memory beside the variables.

Nothing is read twice for the sake of sums: the manifest has its own, and that of TensorFlow's
index; the index has one of every slice, with which TensorFlow compares what it reads. Where that
fails, the manifest's sums name the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.checkpoints.boxes import Box, inside, numbers, overlap, spec
from meshtf.checkpoints.fitting import check_fit, renamed
from meshtf.checkpoints.manifest import PREFIX, Manifest, Saved
from meshtf.checkpoints.steps import newest_first, warn_of
from meshtf.checkpoints.writing import PIECE, host_of
from meshtf.errors import DamageError
from meshtf.runtime.variables import Variable

_INDEX = f"{PREFIX}.index"
_UNREADABLE = (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.OutOfRangeError,
               tf.errors.InvalidArgumentError)
Targets = Sequence[tuple[Box, tf.Variable]]


class Restored(NamedTuple):
  """A checkpoint that was read: its step, its path, and what was saved beside the variables."""

  step: int
  path: str
  extra: dict[str, Any]


class _Read(NamedTuple):
  name: str
  saved: Saved
  box: Box
  targets: Targets


def restore(path: str, variables: Mapping[str, Variable], partly: bool = False,
            renames: Mapping[str, str] | None = None) -> dict[str, Any]:
  """Reads variables from a checkpoint of any layout, and returns what was saved as `extra`.

  Args:
    path: of the checkpoint.
    variables: what is read, under which names.
    partly: whether the checkpoint may hold more than these, as one of a model that they are a part
      of.
    renames: how names, or the first parts of names, are called in the checkpoint.

  Raises:
    CheckpointError: names or shapes differ; no variable was changed.
    DamageError: a file is not as it was written; some variables may have been read.
  """
  manifest = Manifest.read(path)
  manifest.check_sizes(path)
  manifest.check(path, [_INDEX])
  named = [(renamed(name, renames or {}), variable) for name, variable in variables.items()]
  check_fit(path, manifest, named, partly)
  try:
    _load(f"{path}/{PREFIX}", manifest, named)
  except _UNREADABLE as error:
    manifest.check(path)                 # names the file, unless the sums are right
    raise DamageError(path, _INDEX, f"what it tells cannot be read: {error.message}") from error
  return {"step": manifest.step, **manifest.extra}


def restore_latest(directory: str, variables: Mapping[str, Variable], partly: bool = False,
                   renames: Mapping[str, str] | None = None) -> Restored | None:
  """Reads the newest checkpoint of a folder that is whole; warns of those that are damaged.

  Returns:
    Which one was read; None: there is none.

  Raises:
    CheckpointError: names or shapes differ.
    DamageError: there are checkpoints, but none is whole.
  """
  damage = None
  for step, path, _ in newest_first(directory):
    try:
      return Restored(step, path, restore(path, variables, partly, renames))
    except DamageError as error:
      warn_of(error)
      damage = error
  if damage is not None:
    raise damage
  return None


def _load(prefix: str, manifest: Manifest, named: Sequence[tuple[str, Variable]]) -> None:
  hosts: dict[str, list[_Read]] = defaultdict(list)
  for name, variable in named:
    here: dict[str, list[tuple[Box, tf.Variable]]] = defaultdict(list)
    for region, holders in variable.holders():
      for slice_ in holders:
        box = tuple((r.start, r.stop - r.start) for r in region)
        here[host_of(slice_)].append((box, slice_))
    for host, targets in here.items():
      saved = manifest.tensors[name]
      hosts[host].extend(_Read(name, saved, box, targets) for box in saved.boxes
                         if any(overlap(box, own) is not None for own, _ in targets))
  with ThreadPoolExecutor(len(hosts) or 1) as readers:
    list(readers.map(lambda host: _load_host(prefix, host, hosts[host]), hosts))


def _load_host(prefix: str, host: str, reads: Sequence[_Read]) -> None:
  for batch in _batches(reads):
    with tf.device(host):
      values = tf.raw_ops.RestoreV2(
          prefix=prefix, tensor_names=[r.name for r in batch],
          shape_and_slices=[spec(r.saved.sizes, r.box) for r in batch],
          dtypes=[tf.as_dtype(r.saved.dtype) for r in batch])
    for read in reversed(batch):
      _put(values.pop(), read.box, read.targets)


def _put(value: tf.Tensor, box: Box, targets: Targets) -> None:
  """Gives slices what of a value is theirs."""
  for own, slice_ in targets:
    common = overlap(box, own)
    if common is None:
      continue
    with tf.device(slice_.device):
      if own == box:
        slice_.assign(value)
      else:                                # into its memory, so that `value` does not stay
        slice_[inside(common, own)].assign(value[inside(common, box)])


def _batches(reads: Sequence[_Read]) -> Iterator[list[_Read]]:
  """Yields what is read at once: few bytes, and many small variables."""
  batch: list[_Read] = []
  size = 0
  for read in reads:
    more = numbers(read.box) * tf.as_dtype(read.saved.dtype).size
    if batch and size + more > PIECE:
      yield batch
      batch, size = [], 0
    batch.append(read)
    size += more
  if batch:
    yield batch
