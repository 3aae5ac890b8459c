"""What a checkpoint holds, and what differs between two, as data and as text.

Example:

    found = inspect("runs/lm")            # the newest checkpoint of a run, or one of them
    print(inspected(found))
    print(compared(compare("runs/lm/step_00000400", "runs/lm/step_00000600")))
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.checkpoints.inspection.verification import check, check_file
from meshtf.checkpoints.manifest import FILE, PREFIX, Manifest, Saved
from meshtf.checkpoints.matching import difference
from meshtf.checkpoints.step_folders import all_steps, latest
from meshtf.checkpoints.tensor_slices import Box, cut, numbers, spec
from meshtf.checkpoints.write import NEVER_CUT, PIECE
from meshtf.errors import CheckpointError, DamageError
from meshtf.names import Shape


def find(folder: str) -> str:
    """Returns the path of a checkpoint: the folder itself, or the newest whole one in
    it.

    Raises:
      CheckpointError: there is none.
    """
    if os.path.exists(os.path.join(folder, FILE)) or not all_steps(folder):
        if not os.path.isdir(folder):
            raise CheckpointError(f"there is no folder {folder}.")
        return folder.rstrip("/")
    found = latest(folder)
    assert found is not None
    return found[1]


def inspect(folder: str) -> dict[str, Any]:
    """Returns what a checkpoint holds, after all of its files were read and summed.

    Raises:
      CheckpointError: there is none, or its manifest is damaged.
    """
    path = find(folder)
    manifest = Manifest.read(path)
    files = []
    for name, file in manifest.files.items():
        try:
            check_file(path, manifest, name)
            damage = ""
        except DamageError as error:
            damage = (
                f"DAMAGED: {error.reason}"
                if error.file == name
                else f"unknown: {error.file}, which has its sums, is damaged"
            )
        files.append(
            {"name": name, "bytes": file.bytes, "crc32": file.crc32, "damage": damage}
        )
    return {
        "path": path,
        "step": manifest.step,
        "extra": dict(manifest.extra),
        "tensors": [
            {
                "name": name,
                "shape": s.shape,
                "dtype": s.dtype,
                "bytes": _bytes(s),
                "slices": len(s.boxes),
            }
            for name, s in sorted(manifest.tensors.items())
        ],
        "files": files,
    }


def inspected(found: dict[str, Any]) -> str:
    """Returns what `inspect` found as tables."""
    tensors = found["tensors"]
    extra = "  ".join(
        f"{name} {_short(value)}" for name, value in found["extra"].items()
    )
    rows = [
        [t["name"], t["shape"], t["dtype"], f"{t['slices']:,}", f"{t['bytes']:,}"]
        for t in tensors
    ]
    files = [
        [f["name"], f"{f['bytes']:,}", f["crc32"], f["damage"] or "as it was written"]
        for f in found["files"]
    ]
    return "\n".join(
        [
            f"checkpoint  {found['path']}",
            f"step        {found['step']:,}",
            f"beside it   {extra or 'nothing'}",
            f"tensors     {len(tensors):,} of {sum(t['bytes'] for t in tensors):,} "
            "bytes",
            "",
            *_table(["name", "shape", "dtype", ">slices", ">bytes"], rows),
            "",
            *_table(["file", ">bytes", "crc32", ""], files),
        ]
    )


def _short(value: Any) -> str:
    """Returns a value beside a checkpoint; of one with parts, how many there are."""
    return f"({len(value)} entries)" if isinstance(value, dict | list) else str(value)


def compare(folder: str, other: str) -> dict[str, Any]:
    """Returns what differs between two checkpoints: names, shapes, data types, numbers.

    Raises:
      CheckpointError: there is none, or one is damaged.
    """
    paths = [find(folder), find(other)]
    first, second = (Manifest.read(path) for path in paths)
    for path, manifest in zip(paths, (first, second)):
        check(path, manifest)
    common = [name for name in sorted(first.tensors) if name in second.tensors]
    shapes = {
        name: how
        for name in common
        if (
            how := difference(
                first.tensors[name],
                Shape(second.tensors[name].shape),
                second.tensors[name].dtype,
            )
        )
    }
    values = {
        name: _differs(paths, name, first.tensors[name], second.tensors[name])
        for name in common
        if first.tensors[name].sizes == second.tensors[name].sizes
    }
    return {
        "paths": paths,
        "steps": [first.step, second.step],
        "only in the first": [
            n for n in sorted(first.tensors) if n not in second.tensors
        ],
        "only in the second": [
            n for n in sorted(second.tensors) if n not in first.tensors
        ],
        "of another kind": {
            n: how.replace(" now", " in the second").replace(" saved", " in the first")
            for n, how in shapes.items()
        },
        "of other numbers": {n: v for n, v in values.items() if v["numbers"]},
        "equal": sum(not v["numbers"] and n not in shapes for n, v in values.items()),
    }


def differs(found: dict[str, Any]) -> bool:
    """Returns whether anything was different, other than the step."""
    return any(found[kind] for kind in _KINDS)


def compared(found: dict[str, Any]) -> str:
    """Returns what `compare` found as text."""
    lines = [
        f"first   {found['paths'][0]}, step {found['steps'][0]:,}",
        f"second  {found['paths'][1]}, step {found['steps'][1]:,}",
    ]
    for kind in _KINDS[:2]:
        lines += (
            [f"\n{kind}:", *(f"  {name}" for name in found[kind])]
            if found[kind]
            else []
        )
    if found["of another kind"]:
        lines += [
            "\nof another kind:",
            *(f"  {name}: {how}" for name, how in found["of another kind"].items()),
        ]
    if found["of other numbers"]:
        rows = [
            [name, f"{v['largest']:.6g}", f"{v['numbers']:,} of {v['of']:,}"]
            for name, v in found["of other numbers"].items()
        ]
        lines += [
            "",
            *_table(["of other numbers", ">largest difference", ">numbers"], rows),
        ]
    return "\n".join([*lines, "", f"{found['equal']:,} tensors are equal."])


_KINDS = (
    "only in the first",
    "only in the second",
    "of another kind",
    "of other numbers",
)


def _differs(
    paths: Sequence[str], name: str, first: Saved, second: Saved
) -> dict[str, Any]:
    """Compares two tensors, some of each at a time."""
    most, largest, count = PIECE // tf.as_dtype(first.dtype).size, 0.0, 0
    boxes = [
        part
        for box in first.boxes
        for part in (cut(box, most) if first.dtype not in NEVER_CUT else [box])
    ]
    for box in boxes:
        a, b = (
            _read(path, name, saved, box) for path, saved in zip(paths, (first, second))
        )
        other = (a != b) & ~((a != a) & (b != b))  # NaN is like NaN here
        if other.any():
            wide = (
                np.complex128
                if np.iscomplexobj(a) or np.iscomplexobj(b)
                else np.float64
            )
            far = np.abs(a[other].astype(wide) - b[other].astype(wide)).max()
            largest, count = float(np.maximum(largest, far)), count + int(other.sum())
    return {
        "largest": largest,
        "numbers": count,
        "of": numbers(tuple((0, n) for n in first.sizes)),
    }


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
    """Returns lines of columns; those whose head begins with ">" stand to the right."""
    titles = [title.lstrip(">") for title in head]
    widths = [max(map(len, column)) for column in zip(titles, *rows)]
    return [
        "  ".join(
            f"{cell:{'>' if title.startswith('>') else '<'}{width}}"
            for cell, width, title in zip(row, widths, head)
        ).rstrip()
        for row in [titles, *rows]
    ]
