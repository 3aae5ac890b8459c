"""Tokenized rows on disk: writes them for `transformer.tokenize`, and reads them.

    folder/TASK/manifest.json                      settings, vocabulary, counts
    folder/TASK/train-00000-of-00002.tfrecord      the rows, tf.train.Example of int64 lists
    folder/TASK/held_out-00000-of-00001.tfrecord

A folder is written atomically. Rows are those that the task would make in memory, in the
same order; so batches are the same, too.
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
from transformer.data.sources.files import InFiles

MANIFEST = "manifest.json"
SPLITS = ("train", "held_out")


def make_rows(task: Task, split: str, seed: int) -> Iterable[Example]:
    """Returns the rows of a split of a task, "train" or "held_out"."""
    documents: Examples = getattr(task.source, split)()
    if task.rows is None:
        return documents
    return task.rows(documents, (seed, SPLITS.index(split)))


def write_rows(
    task: Task, folder: str | Path, seed: int = 0, rows_in_file: int = 10_000
) -> dict[str, Any]:
    """Writes the rows of a task into `folder/TASK`; returns the manifest.

    Raises:
      DataError: the task makes no rows, or the folder exists already.
    """
    if task.rows is None:
        raise DataError(
            f"task {task.name!r} takes the examples of its source as they are: there "
            "are no rows to be made before."
        )
    with atomic_folder(Path(folder, task.name)) as partial:
        splits = {
            split: _write_split(
                partial, split, make_rows(task, split, seed), rows_in_file
            )
            for split in SPLITS
        }
        manifest = {
            "task": task.name,
            "seed": seed,
            "rows": _settings(task),
            "vocabulary": repr(task.vocabulary),
            "vocabulary_size": task.vocabulary.size,
            "fingerprint": task.vocabulary.fingerprint(),
            **splits,
        }
        Path(partial, MANIFEST).write_text(
            json.dumps(manifest, indent=1) + "\n", encoding="utf-8"
        )
    return manifest


def stored_rows(task: Task, folder: str | Path, split: str) -> Examples:
    """Returns the rows of a split that `write_rows` wrote.

    Raises:
      DataError: there are no rows, or they were made with another vocabulary or other
        settings.
    """
    task_folder = Path(folder, task.name)
    try:
        manifest = json.loads(Path(task_folder, MANIFEST).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(
            f"there are no rows of task {task.name!r} in {folder}: {error}.\n  To make "
            f"them: python -m transformer.tokenize --task={task.name} --output={folder}"
        ) from error
    for name, now in (
        ("fingerprint", task.vocabulary.fingerprint()),
        ("rows", _settings(task)),
    ):
        if manifest.get(name) != now:
            raise DataError(
                f"the rows in {task_folder} were made with other settings.\n"
                f"  then         {manifest.get(name)}\n  now          {now}\n"
                "  Make them anew elsewhere, or take the settings of then."
            )
    files = sorted(task_folder.glob(f"{split}-*.tfrecord"))
    if len(files) != manifest[split]["files"]:
        raise DataError(
            f"{task_folder} should hold {manifest[split]['files']} files of {split}, and holds "
            f"{len(files)}."
        )
    rows = InFiles(
        files, TFRecords(), skip=False, pattern=f"{task_folder}/{split}-*.tfrecord"
    )
    if len(rows) != manifest[split]["rows"]:
        raise DataError(
            f"{task_folder} should hold {manifest[split]['rows']} rows of {split}, and holds "
            f"{len(rows)}."
        )
    return rows


def _write_split(
    folder: Path, split: str, rows: Iterable[Example], rows_in_file: int
) -> dict[str, int]:
    counts = {"rows": 0, "tokens": 0, "files": 0}
    for file_rows in _chunks(_counted(rows, counts), rows_in_file):
        write_records(folder / f"{counts['files']}.partial", file_rows)
        counts["files"] += 1
    for k in range(counts["files"]):
        name = f"{split}-{k:05d}-of-{counts['files']:05d}.tfrecord"
        Path(folder, f"{k}.partial").rename(folder / name)
    if not counts["rows"]:
        raise DataError(
            f"there is no row for {split}: the texts are too short or too few."
        )
    return counts


def _counted(rows: Iterable[Example], counts: dict[str, int]) -> Iterator[Example]:
    """Yields the rows; counts them, and tokens of `inputs`, `targets` and `tokens`."""
    for row in rows:
        counts["rows"] += 1
        counts["tokens"] += sum(
            len(row[name]) for name in ("inputs", "targets", "tokens") if name in row
        )
        yield row


def _chunks(rows: Iterator[Example], size: int) -> Iterator[Iterator[Example]]:
    """Yields iterators of `size` rows each; each must be consumed before the next one is
    requested.
    """
    for row in rows:
        yield itertools.chain([row], itertools.islice(rows, size - 1))


def _settings(task: Task) -> str:
    """Returns the settings of the row maker, with the fingerprint of its vocabulary instead
    of the path.
    """
    return repr(task.rows).replace(repr(task.vocabulary), task.vocabulary.fingerprint())
