"""The manifest of a checkpoint: its tensors, and the files that they are in.

    manifest = Manifest.read("runs/lm/step_00000600")       # raises if it was changed
    manifest.step, manifest.extra
    manifest.tensors["decoder/wq"].shape                     # "d_model:128; heads:4; d_kv:32"
    manifest.check_index(path)                # raises if TensorFlow's index was changed

The manifest is a JSON file. Its last entry is the CRC-32 of all bytes before it. It contains
the CRC-32 of TensorFlow's index file, which contains a checksum of every slice. So no file
is read only to compute a checksum. (`inspection.verification.check` does read all files.)
Checksums detect damage, not forgery.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from meshtf.checkpoints.foreign_format import refuse_foreign
from meshtf.checkpoints.tensor_slices import Box, full_box, parse_spans
from meshtf.errors import CheckpointError, DamageError
from meshtf.names import Shape
from meshtf.names.arguments import as_path, as_sequence, as_text, refuse

FILE = "manifest.json"
PREFIX = "variables"  # the prefix of the names of TensorFlow's files
INDEX = f"{PREFIX}.index"
_FORMAT = 2  # the version of the format
_WAY_OUT = (
    "Restore the folder from a copy, or delete it, so that the checkpoint before it is "
    "taken, or the run starts anew."
)
_WAY_OUT_OF_ABSENCE = (
    "mtf.checkpoints.latest(folder) returns the newest checkpoint of a folder."
)
_MAX_LISTED_FILES = 6  # the most files of a folder that an error lists
_CHUNK_BYTES = 1 << 18  # fits into a processor's cache
# The bytes that the CRC-32 is computed of, and the CRC-32.
_CONTENTS = re.compile(rb'(.*,\n) "crc32": "([0-9a-f]{8})"\n\}\n', re.DOTALL)


@dataclasses.dataclass(frozen=True)
class SavedTensor:
    """The manifest's entry of a saved tensor.

    A tensor may be written as several slices. A box is the (start, size) of a slice along
    each dimension.

    Attributes:
      shape: the shape as text, such as "d_model:128; d_ff:512".
      dtype: the name of the data type.
      slices: the boxes that the tensor was written in, as texts from
        `tensor_slices.spans`; empty: it was written in one box.
      files: the index of the file of each box.
    """

    shape: str
    dtype: str
    slices: tuple[str, ...]
    files: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the tensor's dimensions."""
        return Shape(self.shape).sizes

    @property
    def boxes(self) -> list[Box]:
        """The boxes that the tensor was written in."""
        if not self.slices:
            return [full_box(self.sizes)]
        return [parse_spans(text) for text in self.slices]

    def boxes_in(self, file_index: int) -> list[Box]:
        """Returns the boxes that are in one file."""
        pairs = zip(self.boxes, self.files, strict=True)
        return [box for box, file in pairs if file == file_index]


@dataclasses.dataclass(frozen=True)
class FileSum:
    """Size and checksum of a file.

    Attributes:
      bytes: the size in bytes.
      crc32: the CRC-32 as hexadecimal text; "" for a file of slices, since the index has
        a checksum of each slice.
    """

    bytes: int
    crc32: str = ""

    @classmethod
    def of(cls, path: str) -> FileSum:
        """Returns the size and the CRC-32 of a file, after reading it."""
        size = 0
        crc = 0
        chunk = memoryview(bytearray(_CHUNK_BYTES))
        with open(path, "rb", buffering=0) as file:
            while num_bytes := file.readinto(chunk):
                size += num_bytes
                crc = zlib.crc32(chunk[:num_bytes], crc)
        return cls(size, f"{crc:08x}")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint.

    Attributes:
      step: the step of the checkpoint.
      extra: the `extra` data that was saved with the variables.
      tensors: the saved tensors, by name.
      files: the size and checksum of each file, by the name of the file.
    """

    step: int
    extra: Mapping[str, Any]
    tensors: Mapping[str, SavedTensor]
    files: Mapping[str, FileSum]

    def __repr__(self) -> str:
        return (
            f"<Manifest of step {self.step}: {len(self.tensors)} tensors, "
            f"{len(self.files)} files>"
        )

    def write(self, folder: str) -> None:
        """Writes the manifest into a folder."""
        folder = as_path("folder", folder)
        if not os.path.isdir(folder):
            refuse("folder", folder, "a folder that is there")
        fields = {"format": _FORMAT, **dataclasses.asdict(self)}
        lines = []
        for key, value in fields.items():
            lines.append(f" {json.dumps(key)}: {json.dumps(value)},\n")
        body = ("{\n" + "".join(lines)).encode()
        last_entry = f' "crc32": "{_crc32_text(body)}"\n}}\n'
        with open(os.path.join(folder, FILE), "wb") as file:
            file.write(body + last_entry.encode())

    @classmethod
    def read(cls, folder: str) -> Manifest:
        """Returns the manifest of a checkpoint.

        Raises:
          CheckpointError: the folder is no checkpoint; the message says what it is.
          DamageError: the manifest is missing, was changed, or has another format.
        """
        folder = as_path("folder", folder)
        _check_is_ours(folder)
        fields = json.loads(_verified_text(folder))
        if fields["format"] != _FORMAT:
            raise DamageError(
                folder,
                FILE,
                f"it is of format {fields['format']}, which another meshtf wrote: take "
                "that one to read it",
            )
        tensors = {}
        for name, saved in fields["tensors"].items():
            tensors[name] = SavedTensor(
                shape=saved["shape"],
                dtype=saved["dtype"],
                slices=tuple(saved["slices"]),
                files=tuple(saved["files"]),
            )
        return cls(
            step=fields["step"],
            extra=fields["extra"],
            tensors=tensors,
            files={name: FileSum(**values) for name, values in fields["files"].items()},
        )

    def check_sizes(self, folder: str, files: Iterable[str] | None = None) -> None:
        """Checks that files exist and have the right size.

        Args:
          folder: the folder of the checkpoint.
          files: the names of the files to check; None: all files.

        Raises:
          DamageError: a file is missing or has another size.
        """
        folder = as_path("folder", folder)
        if files is None:
            file_names = list(self.files)
        else:
            file_names = list(as_sequence("files", files, "names of files"))
        for name in file_names:
            as_text("files", name)  # raises ArgumentError unless it is a string
        for name in file_names:
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
        """Reads TensorFlow's index and compares its CRC-32.

        Raises:
          DamageError: the index is missing or was changed.
        """
        folder = as_path("folder", folder)
        try:
            index = FileSum.of(os.path.join(folder, INDEX))
        except OSError as error:
            raise DamageError(
                folder, INDEX, f"it cannot be read: {error.strerror}"
            ) from None
        if index != self.files[INDEX]:
            raise DamageError(
                folder,
                INDEX,
                f"its sum is {index.crc32}, not {self.files[INDEX].crc32}",
            )


def _check_is_ours(folder: str) -> None:
    """Raises CheckpointError if a path is of something else than a checkpoint of ours.

    A folder without a manifest is damaged if its other files, or its name, are those of a
    checkpoint.
    """
    if os.path.isfile(os.path.join(folder, FILE)):
        return
    refuse_foreign(folder)
    if os.path.isfile(folder):
        raise CheckpointError(f"{folder} is a file, but a checkpoint is a folder.")
    name = os.path.basename(os.path.abspath(folder))
    has_our_files = os.path.exists(os.path.join(folder, INDEX))
    if os.path.isdir(folder) and not has_our_files and not name.startswith("step_"):
        files = sorted(os.listdir(folder))
        listed = ", ".join(files[:_MAX_LISTED_FILES]) or "no files"
        raise CheckpointError(
            f"there is no checkpoint in {folder}, which has no {FILE}, but {listed}."
        )


def _crc32_text(data: bytes) -> str:
    """Returns the CRC-32 of data as hexadecimal text."""
    return f"{zlib.crc32(data):08x}"


def _verified_text(folder: str) -> bytes:
    """Returns the text of a manifest, after comparing its checksum.

    Raises:
      DamageError: the manifest is missing or was changed.
    """
    path = os.path.join(folder, FILE)
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        if not os.path.exists(folder):
            raise DamageError(
                folder,
                FILE,
                reason="the folder does not exist",
                way_out=_WAY_OUT_OF_ABSENCE,
            ) from None
        raise DamageError(
            folder,
            FILE,
            reason=f"it cannot be read: {error.strerror}",
            way_out=_WAY_OUT,
        ) from None
    match = _CONTENTS.fullmatch(text)
    if match is None:
        raise DamageError(folder, FILE, reason="its end is not there", way_out=_WAY_OUT)
    body, crc = match.groups()
    if _crc32_text(body).encode() != crc:
        raise DamageError(folder, FILE, "its sum is not the one that it states")
    return text
