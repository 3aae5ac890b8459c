"""How files hold examples: lines of text, JSON lines, tab-separated values, TFRecords.

A format says where in a file the pieces are, and turns a piece into an example:

>>> Tsv(columns=("question", "answer")).parse(b"1 + 1\\t2")
{'question': '1 + 1', 'answer': '2'}
>>> JsonLines().parse(b'{"text": "a"}')
{'text': 'a'}
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf

import meshtf as mtf
from transformer.data.errors import DataError
from transformer.data.sources.base import Example

Piece = tuple[int, int, int]  # where it begins, how long it is, its number in the file


class BadPiece(ValueError):
    """A piece that is no example, or a place from which on a file cannot be read."""


class Format(Protocol):
    """What is told of the files of a source. Its `repr` names it: other words, another
    index.
    """

    unit: str  # what a piece is, as "line"

    def pieces(self, path: Path) -> Iterator[Piece]:
        """Yields the pieces of a file. Raises BadPiece: it cannot be read from there
        on.
        """

    def parse(self, piece: bytes) -> Example:
        """Returns the example that a piece is. Raises BadPiece: it is none."""

    checked: bool  # whether all pieces are parsed when the index is made


class _Lines:
    unit, checked = "line", True

    def pieces(self, path: Path) -> Iterator[Piece]:
        place = 0
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if (length := len(line.rstrip(b"\r\n"))) and line.strip():
                    yield place, length, number
                place += len(line)


@dataclasses.dataclass(frozen=True)
class TextLines(_Lines):
    """Each line that is not empty is an example with one text."""

    field: str = "text"

    def parse(self, piece: bytes) -> Example:
        return {self.field: _text(piece)}


@dataclasses.dataclass(frozen=True)
class JsonLines(_Lines):
    """Each line is a JSON object, which has at least these fields."""

    fields: tuple[str, ...] = ()

    def parse(self, piece: bytes) -> Example:
        try:
            example = json.loads(_text(piece))
        except json.JSONDecodeError as error:
            raise BadPiece(
                f"is no JSON: {error.msg}, at column {error.colno}"
            ) from error
        if not isinstance(example, dict):
            raise BadPiece(f"is JSON, but no object: {type(example).__name__}")
        if missing := [field for field in self.fields if field not in example]:
            raise BadPiece(
                f"has no field {missing[0]!r}, but "
                f"{', '.join(map(repr, example)) or 'none'}"
            )
        return example


@dataclasses.dataclass(frozen=True)
class Tsv(_Lines):
    """Each line has these columns, with a tab between two; there are no quotes."""

    columns: tuple[str, ...]
    header: bool = False  # whether the first line only names the columns

    def pieces(self, path: Path) -> Iterator[Piece]:
        return (
            piece
            for piece in super().pieces(path)
            if not (self.header and piece[2] == 1)
        )

    def parse(self, piece: bytes) -> Example:
        values = _text(piece).split("\t")
        if len(values) != len(self.columns):
            raise BadPiece(
                f"has {len(values)} fields; {len(self.columns)} are expected: "
                f"{', '.join(self.columns)}"
            )
        return dict(zip(self.columns, values))


@dataclasses.dataclass(frozen=True)
class TFRecords(Format):
    """Each record is a tf.train.Example: bytes become text, or stay; numbers become
    arrays.
    """

    text: bool = True  # whether bytes are UTF-8
    unit, checked = "record", False  # their checksums are

    def pieces(self, path: Path) -> Iterator[Piece]:
        with open(path, "rb") as file:
            if file.read(2) == b"\x1f\x8b":
                raise BadPiece(
                    "is not there: the file is compressed, so that no record can be "
                    "gone to; unpack it"
                )
        place = 0
        for number, length in enumerate(_record_lengths(path), 1):
            yield place + 12, length, number  # its length, 8 bytes, and a checksum, 4
            place += length + 16
        if (
            place != path.stat().st_size
        ):  # TensorFlow takes less than a header for the end
            raise BadPiece("is cut short or damaged")

    def parse(self, piece: bytes) -> Example:
        try:
            features = tf.train.Example.FromString(piece).features.feature
        except Exception as error:  # protobuf's error has no public name of its own
            raise BadPiece("is no tf.train.Example") from error
        return {name: self._value(feature) for name, feature in features.items()}

    def _value(
        self, feature: tf.train.Feature
    ) -> str | bytes | list[str] | list[bytes] | np.ndarray:
        kind = feature.WhichOneof("kind")
        if kind != "bytes_list":
            values = getattr(feature, kind).value if kind else []
            return np.array(values, np.float32 if kind == "float_list" else np.int64)
        values = [
            _text(value) if self.text else value for value in feature.bytes_list.value
        ]
        return values[0] if len(values) == 1 else values


def _record_lengths(path: Path) -> Iterator[int]:
    """Yields the lengths of all records; TensorFlow checks their checksums."""
    lengths = mtf.untuned(tf.data.TFRecordDataset(str(path)).map(tf.strings.length))
    known = 0
    with contextlib.suppress(tf.errors.DataLossError):
        for some in lengths.batch(1024).as_numpy_iterator():
            known += len(some)
            yield from some.tolist()
        return
    try:  # one by one, up to the one that is damaged
        yield from map(int, lengths.skip(known).as_numpy_iterator())
    except tf.errors.DataLossError as error:
        raise BadPiece("is cut short or damaged") from error


def write_records(path: Path, examples: Iterable[Example]) -> int:
    """Writes whole numbers and arrays of them as a TFRecord; returns how many records
    there are.
    """
    number = 0
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            features = {
                name: tf.train.Feature(
                    int64_list=tf.train.Int64List(value=np.asarray(value).reshape(-1))
                )
                for name, value in example.items()
            }
            writer.write(
                tf.train.Example(
                    features=tf.train.Features(feature=features)
                ).SerializeToString(deterministic=True)
            )
            number += 1
    return number


def _text(piece: bytes) -> str:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadPiece(
            f"is not UTF-8: byte {error.start + 1} of it is 0x{piece[error.start]:02x}"
        ) from error


def bad(path: Path, unit: str, number: int, error: BadPiece) -> DataError:
    """Returns the error that names file, line and cause, and the way out."""
    return DataError(
        f"{path}:{number}: {unit} {number} {error}.\n"
        '  Mend the file, or leave such pieces out: on_bad = "skip".'
    )
