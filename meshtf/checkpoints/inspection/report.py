"""The contents of a checkpoint, and the differences between two, as data and as text.

Example:

    report = inspect("runs/lm")           # a checkpoint, or the newest one of a run
    print(inspection_text(report))
    print(comparison_text(compare("runs/lm/step_00000400", "runs/lm/step_00000600")))
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.checkpoints.foreign_format import foreign_format
from meshtf.checkpoints.inspection.verification import check, check_file
from meshtf.checkpoints.manifest import FILE, PREFIX, Manifest, SavedTensor
from meshtf.checkpoints.matching import difference
from meshtf.checkpoints.step_folders import all_steps, latest
from meshtf.checkpoints.tensor_slices import (
    Box,
    full_box,
    num_elements,
    slice_spec,
    split,
)
from meshtf.checkpoints.write import MAX_CHUNK_BYTES, UNSPLIT_DTYPES
from meshtf.display import text_table
from meshtf.errors import CheckpointError, DamageError
from meshtf.names import Shape

# The kinds of differences, which are keys of the result of `compare`.
_KINDS = (
    "only in the first",
    "only in the second",
    "of another kind",
    "of other numbers",
)


def find_checkpoint(folder: str) -> str:
    """Returns the path of a checkpoint: the newest complete one of a folder of checkpoints,
    or the folder itself if it contains none.

    Raises:
      CheckpointError: the folder does not exist.
    """
    is_checkpoint = os.path.exists(os.path.join(folder, FILE))
    if is_checkpoint or not all_steps(folder):
        if not os.path.isdir(folder):
            foreign = foreign_format(folder)
            raise CheckpointError(f"there is no folder {folder}.\n  {foreign}".rstrip())
        return folder.rstrip("/")
    newest = latest(folder)
    assert newest is not None
    _, path = newest
    return path


def inspect(folder: str) -> dict[str, Any]:
    """Returns the contents of a checkpoint, after reading all files and comparing checksums.

    Args:
      folder: the folder of a checkpoint, or of the checkpoints of a run.

    Returns:
      What `python -m meshtf checkpoint inspect --json=FILE` writes: "path", "step" and
      "extra" of the checkpoint, and lists of "tensors" and "files".

    Raises:
      CheckpointError: the folder does not exist, or the manifest is damaged.
    """
    path = find_checkpoint(folder)
    manifest = Manifest.read(path)
    tensors = []
    for name, saved in sorted(manifest.tensors.items()):
        tensors.append(
            {
                "name": name,
                "shape": saved.shape,
                "dtype": saved.dtype,
                "bytes": _num_bytes(saved),
                "slices": len(saved.boxes),
            }
        )
    files = []
    for name, file in manifest.files.items():
        files.append(
            {
                "name": name,
                "bytes": file.bytes,
                "crc32": file.crc32,
                "damage": _damage_text(path, manifest, name),
            }
        )
    return {
        "path": path,
        "step": manifest.step,
        "extra": dict(manifest.extra),
        "tensors": tensors,
        "files": files,
    }


def _damage_text(path: str, manifest: Manifest, file: str) -> str:
    """Returns in words how a file is damaged, or ""."""
    try:
        check_file(path, manifest, file)
    except DamageError as error:
        if error.file == file:
            return f"DAMAGED: {error.reason}"
        return f"unknown: {error.file}, which has its sums, is damaged"
    return ""


def inspection_text(report: dict[str, Any]) -> str:
    """Returns the result of `inspect` as tables."""
    tensors = report["tensors"]
    num_bytes = sum(tensor["bytes"] for tensor in tensors)
    extra = "  ".join(
        f"{name} {_short_text(value)}" for name, value in report["extra"].items()
    )
    tensor_rows = []
    for tensor in tensors:
        slices = f"{tensor['slices']:,}"
        size = f"{tensor['bytes']:,}"
        tensor_rows.append(
            [tensor["name"], tensor["shape"], tensor["dtype"], slices, size]
        )
    file_rows = []
    for file in report["files"]:
        damage = file["damage"] or "as it was written"
        size = f"{file['bytes']:,}"
        file_rows.append([file["name"], size, file["crc32"], damage])
    tensor_titles = ("name", "shape", "dtype", "slices", "bytes")
    file_titles = ("file", "bytes", "crc32", "")
    return "\n".join(
        [
            f"checkpoint  {report['path']}",
            f"step        {report['step']:,}",
            f"extra       {extra or 'nothing'}",
            f"tensors     {len(tensors):,} of {num_bytes:,} bytes",
            "",
            text_table(tensor_titles, tensor_rows, align="<<<>>"),
            "",
            text_table(file_titles, file_rows, align="<><<"),
        ]
    )


def _short_text(value: Any) -> str:
    """Returns a value of the `extra` data as text; of a dict or list, only its length."""
    if isinstance(value, dict | list):
        return f"({len(value)} entries)"
    return str(value)


def compare(folder: str, other_folder: str) -> dict[str, Any]:
    """Returns the differences between two checkpoints: names, shapes, data types, values.

    Args:
      folder: the folder of the first checkpoint, or of a run.
      other_folder: the folder of the second checkpoint, or of a run.

    Returns:
      What `python -m meshtf checkpoint diff --json=FILE` writes: "paths" and
      "steps", a list or dict for each kind of difference (`_KINDS`), and the count of
      "equal" tensors.

    Raises:
      CheckpointError: a folder does not exist, or a checkpoint is damaged.
    """
    paths = [find_checkpoint(folder), find_checkpoint(other_folder)]
    manifests = [Manifest.read(path) for path in paths]
    for path, manifest in zip(paths, manifests):
        check(path, manifest)
    first_tensors, second_tensors = (manifest.tensors for manifest in manifests)
    type_changes = {}
    value_changes = {}
    num_equal = 0
    for name in sorted(first_tensors):
        if name not in second_tensors:
            continue
        first_saved = first_tensors[name]
        second_saved = second_tensors[name]
        type_change = difference(
            first_saved, Shape(second_saved.shape), second_saved.dtype
        )
        if type_change:
            # `difference` says "saved" of the first, and "now" of the second.
            type_change = type_change.replace(" now", " in the second")
            type_changes[name] = type_change.replace(" saved", " in the first")
        if first_saved.sizes == second_saved.sizes:
            value_change = _compare_values(paths, name, [first_saved, second_saved])
            if value_change["numbers"]:
                value_changes[name] = value_change
            elif not type_change:
                num_equal += 1
    return {
        "paths": paths,
        "steps": [manifest.step for manifest in manifests],
        "only in the first": sorted(first_tensors.keys() - second_tensors.keys()),
        "only in the second": sorted(second_tensors.keys() - first_tensors.keys()),
        "of another kind": type_changes,
        "of other numbers": value_changes,
        "equal": num_equal,
    }


def differs(comparison: dict[str, Any]) -> bool:
    """Returns whether the result of `compare` has a difference other than the step."""
    return any(comparison[kind] for kind in _KINDS)


def comparison_text(comparison: dict[str, Any]) -> str:
    """Returns the result of `compare` as text."""
    first_path, second_path = comparison["paths"]
    first_step, second_step = comparison["steps"]
    lines = [
        f"first   {first_path}, step {first_step:,}",
        f"second  {second_path}, step {second_step:,}",
    ]
    for kind in ("only in the first", "only in the second"):
        names = comparison[kind]
        if names:
            lines += [f"\n{kind}:", *(f"  {name}" for name in names)]
    type_changes = comparison["of another kind"]
    if type_changes:
        lines.append("\nof another kind:")
        lines += [f"  {name}: {change}" for name, change in type_changes.items()]
    value_changes = comparison["of other numbers"]
    if value_changes:
        rows = []
        for name, change in value_changes.items():
            counts = f"{change['numbers']:,} of {change['of']:,}"
            rows.append([name, f"{change['largest']:.6g}", counts])
        titles = ("of other numbers", "largest difference", "numbers")
        lines += ["", text_table(titles, rows, align="<>>")]
    return "\n".join([*lines, "", f"{comparison['equal']:,} tensors are equal."])


def _compare_values(
    paths: Sequence[str], name: str, saved: Sequence[SavedTensor]
) -> dict[str, Any]:
    """Compares the elements of a tensor in two checkpoints, one slice after another.

    Args:
      paths: the paths of both checkpoints.
      name: the name of the tensor.
      saved: the entry of the tensor in both manifests.

    Returns:
      The largest absolute difference as "largest", the count of differing elements as
      "numbers", and the count of all elements as "of".
    """
    largest = 0.0
    num_different = 0
    first_path, second_path = paths
    first_saved, second_saved = saved
    for box in _boxes_to_read(first_saved):
        x = _read(first_path, name, first_saved, box)
        y = _read(second_path, name, second_saved, box)
        both_nan = (x != x) & (y != y)  # a NaN differs from itself
        is_different = (x != y) & ~both_nan
        if is_different.any():
            is_complex = np.iscomplexobj(x) or np.iscomplexobj(y)
            wide_dtype = np.complex128 if is_complex else np.float64
            different_x = x[is_different].astype(wide_dtype)
            different_y = y[is_different].astype(wide_dtype)
            distances = np.abs(different_x - different_y)
            largest = float(np.maximum(largest, distances.max()))
            num_different += int(is_different.sum())
    total = num_elements(full_box(first_saved.sizes))
    return {"largest": largest, "numbers": num_different, "of": total}


def _boxes_to_read(saved: SavedTensor) -> Iterator[Box]:
    """Yields the saved boxes, split so that each is read with little memory."""
    max_elements = MAX_CHUNK_BYTES // tf.as_dtype(saved.dtype).size
    for box in saved.boxes:
        if saved.dtype in UNSPLIT_DTYPES:
            yield box
        else:
            yield from split(box, max_elements)


def _read(path: str, name: str, saved: SavedTensor, box: Box) -> Any:
    """Returns the elements of a box of a tensor in the checkpoint at a path."""
    (value,) = tf.raw_ops.RestoreV2(
        prefix=f"{path}/{PREFIX}",
        tensor_names=[name],
        shape_and_slices=[slice_spec(saved.sizes, box)],
        dtypes=[tf.as_dtype(saved.dtype)],
    )
    return value.numpy()


def _num_bytes(saved: SavedTensor) -> int:
    """Returns the size of a tensor in bytes."""
    return Shape(saved.shape).size * int(tf.as_dtype(saved.dtype).size)
