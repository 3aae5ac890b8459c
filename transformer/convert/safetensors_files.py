"""Tensors by name in a folder of safetensors files: one file, or several and an index.

    tensors = TensorFiles("runs/bert")            # reads names, shapes and data types
    kernel = tensors["bert.pooler.dense.weight"]  # reads this tensor: float32

    with new_folder("runs/out") as folder:
      write_tensors(folder, arrays)

Large models have several files; `model.safetensors.index.json` maps tensors to files.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  gives NumPy the data type bfloat16
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

import meshtf as mtf

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9
_MAX_LISTED_FILES = 8  # the most files of a folder that an error message lists
# Data types, as safetensors names them, that float32 represents exactly -> their names.
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class _Entry(NamedTuple):
    """A tensor in an open file.

    Attributes:
      file: the open file.
      shape: the shape of the tensor.
      dtype: the data type of the tensor in safetensors' names, such as "F32".
    """

    file: Any
    shape: tuple[int, ...]
    dtype: str


class TensorFiles(Mapping[str, np.ndarray]):
    """The tensors of a folder by name, sorted by name; each is read when it is accessed.

    Args:
      folder: a folder with model.safetensors, or with several files and their index.

    Raises:
      CheckpointError: the folder has neither, a file cannot be read, or a file does not
        have a tensor that the index says it has.
    """

    def __init__(self, folder: str | Path) -> None:
        self._entries: dict[str, _Entry] = {}
        with _read_errors(folder):
            for path, indexed_names in _files(Path(folder)):
                file = safe_open(str(path), framework="np")
                names = file.keys() if indexed_names is None else indexed_names
                for name in names:
                    header = file.get_slice(name)  # reads no values
                    shape = tuple(header.get_shape())
                    self._entries[name] = _Entry(
                        file, shape=shape, dtype=header.get_dtype()
                    )

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor, without reading it."""
        return self._entries[name].shape

    @property
    def common_dtype(self) -> str:
        """The data type of all tensors, such as "bfloat16"; "float32" if they differ."""
        dtypes = {entry.dtype for entry in self._entries.values()}
        return _FLOATS.get(dtypes.pop(), "float32") if len(dtypes) == 1 else "float32"

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns a tensor of floats as float32.

        Raises:
          CheckpointError: the tensor has another data type, such as integers or quantized
            numbers.
        """
        entry = self._entries[name]
        if entry.dtype not in _FLOATS:
            raise mtf.CheckpointError(
                mtf.errors.explain_error(
                    f"{name!r} has data type {entry.dtype}.",
                    way_out=f"Save the model as one of {', '.join(_FLOATS)}.",
                )
            )
        return np.asarray(entry.file.get_tensor(name), np.float32)


def _files(folder: Path) -> Iterator[tuple[Path, list[str] | None]]:
    """Yields the path of each file of a folder, and the names of its tensors in the index;
    None: there is no index, and all tensors of the file count.
    """
    if not (folder / INDEX).is_file():
        yield folder / FILE, None
        return
    index = json.loads((folder / INDEX).read_text(encoding="utf-8-sig"))
    names_by_file: dict[str, list[str]] = {}
    for name, file in index["weight_map"].items():
        names_by_file.setdefault(file, []).append(name)
    for file, names in names_by_file.items():
        yield folder / file, names


@contextlib.contextmanager
def _read_errors(folder: str | Path) -> Iterator[None]:
    """A context in which errors of reading a folder become a CheckpointError."""
    try:
        yield
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        files = ["none"]
        if Path(folder).is_dir():
            files = sorted(path.name for path in Path(folder).iterdir())
        raise mtf.CheckpointError(
            mtf.errors.explain_error(
                "the tensors of a folder cannot be read.",
                folder=folder,
                files=", ".join(files[:_MAX_LISTED_FILES]),
                error=error,
                way_out=f"It must have {FILE}, or {INDEX} and the files in it.",
            )
        ) from None


def write_tensors(
    folder: str | Path,
    tensors: Mapping[str, np.ndarray],
    dtype: str = "float32",
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes tensors as one file; if they are too large, as several files and an index.

    Args:
      folder: an existing folder.
      tensors: the tensors by name.
      dtype: the data type of the tensors in the files.
      shard_bytes: the maximum bytes of a file; a larger tensor has a separate file.
    """
    tensors = {
        name: tensor.astype(dtype, copy=False) for name, tensor in tensors.items()
    }
    shards = _split_into_shards(tensors, shard_bytes)
    files = [FILE]
    if len(shards) > 1:
        files = [
            f"model-{shard_number:05d}-of-{len(shards):05d}.safetensors"
            for shard_number in range(1, len(shards) + 1)
        ]
    weight_map: dict[str, str] = {}
    for file, shard in zip(files, shards):
        # Hugging Face transformers requires this metadata.
        save_file(shard, str(Path(folder, file)), metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)  # name of a tensor -> its file
    if len(shards) > 1:
        total_size = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
        text = json.dumps(index, indent=2) + "\n"
        Path(folder, INDEX).write_text(text, encoding="utf-8")


def exact_dtype(tensors: Mapping[str, np.ndarray], dtype: str) -> str:
    """Returns a data type if it has every value of the tensors exactly, otherwise "float32".

    Args:
      tensors: the tensors by name, float32.
      dtype: the name of the data type, such as "bfloat16".
    """
    if dtype == "float32" or dtype not in _FLOATS.values():
        return "float32"
    for tensor in tensors.values():
        # Values beyond the range of float16 become infinite, and differ.
        with np.errstate(over="ignore"):
            rounded = tensor.astype(dtype).astype(np.float32)
        if not np.array_equal(rounded, tensor, equal_nan=True):
            return "float32"
    return dtype


def _split_into_shards(
    tensors: Mapping[str, np.ndarray], shard_bytes: int
) -> list[dict[str, np.ndarray]]:
    """Returns the tensors of each file, in order; a file has at most `shard_bytes` bytes,
    or one larger tensor.
    """
    shards: list[dict[str, np.ndarray]] = [{}]
    free_bytes = shard_bytes
    for name, tensor in tensors.items():
        if tensor.nbytes > free_bytes and shards[-1]:
            shards.append({})
            free_bytes = shard_bytes
        shards[-1][name] = np.ascontiguousarray(tensor)
        free_bytes -= tensor.nbytes
    return shards


@contextlib.contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A context with a temporary folder to write to, which is renamed to `path` at the end,
    or deleted after an error.

    Raises:
      CheckpointError: the path exists already.
    """
    if Path(path).exists():
        raise mtf.CheckpointError(
            f"{path} exists already, and is not overwritten: give another path."
        )
    temporary_folder = Path(f"{path}.tmp-{os.getpid()}")
    temporary_folder.mkdir(parents=True)
    try:
        yield temporary_folder
        temporary_folder.rename(path)
    finally:
        shutil.rmtree(temporary_folder, ignore_errors=True)  # absent if it was renamed
