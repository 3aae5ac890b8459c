"""Checkpoints: slices on disk, under one key for each variable, whatever the layout.

The files are TensorFlow's V2 format with slice specifications, so a plain
`tf.train.load_checkpoint(path + "/variables")` reads whole tensors, and any other mesh and layout
restores what it needs. Each checkpoint is a folder, written under another name and then renamed.

    path = save("run", 600, {v.name: v for v in model.variables}, extra={"seed": 1})
    step, path = latest("run")
    extra = restore(path, {v.name: v for v in model.variables})
    restore(path, {v.name: v for v in encoder.variables}, partly=True)      # leave out the rest
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from meshtf.errors import CheckpointError, explain_error, near_misses
from meshtf.runtime.variables import Variable

_FOLDER = re.compile(r"step_(\d+)")
_FILE = "variables"


def save(directory: str, step: int, variables: Mapping[str, Variable],
         extra: Mapping[str, Any] | None = None, keep: int = 2) -> str:
  """Writes a checkpoint and returns its path; the newest `keep` checkpoints stay."""
  path = os.path.join(directory, f"step_{step:08d}")
  unfinished = f"{path}.tmp-{os.getpid()}"
  shutil.rmtree(unfinished, ignore_errors=True)
  os.makedirs(unfinished)
  names, specs, slices = [], [], []
  for name, variable in variables.items():
    for region, slice_ in variable.regions():
      names.append(name)
      specs.append(_slice_spec(variable.shape.sizes, region))
      slices.append(slice_.read_value())
  tf.raw_ops.SaveV2(prefix=os.path.join(unfinished, _FILE), tensor_names=names,
                    shape_and_slices=specs, tensors=slices)
  with open(os.path.join(unfinished, "extra.json"), "w") as file:
    json.dump({"step": step, **(extra or {})}, file)
  shutil.rmtree(path, ignore_errors=True)
  os.rename(unfinished, path)
  for _, old in _all(directory)[:-keep]:
    if old != path:
      shutil.rmtree(old)
  return path


def latest(directory: str) -> tuple[int, str] | None:
  """Returns step and path of the newest checkpoint, or None."""
  found = _all(directory)
  return found[-1] if found else None


def restore(path: str, variables: Mapping[str, Variable], partly: bool = False) -> dict[str, Any]:
  """Reads variables from a checkpoint of any layout, and returns what was saved as `extra`.

  Args:
    path: of the checkpoint.
    variables: what is read, under which names.
    partly: whether the checkpoint may hold more than these, as one of a model that they are a part
      of.

  Raises:
    CheckpointError: names or shapes differ, or the files cannot be read.
  """
  prefix = os.path.join(path, _FILE)
  try:
    reader = tf.train.load_checkpoint(prefix)
  except (ValueError, tf.errors.OpError) as error:
    raise CheckpointError(f"the checkpoint {path} cannot be read: {error}") from None
  _compare(path, reader, variables, partly)
  for name, variable in variables.items():
    variable.load(functools.partial(_read, prefix, name, variable))
  with open(os.path.join(path, "extra.json")) as file:
    return json.load(file)


def _read(prefix: str, name: str, variable: Variable, region: tuple[slice, ...]) -> Any:
  """Reads one region of what was saved under a name."""
  return tf.raw_ops.RestoreV2(
      prefix=prefix, tensor_names=[name], dtypes=[tf.as_dtype(variable.dtype)],
      shape_and_slices=[_slice_spec(variable.shape.sizes, region)])[0]


def _all(directory: str) -> list[tuple[int, str]]:
  if not os.path.isdir(directory):
    return []
  found = ((_FOLDER.fullmatch(name), name) for name in os.listdir(directory))
  return sorted((int(m.group(1)), os.path.join(directory, name)) for m, name in found if m)


def _slice_spec(sizes: tuple[int, ...], region: tuple[slice, ...]) -> str:
  if all((r.start, r.stop) == (0, size) for r, size in zip(region, sizes)):
    return ""
  spans = ":".join(f"{r.start},{r.stop - r.start}" for r in region)
  return " ".join(map(str, sizes)) + " " + spans


def _compare(path: str, reader: Any, variables: Mapping[str, Variable], partly: bool) -> None:
  shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
  missing = [n for n in variables if n not in shapes]
  unknown = [n for n in shapes if n not in variables]
  differ = [f"{n}: {tuple(shapes[n])} saved, {v.shape!r} now" for n, v in variables.items()
            if n in shapes and tuple(shapes[n]) != v.shape.sizes]
  differ += [f"{n}: {dtypes[n].name} saved, {v.dtype} now" for n, v in variables.items()
             if n in shapes and dtypes[n].name != v.dtype]
  if missing or differ or unknown and not partly:
    close = [f"{n} (close: {c})" for n in missing if (c := near_misses(n, unknown))]
    raise CheckpointError(explain_error(
        "the checkpoint is of another model.", checkpoint=path,
        **{"not saved": _some(close or missing),
           **({} if partly else {"not in model": _some(unknown)}), "other shape": _some(differ)},
        way_out="Use the configuration that it was saved with, or another model_dir."))


def _some(names: list[str]) -> str:
  more = f" and {len(names) - 6} more" if len(names) > 6 else ""
  return "\n".join(names[:6]) + more if names else "-"
