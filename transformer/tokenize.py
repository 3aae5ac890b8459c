"""Tokenizes the examples of a task, or of all tasks of a mixture, and writes them as
TFRecords.

    python -m transformer.tokenize --task=span_corruption_stdlib --output=runs/tokenized
    python -m transformer.train --gin_param='TaskData.folder = "runs/tokenized"' ...

Use the --gin_file and --gin_param of the training run: the run raises an error for examples
that were made with other settings. The folder of a task is complete or absent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer.cli import command_line
from transformer.cli.program import run_main


def define_flags() -> None:
    """Defines the flags of the command.

    They are not defined at import: absl raises an error if a flag is defined twice, and
    other commands have flags of the same names.
    """
    flags.DEFINE_string("task", None, "The name of a task or mixture.", required=True)
    flags.DEFINE_string("output", None, "The folder to write to.", required=True)
    flags.DEFINE_integer(
        "seed", 0, "The seed of random choices, such as sentence pairs."
    )
    flags.DEFINE_integer(
        "examples_per_file", 10_000, "Examples per file.", lower_bound=1
    )
    flags.adopt_module_key_flags(command_line)  # so that --help shows them


def main(argv: Sequence[str]) -> None:
    """Reads flags and configuration, and writes examples."""
    # Imports of TensorFlow are in functions, so that --help is fast.
    from transformer.data.atomic_files import check_writable

    args = flags.FLAGS
    with command_line.exit_on_user_errors():
        command_line.configure_by_flags(argv)
        check_writable(args.output, name="--output", folder=True)
        write(
            args.task,
            args.output,
            seed=args.seed,
            examples_per_file=args.examples_per_file,
        )


def write(
    name: str, output: str, seed: int = 0, examples_per_file: int = 10_000
) -> None:
    """Writes the examples of a task, or of all tasks of a mixture, as TFRecords.

    These are the examples that a task's `packing` makes from documents. A task without a
    packing has a source of examples, which training reads directly: in a mixture it is
    skipped.

    Args:
      name: the name of the task or mixture.
      output: the folder to write to; each task has a folder in it.
      seed: the seed of random choices, such as sentence pairs.
      examples_per_file: the maximum count of examples in a file.

    Raises:
      DataError: there is no such task, it has no packing, or its folder exists already.
    """
    from transformer import data
    from transformer.data.datasets.tasks import tasks_of
    from transformer.data.datasets.tfrecord_examples import SPLITS

    task_or_mixture = data.find(name)
    is_mixture = isinstance(task_or_mixture, data.Mixture)
    for task in tasks_of(task_or_mixture):
        if task.packing is None and is_mixture:
            print(f"{task.name}: uses the examples of its source; nothing to write")
            continue
        manifest = data.write_examples(
            task, output, seed=seed, examples_per_file=examples_per_file
        )
        for split in SPLITS:
            counts = manifest[split]
            print(
                f"{task.name}: {counts['examples']:,} examples, {counts['tokens']:,} "
                f"tokens for {split}, in {counts['files']} files of "
                f"{output}/{task.name}",
                flush=True,
            )


if __name__ == "__main__":
    define_flags()
    run_main(main)
