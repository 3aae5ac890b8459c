"""Rows for pretraining as TFRecords, under the names that they have had since BERT came
out.

    ours                  in a record
    tokens                input_ids              int64 [length]
    (tokens != 0)         input_mask             int64 [length]
    token_types           segment_ids            int64 [length]
    masked_positions      masked_lm_positions    int64 [predictions]
    masked_ids            masked_lm_ids          int64 [predictions]
    masked_weights        masked_lm_weights      float [predictions]
    next_sentence_labels  next_sentence_labels   int64 [1]

So records that other programs wrote are read here, and the other way round.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from examples.bert.shared import program_flags
from transformer import data
from transformer.data.atomic_files import atomic_file
from transformer.data.batching.seeds import Seed
from transformer.data.sources import Example, Examples, TFRecords
from transformer.data.sources.files import FileExamples

THEIRS = {
    "tokens": "input_ids",
    "token_types": "segment_ids",
    "masked_positions": "masked_lm_positions",
    "masked_ids": "masked_lm_ids",
    "masked_weights": "masked_lm_weights",
    "next_sentence_labels": "next_sentence_labels",
}


def documents(paths: Sequence[str | Path]) -> list[Example]:
    """Returns the documents of text files: a sentence is a line, and an empty line ends
    a document.

    Raises:
      DataError: a file cannot be read, or there is no document.
    """
    found: list[list[str]] = [[]]
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                for line in map(str.strip, file):
                    found[-1].append(line) if line else found.append([])
        except (OSError, UnicodeDecodeError) as error:
            raise data.DataError(f"{path} cannot be read as text: {error}.") from error
        found.append([])
    texts = [{"text": "\n".join(lines)} for lines in found if lines]
    if not texts:
        raise data.DataError(f"there is no text in {', '.join(map(str, paths))}.")
    return texts


def write(
    paths: Sequence[str], rows: Iterable[Example], features: data.BertFeatures
) -> int:
    """Writes rows into files, by turns; returns how many there are. A file is there
    whole or not.
    """
    number = 0
    with contextlib.ExitStack() as stack:
        partial = [stack.enter_context(atomic_file(path)) for path in paths]
        writers = [
            stack.enter_context(tf.io.TFRecordWriter(str(path))) for path in partial
        ]
        for number, row in enumerate(rows, 1):
            writers[number % len(writers)].write(_record(features(row)))
        if not number:
            raise data.DataError("the texts make no row: they are too short.")
    return number


def _record(arrays: dict[str, np.ndarray]) -> bytes:
    values = {THEIRS[name]: value.reshape(-1) for name, value in arrays.items()}
    values["input_mask"] = (values["input_ids"] != 0).astype(np.int32)
    features = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=value))
        if value.dtype.kind == "f"
        else tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        for name, value in values.items()
    }
    return tf.train.Example(
        features=tf.train.Features(feature=features)
    ).SerializeToString(deterministic=True)


def read(patterns: str, on_bad: str) -> Examples:
    """Returns the records of files, or globs, with commas between. Raises DataError:
    one cannot be read, unless what is damaged is to be left out: on_bad="skip"."""
    return FileExamples(
        program_flags.files(patterns), TFRecords(), on_bad == "skip", patterns
    )


def from_record(example: Example, seed: Seed, *, vocab: int) -> Example:
    """Returns a record under our names.

    Args:
      example: a record.
      seed: is not used.
      vocab: how many tokens the model knows.

    Raises:
      DataError: something is missing, or a token is none of the model's.
    """
    missing = [name for name in THEIRS.values() if name not in example]
    if missing:
        raise data.DataError(
            f"a record has no {missing[0]!r}, but {', '.join(example)}.\n"
            "  create_pretraining_data writes records that fit."
        )
    row = {ours: example[theirs] for ours, theirs in THEIRS.items()}
    highest = max(int(row[name].max(initial=0)) for name in ("tokens", "masked_ids"))
    if highest >= vocab:
        raise data.DataError(
            f"a record has token {highest}; the model knows {vocab:,}.\n  Take the "
            "configuration for the vocabulary that the records were made with."
        )
    real = row.pop("masked_weights") > 0
    return {
        **row,
        "masked_positions": row["masked_positions"][real],
        "masked_ids": row["masked_ids"][real],
        "next_sentence_labels": row["next_sentence_labels"].reshape(()),
    }


def masked_ids(examples: Iterable[Example]) -> Iterator[tuple[np.ndarray, int]]:
    """Yields what was hidden in each record, and its next-sentence label."""
    for example in examples:
        real = example["masked_lm_weights"] > 0
        yield example["masked_lm_ids"][real], int(example["next_sentence_labels"][0])
