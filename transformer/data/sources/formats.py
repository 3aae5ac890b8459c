"""File formats of examples: text lines, JSON lines, tab-separated values, TFRecords.

A format finds the records of a file, such as lines, and parses a record into an example:

>>> Tsv(columns=("question", "answer")).parse(b"1 + 1\\t2")
{'question': '1 + 1', 'answer': '2'}
>>> JsonLines().parse(b'{"text": "a"}')
{'text': 'a'}
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

import meshtf as mtf
from transformer.data.errors import DataError
from transformer.data.sources.base import Example

# A record of a TFRecord file has a header, the data, and a checksum.
_HEADER_BYTES = 12
_CHECKSUM_BYTES = 4
_RECORDS_PER_READ = 1024


class RecordSpan(NamedTuple):
    """The location of a record in a file.

    Attributes:
      start: the offset of the first byte.
      length: the count of bytes.
      record_number: the number of the line or record in the file, counted from 1.
    """

    start: int
    length: int
    record_number: int


class RecordError(ValueError):
    """Raised for a record that is not an example, or that is damaged, so that the rest of the
    file cannot be read. The message continues a sentence such as "line 3 ...".
    """


class Format(Protocol):
    """The format of the files of a source. Its `repr` is part of the key of a file's index.

    Attributes:
      unit: the name of a record in messages, such as "line".
      checked: whether all records are parsed when the index is made, to find bad ones.
    """

    unit: str
    checked: bool

    def spans(self, path: Path) -> Iterator[RecordSpan]:
        """Yields the location of each record of a file.

        Raises:
          RecordError: the rest of the file cannot be read.
        """

    def parse(self, record: bytes) -> Example:
        """Returns the example in a record.

        Raises:
          RecordError: the record is not an example.
        """


class _Lines:
    """The base class of formats in which each line that is not empty is a record."""

    unit = "line"
    checked = True

    def spans(self, path: Path) -> Iterator[RecordSpan]:
        """Yields the location of each line that is not empty, without its line break and
        without a byte order mark before the first one.
        """
        start = 0
        with open(path, "rb") as file:
            for line_number, line in enumerate(file, start=1):
                if line_number == 1 and line.startswith(codecs.BOM_UTF8):
                    start = len(codecs.BOM_UTF8)
                    line = line[start:]
                length = len(line.rstrip(b"\r\n"))
                if line.strip():
                    yield RecordSpan(start, length, record_number=line_number)
                start += len(line)


@dataclasses.dataclass(frozen=True)
class TextLines(_Lines):
    """Each line that is not empty is an example with one text.

    Attributes:
      field: the field of examples that has the text.
    """

    field: str = "text"

    def parse(self, record: bytes) -> Example:
        return {self.field: _text(record)}


@dataclasses.dataclass(frozen=True)
class JsonLines(_Lines):
    """Each line is an example, as a JSON object.

    Attributes:
      fields: the names of fields that each object must have.
    """

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
        missing = [field for field in self.fields if field not in example]
        if missing:
            raise RecordError(
                f"has no field {missing[0]!r}, but "
                f"{', '.join(map(repr, example)) or 'none'}"
            )
        return example


@dataclasses.dataclass(frozen=True)
class Tsv(_Lines):
    """Each line is an example: columns with tabs between them, without quotes.

    Attributes:
      columns: the names of the columns, which are the fields of examples.
      header: whether the first line has the names of the columns.
    """

    columns: tuple[str, ...]
    header: bool = False

    def spans(self, path: Path) -> Iterator[RecordSpan]:
        for span in super().spans(path):
            is_header = self.header and span.record_number == 1
            if not is_header:
                yield span

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
    """Each record is a tf.train.Example: bytes become text, integers and floats arrays.

    Attributes:
      text: whether bytes are UTF-8 text; if not, they stay bytes.
    """

    text: bool = True
    unit = "record"
    checked = False  # TensorFlow checks the checksums of all records in `spans`

    def spans(self, path: Path) -> Iterator[RecordSpan]:
        with open(path, "rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            if is_gzip:
                raise RecordError(
                    "cannot be read: the file is compressed, which allows no random access; "
                    "decompress it"
                )
        start = 0
        for record_number, length in enumerate(_record_lengths(path), start=1):
            yield RecordSpan(start + _HEADER_BYTES, length, record_number=record_number)
            start += _HEADER_BYTES + length + _CHECKSUM_BYTES
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
        """Returns the value of a feature: an array of floats or integers; a text, or a
        list of several texts.
        """
        kind = feature.WhichOneof("kind")
        if kind is None:
            return np.array([], np.int64)
        if kind == "float_list":
            return np.array(feature.float_list.value, np.float32)
        if kind == "int64_list":
            return np.array(feature.int64_list.value, np.int64)
        values = list(feature.bytes_list.value)
        if self.text:
            values = [_text(value) for value in values]
        return values[0] if len(values) == 1 else values


def _record_lengths(path: Path) -> Iterator[int]:
    """Yields the length of each record in bytes; TensorFlow checks the checksums.

    Raises:
      RecordError: a record is damaged.
    """
    lengths = mtf.cluster.without_autotuning(
        tf.data.TFRecordDataset(str(path)).map(tf.strings.length)
    )
    num_read = 0
    # In batches, which is faster. At the end of an undamaged file, this returns.
    with contextlib.suppress(tf.errors.DataLossError):
        for batch in lengths.batch(_RECORDS_PER_READ).as_numpy_iterator():
            num_read += len(batch)
            yield from batch.tolist()
        return
    # A record of the next batch is damaged: the lengths before it are read one by one.
    try:
        yield from map(int, lengths.skip(num_read).as_numpy_iterator())
    except tf.errors.DataLossError as error:
        raise RecordError("is truncated or damaged") from error


def write_records(path: Path, examples: Iterable[Example]) -> int:
    """Writes examples to a TFRecord file; returns their count.

    Args:
      path: the file to write.
      examples: the examples, whose fields are integers or arrays of integers.
    """
    count = 0
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            features = {name: _int_feature(value) for name, value in example.items()}
            record = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(record.SerializeToString(deterministic=True))
            count += 1
    return count


def _int_feature(value: Any) -> tf.train.Feature:
    """Returns the feature of an integer or an array of integers."""
    integers = np.asarray(value).reshape(-1)
    return tf.train.Feature(int64_list=tf.train.Int64List(value=integers))


def _text(record: bytes) -> str:
    """Returns the text of a record.

    Raises:
      RecordError: the record is not UTF-8.
    """
    try:
        return record.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(
            f"is not UTF-8: byte {error.start + 1} of it is 0x{record[error.start]:02x}"
        ) from error


def record_error(
    path: Path, unit: str, record_number: int, error: RecordError
) -> DataError:
    """Returns the error of a record, with the file, the cause and the way out.

    Args:
      path: the file.
      unit: the name of a record, such as "line".
      record_number: the number of the record, counted from 1.
      error: the cause.
    """
    return DataError(
        f"{path}:{record_number}: {unit} {record_number} {error}.\n"
        f'  Correct the file, or skip such {unit}s: on_bad = "skip".'
    )
