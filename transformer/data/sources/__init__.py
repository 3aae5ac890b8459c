"""Where examples come from: files of text, JSON lines, TSV, TFRecord, and whole
documents.

    source = text_lines("books/*.txt")           # or json_lines, tsv, tfrecords, documents
    source.train()[5]                            # {"text": ...}: any example by its number

Files are on disks of the machine. A line that is malformed, or a record that is
damaged, is refused with file and number, or left out and counted: `on_bad="skip"`.
Beside each file an index is kept.
"""

from transformer.data.sources.base import Chosen, Example, Examples, Source
from transformer.data.sources.files import (
    documents,
    json_lines,
    text_lines,
    tfrecords,
    tsv,
)
from transformer.data.sources.formats import TFRecords, write_records

__all__ = [
    "Chosen",
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
