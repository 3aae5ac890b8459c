"""Pretraining examples as TFRecords, with the feature names of the original BERT programs.

    ours                  in a record
    tokens                input_ids              int64 [length]
    (tokens != 0)         input_mask             int64 [length]
    token_types           segment_ids            int64 [length]
    masked_positions      masked_lm_positions    int64 [predictions]
    masked_ids            masked_lm_ids          int64 [predictions]
    masked_weights        masked_lm_weights      float [predictions]
    next_sentence_labels  next_sentence_labels   int64 [1]

So records of other programs can be read here, and records written here by others. A record
that is written here has a further feature, `vocabulary`: the fingerprint of the vocabulary
that its ids belong to. Records with another fingerprint are refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from examples.bert.shared import model_setup
from transformer import data
from transformer.data.atomic_files import atomic_file
from transformer.data.batching.seeds import Seed
from transformer.data.sources import Example, Examples, TFRecords
from transformer.data.sources.files import FileExamples

RECORD_KEYS = {
    "tokens": "input_ids",
    "token_types": "segment_ids",
    "masked_positions": "masked_lm_positions",
    "masked_ids": "masked_lm_ids",
    "masked_weights": "masked_lm_weights",
    "next_sentence_labels": "next_sentence_labels",
}
FINGERPRINT_KEY = "vocabulary"


def documents(paths: Sequence[str | Path]) -> list[Example]:
    """Returns the documents of text files: dicts with `text`, in which a line is a sentence.
    In a file, an empty line ends a document.

    Raises:
      DataError: a file cannot be read, or there is no document.
    """
    lines_of_documents: list[list[str]] = [[]]
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                for line in map(str.strip, file):
                    if line:
                        lines_of_documents[-1].append(line)
                    else:
                        lines_of_documents.append([])
        except (OSError, UnicodeDecodeError) as error:
            raise data.DataError(f"{path} cannot be read as text: {error}.") from error
        lines_of_documents.append([])  # the end of a file ends a document as well
    results = [{"text": "\n".join(lines)} for lines in lines_of_documents if lines]
    if not results:
        raise data.DataError(f"there is no text in {', '.join(map(str, paths))}.")
    return results


def write(
    paths: Sequence[str],
    examples: Iterable[Example],
    features: data.BertFeatures,
    vocabulary: data.Vocabulary,
) -> int:
    """Writes examples to files in turn, and returns the number of examples. Files appear
    only when they are complete.

    Args:
      paths: the paths of the files.
      examples: the examples.
      features: the function that returns the padded arrays of an example.
      vocabulary: the vocabulary of the examples.

    Raises:
      DataError: there is no example.
    """
    count = 0
    fingerprint = vocabulary.fingerprint()
    with contextlib.ExitStack() as stack:
        temporary_paths = [stack.enter_context(atomic_file(path)) for path in paths]
        writers = [
            stack.enter_context(tf.io.TFRecordWriter(str(path)))
            for path in temporary_paths
        ]
        for count, example in enumerate(examples, 1):
            writer = writers[count % len(writers)]
            writer.write(_record(features(example), fingerprint))
        if not count:
            raise data.DataError("there is no example: the texts are too short.")
    return count


def _record(arrays: dict[str, np.ndarray], fingerprint: str) -> bytes:
    """Returns a serialized tf.train.Example.

    Args:
      arrays: the padded arrays of an example.
      fingerprint: the fingerprint of the vocabulary of the example.
    """
    values = {RECORD_KEYS[name]: value.reshape(-1) for name, value in arrays.items()}
    values["input_mask"] = (values["input_ids"] != 0).astype(np.int32)
    text = tf.train.BytesList(value=[fingerprint.encode()])
    features = {FINGERPRINT_KEY: tf.train.Feature(bytes_list=text)}
    for name, value in values.items():
        if value.dtype.kind == "f":
            floats = tf.train.FloatList(value=value)
            features[name] = tf.train.Feature(float_list=floats)
        else:
            ints = tf.train.Int64List(value=value)
            features[name] = tf.train.Feature(int64_list=ints)
    record = tf.train.Example(features=tf.train.Features(feature=features))
    return record.SerializeToString(deterministic=True)


def read(patterns: str, on_bad: str) -> Examples:
    """Returns the records of files.

    Args:
      patterns: paths or globs, separated by commas.
      on_bad: "refuse" to read damaged records, or "skip" them.

    Raises:
      DataError: a file or a record cannot be read.
    """
    return FileExamples(
        model_setup.files(patterns),
        TFRecords(),
        skip=on_bad == "skip",
        pattern=patterns,
    )


def check_vocabulary(example: Example, vocabulary: data.Vocabulary) -> None:
    """Raises DataError if a record was made with another vocabulary.

    A record that another program wrote does not say which vocabulary it was made with, and
    is accepted.

    Args:
      example: a record.
      vocabulary: the vocabulary of the model.
    """
    now = vocabulary.fingerprint()
    before = example.get(FINGERPRINT_KEY, now)
    if before != now:
        raise data.DataError(
            "the records were made with another vocabulary: their ids have other "
            f"meanings.\n  made with  {before}\n  now        {now}: {vocabulary}\n"
            "  Use the --vocab_file and --do_lower_case of create_pretraining_data, or "
            "make the records again."
        )


def from_record(
    example: Example, seed: Seed, *, vocab: int, vocabulary: data.Vocabulary
) -> Example:
    """Returns the features of a record under meshtf's names.

    Args:
      example: a record.
      seed: not used; every preprocessor takes a seed.
      vocab: the size of the model's vocabulary.
      vocabulary: the vocabulary of the model.

    Raises:
      DataError: a feature is missing, a token is not in the vocabulary, or the record was
        made with another vocabulary.
    """
    check_vocabulary(example, vocabulary)
    missing = [name for name in RECORD_KEYS.values() if name not in example]
    if missing:
        raise data.DataError(
            f"a record has no {missing[0]!r}, but {', '.join(example)}.\n"
            "  create_pretraining_data writes records with all features."
        )
    features = {name: example[key] for name, key in RECORD_KEYS.items()}
    highest_id = max(
        int(features["tokens"].max(initial=0)),
        int(features["masked_ids"].max(initial=0)),
    )
    if highest_id >= vocab:
        raise data.DataError(
            f"a record has token {highest_id}, but the model has {vocab:,} tokens.\n  Use "
            "the configuration for the vocabulary that the records were made with."
        )
    is_real = features.pop("masked_weights") > 0  # false: padding up to [predictions]
    return {
        **features,
        "masked_positions": features["masked_positions"][is_real],
        "masked_ids": features["masked_ids"][is_real],
        "next_sentence_labels": features["next_sentence_labels"].reshape(()),
    }


def masked_ids(examples: Iterable[Example]) -> Iterator[tuple[np.ndarray, int]]:
    """Yields the masked tokens of each record, and its next-sentence label."""
    for example in examples:
        is_real = example["masked_lm_weights"] > 0
        label = int(example["next_sentence_labels"][0])
        yield example["masked_lm_ids"][is_real], label
