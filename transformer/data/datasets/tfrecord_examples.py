"""Tokenized examples on disk: `transformer.tokenize` writes them, `TaskData` reads them.

    folder/TASK/manifest.json                      settings, vocabulary, counts
    folder/TASK/train-00000-of-00002.tfrecord      tf.train.Example of int64 lists
    folder/TASK/held_out-00000-of-00001.tfrecord

A *packing* makes the training examples of a task from documents. A folder is written
atomically. It has the examples that the packing would make in memory, in the same order, so
the batches are the same, too.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from transformer.data.atomic_files import atomic_folder
from transformer.data.datasets.tasks import Task
from transformer.data.errors import DataError
from transformer.data.sources import Example, Examples, TFRecords, write_records
from transformer.data.sources.files import FileExamples

MANIFEST = "manifest.json"
SPLITS = ("train", "held_out")
_TOKEN_FIELDS = ("inputs", "targets", "tokens")  # the fields whose tokens are counted


def make_examples(task: Task, split: str, seed: int) -> Iterable[Example]:
    """Returns the packed examples of a split of a task; the examples of the source, if the
    task has no packing.

    Args:
      task: the task.
      split: "train" or "held_out".
      seed: the seed of the packing.
    """
    # `split` is the name of a method of sources.
    source_examples: Examples = getattr(task.source, split)()
    if task.packing is None:
        return source_examples
    packing_seed = (seed, SPLITS.index(split))
    return task.packing(source_examples, packing_seed)


def write_examples(
    task: Task, folder: str | Path, seed: int = 0, examples_per_file: int = 10_000
) -> dict[str, Any]:
    """Writes the packed examples of a task into `folder/TASK`; returns the manifest.

    Args:
      task: the task.
      folder: the folder that has a folder for each task.
      seed: the seed of the packing.
      examples_per_file: the count of examples of a file.

    Raises:
      DataError: the task has no packing, or the folder exists already.
    """
    if task.packing is None:
        raise DataError(
            f"task {task.name!r} has no packing: it uses the examples of its source, so "
            "there is nothing to write."
        )
    manifest: dict[str, Any] = {
        "task": task.name,
        "seed": seed,
        "packing": _packing_settings(task),
        "vocabulary": repr(task.vocabulary),
        "vocabulary_size": task.vocabulary.size,
        "fingerprint": task.vocabulary.fingerprint(),
    }
    with atomic_folder(Path(folder, task.name)) as temporary_folder:
        for split in SPLITS:
            examples = make_examples(task, split, seed=seed)
            manifest[split] = _write_split(
                temporary_folder, split, examples, examples_per_file=examples_per_file
            )
        text = json.dumps(manifest, indent=1) + "\n"
        Path(temporary_folder, MANIFEST).write_text(text, encoding="utf-8")
    return manifest


def stored_examples(task: Task, folder: str | Path, split: str) -> Examples:
    """Returns the examples of a split that `write_examples` wrote.

    Args:
      task: the task.
      folder: the folder that has a folder for each task.
      split: "train" or "held_out".

    Raises:
      DataError: there are no such examples, or they were made with another vocabulary or
        other settings.
    """
    task_folder = Path(folder, task.name)
    manifest = _read_manifest(task, folder)
    _check_settings(task, task_folder, manifest)
    counts = manifest[split]
    files = sorted(task_folder.glob(f"{split}-*.tfrecord"))
    if len(files) != counts["files"]:
        raise DataError(
            f"{task_folder} should have {counts['files']} files of {split}, and has "
            f"{len(files)}."
        )
    pattern = f"{task_folder}/{split}-*.tfrecord"
    examples = FileExamples(files, TFRecords(), skip=False, pattern=pattern)
    if len(examples) != counts["examples"]:
        raise DataError(
            f"{task_folder} should have {counts['examples']} examples of {split}, and "
            f"has {len(examples)}."
        )
    return examples


def _read_manifest(task: Task, folder: str | Path) -> dict[str, Any]:
    """Returns the manifest of the examples of a task.

    Raises:
      DataError: it cannot be read.
    """
    try:
        text = Path(folder, task.name, MANIFEST).read_text(encoding="utf-8")
        manifest: dict[str, Any] = json.loads(text)
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(
            f"there are no examples of task {task.name!r} in {folder}: {error}.\n  "
            f"To write them: python -m transformer.tokenize --task={task.name} "
            f"--output={folder}"
        ) from error
    return manifest


def _check_settings(task: Task, folder: Path, manifest: dict[str, Any]) -> None:
    """Raises DataError if examples were made with other settings than the task has."""
    expected = {
        "fingerprint": task.vocabulary.fingerprint(),
        "packing": _packing_settings(task),
    }
    for name, value in expected.items():
        if manifest.get(name) != value:
            raise DataError(
                f"the examples in {folder} were made with other settings.\n"
                f"  written with {manifest.get(name)}\n  now          {value}\n"
                "  Write them again to another folder, or use the former settings."
            )


def _write_split(
    folder: Path, split: str, examples: Iterable[Example], examples_per_file: int
) -> dict[str, int]:
    """Writes the files of a split; returns the counts of "examples", "tokens" and "files"."""
    counts = {"examples": 0, "tokens": 0, "files": 0}
    counted_examples = _count_examples(examples, counts)
    for examples_of_file in _chunks(counted_examples, size=examples_per_file):
        write_records(folder / f"{counts['files']}.partial", examples_of_file)
        counts["files"] += 1
    # The names of files have the count of files, which is known only now.
    for file_index in range(counts["files"]):
        name = f"{split}-{file_index:05d}-of-{counts['files']:05d}.tfrecord"
        Path(folder, f"{file_index}.partial").rename(folder / name)
    if not counts["examples"]:
        raise DataError(
            f"there is no example for {split}: the texts are too short or too few."
        )
    return counts


def _count_examples(
    examples: Iterable[Example], counts: dict[str, int]
) -> Iterator[Example]:
    """Yields examples, and adds the counts of examples and tokens to `counts`."""
    for example in examples:
        counts["examples"] += 1
        for name in _TOKEN_FIELDS:
            counts["tokens"] += len(example.get(name, ()))  # 0 for an absent field
        yield example


def _chunks(examples: Iterator[Example], size: int) -> Iterator[Iterator[Example]]:
    """Yields iterators of `size` examples each, without storing the examples: an iterator
    must be consumed before the next one is requested.
    """
    for first_example in examples:
        rest = itertools.islice(examples, size - 1)
        yield itertools.chain([first_example], rest)


def _packing_settings(task: Task) -> str:
    """Returns the settings of the packing of a task as text, in which the vocabulary is
    replaced by its fingerprint: the path of a vocabulary file may change.
    """
    return repr(task.packing).replace(
        repr(task.vocabulary), task.vocabulary.fingerprint()
    )
