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

from meshtf.checkpoints.inspection.verification import check, check_file
from meshtf.checkpoints.manifest import FILE, PREFIX, Manifest, Saved
from meshtf.checkpoints.matching import difference
from meshtf.checkpoints.step_folders import all_steps, latest
from meshtf.checkpoints.tensor_slices import Box, full_box, num_elements, spec, split
from meshtf.checkpoints.write import MAX_CHUNK_BYTES, UNSPLIT_DTYPES
from meshtf.errors import CheckpointError, DamageError
from meshtf.names import Shape


def find(folder: str) -> str:
    """Returns the path of a checkpoint: the folder itself, or the newest complete one in
    it.

    Raises:
      CheckpointError: there is none.
    """
    if os.path.exists(os.path.join(folder, FILE)) or not all_steps(folder):
        if not os.path.isdir(folder):
            raise CheckpointError(f"there is no folder {folder}.")
        return folder.rstrip("/")
    newest = latest(folder)
    assert newest is not None
    return newest[1]


def inspect(folder: str) -> dict[str, Any]:
    """Returns the contents of a checkpoint, after reading all files and comparing checksums.

    Raises:
      CheckpointError: there is none, or its manifest is damaged.
    """
    path = find(folder)
    manifest = Manifest.read(path)
    return {
        "path": path,
        "step": manifest.step,
        "extra": dict(manifest.extra),
        "tensors": [
            {
                "name": name,
                "shape": saved.shape,
                "dtype": saved.dtype,
                "bytes": _bytes(saved),
                "slices": len(saved.boxes),
            }
            for name, saved in sorted(manifest.tensors.items())
        ],
        "files": [
            {
                "name": name,
                "bytes": file.bytes,
                "crc32": file.crc32,
                "damage": _damage(path, manifest, name),
            }
            for name, file in manifest.files.items()
        ],
    }


def _damage(path: str, manifest: Manifest, file: str) -> str:
    """Returns in words how a file is damaged; "": it is not."""
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
        f"{name} {_short(value)}" for name, value in report["extra"].items()
    )
    rows = [
        [t["name"], t["shape"], t["dtype"], f"{t['slices']:,}", f"{t['bytes']:,}"]
        for t in tensors
    ]
    files = [
        [f["name"], f"{f['bytes']:,}", f["crc32"], f["damage"] or "as it was written"]
        for f in report["files"]
    ]
    return "\n".join(
        [
            f"checkpoint  {report['path']}",
            f"step        {report['step']:,}",
            f"extra       {extra or 'nothing'}",
            f"tensors     {len(tensors):,} of {num_bytes:,} bytes",
            "",
            *_table(["name", "shape", "dtype", ">slices", ">bytes"], rows),
            "",
            *_table(["file", ">bytes", "crc32", ""], files),
        ]
    )


def _short(value: Any) -> str:
    """Returns a value of the `extra` data; the number of entries of a dict or list."""
    return f"({len(value)} entries)" if isinstance(value, dict | list) else str(value)


def compare(folder: str, other: str) -> dict[str, Any]:
    """Returns the differences between two checkpoints: names, shapes, data types, values.

    Raises:
      CheckpointError: there is none, or one is damaged.
    """
    paths = [find(folder), find(other)]
    manifests = [Manifest.read(path) for path in paths]
    for path, manifest in zip(paths, manifests):
        check(path, manifest)
    a, b = (manifest.tensors for manifest in manifests)
    common = [name for name in sorted(a) if name in b]
    specs = {}
    values = {}
    for name in common:
        if change := difference(a[name], Shape(b[name].shape), b[name].dtype):
            change = change.replace(" now", " in the second")
            specs[name] = change.replace(" saved", " in the first")
        if a[name].sizes == b[name].sizes:
            values[name] = _compare_values(paths, name, [a[name], b[name]])
    equal = [n for n, v in values.items() if not v["numbers"] and n not in specs]
    return {
        "paths": paths,
        "steps": [manifest.step for manifest in manifests],
        "only in the first": [name for name in sorted(a) if name not in b],
        "only in the second": [name for name in sorted(b) if name not in a],
        "of another kind": specs,
        "of other numbers": {n: v for n, v in values.items() if v["numbers"]},
        "equal": len(equal),
    }


def differs(comparison: dict[str, Any]) -> bool:
    """Returns whether anything differs, other than the step."""
    return any(comparison[kind] for kind in _KINDS)


def comparison_text(comparison: dict[str, Any]) -> str:
    """Returns the result of `compare` as text."""
    (path, other_path), (step, other_step) = comparison["paths"], comparison["steps"]
    lines = [
        f"first   {path}, step {step:,}",
        f"second  {other_path}, step {other_step:,}",
    ]
    for kind in ("only in the first", "only in the second"):
        if names := comparison[kind]:
            lines += [f"\n{kind}:", *(f"  {name}" for name in names)]
    if specs := comparison["of another kind"]:
        lines.append("\nof another kind:")
        lines += [f"  {name}: {change}" for name, change in specs.items()]
    if values := comparison["of other numbers"]:
        rows = [
            [name, f"{v['largest']:.6g}", f"{v['numbers']:,} of {v['of']:,}"]
            for name, v in values.items()
        ]
        titles = ["of other numbers", ">largest difference", ">numbers"]
        lines += ["", *_table(titles, rows)]
    return "\n".join([*lines, "", f"{comparison['equal']:,} tensors are equal."])


_KINDS = (
    "only in the first",
    "only in the second",
    "of another kind",
    "of other numbers",
)


def _compare_values(
    paths: Sequence[str], name: str, saved: Sequence[Saved]
) -> dict[str, Any]:
    """Compares the elements of a tensor in two checkpoints, a few at a time.

    Returns:
      The largest absolute difference, how many elements differ, and of how many.
    """
    largest = 0.0
    count = 0
    for box in _boxes_to_read(saved[0]):
        x, y = (_read(path, name, s, box) for path, s in zip(paths, saved))
        both_nan = (x != x) & (y != y)
        differs = (x != y) & ~both_nan
        if differs.any():
            is_complex = np.iscomplexobj(x) or np.iscomplexobj(y)
            wide = np.complex128 if is_complex else np.float64
            distance = np.abs(x[differs].astype(wide) - y[differs].astype(wide))
            largest = float(np.maximum(largest, distance.max()))
            count += int(differs.sum())
    total = num_elements(full_box(saved[0].sizes))
    return {"largest": largest, "numbers": count, "of": total}


def _boxes_to_read(saved: Saved) -> Iterator[Box]:
    """Yields the saved boxes, split so that each is read with little memory."""
    max_elements = MAX_CHUNK_BYTES // tf.as_dtype(saved.dtype).size
    for box in saved.boxes:
        if saved.dtype in UNSPLIT_DTYPES:
            yield box
        else:
            yield from split(box, max_elements)


def _read(path: str, name: str, saved: Saved, box: Box) -> Any:
    return tf.raw_ops.RestoreV2(
        prefix=f"{path}/{PREFIX}",
        tensor_names=[name],
        shape_and_slices=[spec(saved.sizes, box)],
        dtypes=[tf.as_dtype(saved.dtype)],
    )[0].numpy()


def _bytes(saved: Saved) -> int:
    return Shape(saved.shape).size * int(tf.as_dtype(saved.dtype).size)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns lines of aligned columns; those whose head begins with ">" to the right."""
    titles = [title.lstrip(">") for title in head]
    aligns = [">" if title.startswith(">") else "<" for title in head]
    widths = [max(map(len, column)) for column in zip(titles, *rows)]
    lines = []
    for row in [titles, *rows]:
        columns = zip(row, aligns, widths)
        line = "  ".join(f"{text:{align}{width}}" for text, align, width in columns)
        lines.append(line.rstrip())
    return lines
