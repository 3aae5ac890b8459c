"""The manifest of a checkpoint: what it holds, and in which files.

    manifest = Manifest.read("runs/lm/step_00000600")       # refuses one that was changed
    manifest.step, manifest.extra
    manifest.tensors["decoder/wq"].shape                     # "d_model:128; heads:4; d_kv:32"
    manifest.check_index(path)                               # see `checking` for all files

It is JSON, and its own last entry is the sum of all bytes before it. It has the sum of
TensorFlow's index, and that the sum of every slice: so nothing is read only to be
summed. Sums find damage, not forgery.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from meshtf.checkpoints.tensor_slices import Box, read_spec, whole
from meshtf.errors import DamageError
from meshtf.names import Shape
from meshtf.names.arguments import as_path, as_sequence, as_text, refuse

FILE = "manifest.json"
PREFIX = "variables"  # of TensorFlow's files
INDEX = f"{PREFIX}.index"
_FORMAT = 2
_WAY_OUT = (
    "Restore the folder from a copy, or delete it, so that the checkpoint before it is "
    "taken, or the run starts anew."
)
_CHUNK = 1 << 18  # stays in a processor's cache
_END = re.compile(rb'(.*,\n) "crc32": "([0-9a-f]{8})"\n\}\n', re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Saved:
    """What is saved under one name.

    Args:
      shape: such as "d_model:128; d_ff:512".
      dtype: the data type's name.
      slices: the boxes that it was written in; none: all in one.
      files: the number of the file that each of its boxes is in.
    """

    shape: str
    dtype: str
    slices: tuple[str, ...]
    files: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of its dimensions."""
        return Shape(self.shape).sizes

    @property
    def boxes(self) -> list[Box]:
        """The parts that it was written in."""
        return [read_spec(text) for text in self.slices] or [whole(self.sizes)]

    def boxes_in(self, file: int) -> list[Box]:
        """The parts that are in a file."""
        return [
            box
            for box, number in zip(self.boxes, self.files, strict=True)
            if number == file
        ]


@dataclasses.dataclass(frozen=True)
class Sum:
    """Size of a file, and its CRC-32, but of one that holds slices: these have sums of
    their own.
    """

    bytes: int
    crc32: str = ""

    @classmethod
    def of(cls, path: str) -> Sum:
        """Reads a file."""
        size, crc, chunk = 0, 0, memoryview(bytearray(_CHUNK))
        with open(path, "rb", buffering=0) as file:
            while n := file.readinto(chunk):
                size, crc = size + n, zlib.crc32(chunk[:n], crc)
        return cls(size, f"{crc:08x}")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds: tensors by name, files by name, and what was saved
    beside them.
    """

    step: int
    extra: Mapping[str, Any]
    tensors: Mapping[str, Saved]
    files: Mapping[str, Sum]

    def write(self, folder: str) -> None:
        """Writes it into a folder."""
        folder = as_path("folder", folder)
        if not os.path.isdir(folder):
            refuse("folder", folder, "a folder that is there")
        fields = {"format": _FORMAT, **dataclasses.asdict(self)}
        lines = (
            f" {json.dumps(key)}: {json.dumps(value)},\n"
            for key, value in fields.items()
        )
        body = ("{\n" + "".join(lines)).encode()
        with open(os.path.join(folder, FILE), "wb") as file:
            file.write(body + f' "crc32": "{zlib.crc32(body):08x}"\n}}\n'.encode())

    @classmethod
    def read(cls, folder: str) -> Manifest:
        """Returns the manifest of a checkpoint. Raises DamageError: it is absent or was
        changed.
        """
        folder = as_path("folder", folder)
        path = os.path.join(folder, FILE)
        try:
            with open(path, "rb") as file:
                text = file.read()
        except OSError as error:
            raise DamageError(
                folder, FILE, f"it cannot be read: {error.strerror}", _WAY_OUT
            ) from None
        found = _END.fullmatch(text)
        if found is None:
            raise DamageError(folder, FILE, "its end is not there", _WAY_OUT)
        if f"{zlib.crc32(found[1]):08x}".encode() != found[2]:
            raise DamageError(folder, FILE, "its sum is not the one that it tells")
        told = json.loads(text)
        if told["format"] != _FORMAT:
            raise DamageError(
                folder,
                FILE,
                f"it is of format {told['format']}, which another meshtf wrote: take "
                "that one to read it",
            )
        tensors = {
            name: Saved(s["shape"], s["dtype"], tuple(s["slices"]), tuple(s["files"]))
            for name, s in told["tensors"].items()
        }
        files = {name: Sum(**s) for name, s in told["files"].items()}
        return cls(told["step"], told["extra"], tensors, files)

    def check_sizes(self, folder: str, files: Iterable[str] | None = None) -> None:
        """Sees that all files, or some, are there, of their sizes. Raises
        DamageError.
        """
        folder = as_path("folder", folder)
        if files is not None:
            files = [
                as_text("files", name)
                for name in as_sequence("files", files, "names of files")
            ]
        for name in self.files if files is None else files:
            try:
                size = os.path.getsize(os.path.join(folder, name))
            except OSError as error:
                raise DamageError(
                    folder, name, f"it cannot be read: {error.strerror}"
                ) from None
            if size != self.files[name].bytes:
                raise DamageError(
                    folder,
                    name,
                    f"it has {size:,} bytes, not {self.files[name].bytes:,}",
                )

    def check_index(self, folder: str) -> None:
        """Reads TensorFlow's index and compares its sum. Raises DamageError."""
        folder = as_path("folder", folder)
        try:
            found = Sum.of(os.path.join(folder, INDEX))
        except OSError as error:
            raise DamageError(
                folder, INDEX, f"it cannot be read: {error.strerror}"
            ) from None
        if found != self.files[INDEX]:
            raise DamageError(
                folder,
                INDEX,
                f"its sum is {found.crc32}, not {self.files[INDEX].crc32}",
            )
