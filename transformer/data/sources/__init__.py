"""Sources of examples: files of text lines, JSON lines, TSV or TFRecord, and documents.

    source = text_lines("books/*.txt")           # or json_lines, tsv, tfrecords, documents
    source.train()[5]                            # {"text": ...}: any example by its index

Files are read from local disks. A malformed line or damaged record raises an error with
file and line; with `on_bad="skip"`, it is skipped and counted. An index of each file, for
random access, is written next to the file.
"""

from transformer.data.sources.base import Example, Examples, Source, Subset
from transformer.data.sources.files import (
    documents,
    json_lines,
    text_lines,
    tfrecords,
    tsv,
)
from transformer.data.sources.formats import TFRecords, write_records

__all__ = [
    "Subset",
    "Example",
    "Examples",
    "Source",
    "TFRecords",
    "documents",
    "json_lines",
    "text_lines",
    "tfrecords",
    "tsv",
    "write_records",
]
