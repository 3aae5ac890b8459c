"""File formats of examples: text lines, JSON lines, tab-separated values, TFRecords.

A format finds the records of a file, and parses a record into an example:

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

# Start and length in bytes, and the number of the line or record, counted from 1.
RecordSpan = tuple[int, int, int]


class RecordError(ValueError):
    """A record that is no example, or at which the rest of a file becomes unreadable."""


class Format(Protocol):
    """The format of the files of a source. Its `repr` is part of the key of the index."""

    unit: str  # the name of a record in messages, such as "line"

    def spans(self, path: Path) -> Iterator[RecordSpan]:
        """Yields the records of a file. Raises BadRecord: the rest cannot be read."""

    def parse(self, record: bytes) -> Example:
        """Returns the example in a record. Raises BadRecord: there is none."""

    checked: bool  # whether all records are parsed when the index is made


class _Lines:
    unit = "line"
    checked = True

    def spans(self, path: Path) -> Iterator[RecordSpan]:
        start = 0
        with open(path, "rb") as file:
            for line_number, line in enumerate(file, 1):
                length = len(line.rstrip(b"\r\n"))
                if line.strip():
                    yield start, length, line_number
                start += len(line)


@dataclasses.dataclass(frozen=True)
class TextLines(_Lines):
    """Each line that is not empty is an example with one text."""

    field: str = "text"

    def parse(self, record: bytes) -> Example:
        return {self.field: _text(record)}


@dataclasses.dataclass(frozen=True)
class JsonLines(_Lines):
    """Each line is a JSON object, which has at least these fields."""

    fields: tuple[str, ...] = ()

    def parse(self, record: bytes) -> Example:
        try:
            example = json.loads(_text(record))
        except json.JSONDecodeError as error:
            raise RecordError(
                f"is no JSON: {error.msg}, at column {error.colno}"
            ) from error
        if not isinstance(example, dict):
            raise RecordError(f"is JSON, but no object: {type(example).__name__}")
        if missing := [field for field in self.fields if field not in example]:
            raise RecordError(
                f"has no field {missing[0]!r}, but "
                f"{', '.join(map(repr, example)) or 'none'}"
            )
        return example


@dataclasses.dataclass(frozen=True)
class Tsv(_Lines):
    """Each line has these columns, with a tab between two; there are no quotes."""

    columns: tuple[str, ...]
    header: bool = False  # whether the first line only names the columns

    def spans(self, path: Path) -> Iterator[RecordSpan]:
        for start, length, line_number in super().spans(path):
            if not self.header or line_number > 1:
                yield start, length, line_number

    def parse(self, record: bytes) -> Example:
        values = _text(record).split("\t")
        if len(values) != len(self.columns):
            raise RecordError(
                f"has {len(values)} fields; {len(self.columns)} are expected: "
                f"{', '.join(self.columns)}"
            )
        return dict(zip(self.columns, values))


@dataclasses.dataclass(frozen=True)
class TFRecords(Format):
    """Each record is a tf.train.Example: bytes become text, or stay bytes; integers and
    floats become arrays.
    """

    text: bool = True  # whether bytes are UTF-8
    unit = "record"
    checked = False  # TensorFlow checks the checksums of records

    def spans(self, path: Path) -> Iterator[RecordSpan]:
        with open(path, "rb") as file:
            if file.read(2) == b"\x1f\x8b":
                raise RecordError(
                    "cannot be read: the file is compressed, which allows no random access; "
                    "decompress it"
                )
        start = 0
        for record_number, length in enumerate(_record_lengths(path), 1):
            # A record has a header of 12 bytes, the data, and a checksum of 4 bytes.
            yield start + 12, length, record_number
            start += length + 16
        # TensorFlow takes an incomplete header for the end of the file.
        if start != path.stat().st_size:
            raise RecordError("is truncated or damaged")

    def parse(self, record: bytes) -> Example:
        try:
            features = tf.train.Example.FromString(record).features.feature
        except Exception as error:  # protobuf's error has no public name
            raise RecordError("is no tf.train.Example") from error
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
    """Yields the lengths of all records; TensorFlow checks their checksums.

    Raises:
      BadRecord: a record is damaged.
    """
    lengths = mtf.cluster.without_autotuning(
        tf.data.TFRecordDataset(str(path)).map(tf.strings.length)
    )
    num_read = 0
    with contextlib.suppress(tf.errors.DataLossError):
        for chunk in lengths.batch(1024).as_numpy_iterator():
            num_read += len(chunk)
            yield from chunk.tolist()
        return
    try:  # the last chunk one by one, up to the damaged record
        yield from map(int, lengths.skip(num_read).as_numpy_iterator())
    except tf.errors.DataLossError as error:
        raise RecordError("is truncated or damaged") from error


def write_records(path: Path, examples: Iterable[Example]) -> int:
    """Writes examples of integers and arrays of integers as a TFRecord file; returns the
    count of records.
    """
    count = 0
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
            count += 1
    return count


def _text(record: bytes) -> str:
    try:
        return record.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(
            f"is not UTF-8: byte {error.start + 1} of it is 0x{record[error.start]:02x}"
        ) from error


def record_error(
    path: Path, unit: str, record_number: int, error: RecordError
) -> DataError:
    """Returns the error of a record: file, line or record number, cause, way out."""
    return DataError(
        f"{path}:{record_number}: {unit} {record_number} {error}.\n"
        f'  Correct the file, or skip such {unit}s: on_bad = "skip".'
    )
