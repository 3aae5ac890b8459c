"""Makes the rows of a task, or of all tasks of a mixture, and writes them as TFRecords.

    python -m transformer.tokenize --task=span_corruption_stdlib --output=runs/rows
    python -m transformer.train --gin_param='TaskData.folder = "runs/rows"' ...

Settings are those of the run that will learn from the rows: --gin_file and --gin_param.
Rows that were made with other ones are refused there. A folder of a task is there whole
or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer import data
from transformer.cli import command_line
from transformer.cli.program import run_main
from transformer.data.atomic_files import check_writable
from transformer.data.datasets.tasks import tasks_of


def define_flags() -> None:
    """Defines the flags of the command; other modules have some of the same names."""
    flags.DEFINE_string("task", None, "The name of a task or mixture.", required=True)
    flags.DEFINE_string("output", None, "The folder to write into.", required=True)
    flags.DEFINE_integer(
        "seed", 0, "Of what is random in rows, such as sentence pairs."
    )
    flags.DEFINE_integer("rows_in_file", 10_000, "Rows in one file.", lower_bound=1)
    flags.adopt_module_key_flags(command_line)  # so that --help shows them


def main(argv: Sequence[str]) -> None:
    """Reads flags and configuration, and writes rows."""
    asked = flags.FLAGS
    with command_line.exit_on_user_errors():
        command_line.configure_by_flags(argv)
        check_writable(asked.output, "--output", folder=True)
        write(asked.task, asked.output, asked.seed, asked.rows_in_file)


def write(name: str, output: str, seed: int = 0, rows_in_file: int = 10_000) -> None:
    """Writes the rows of a task, or of those tasks of a mixture that have any; see the
    flags.

    Raises:
      DataError: there is no such task, it makes no rows, or they are there already.
    """
    what = data.find(name)
    for task in tasks_of(what):
        if task.rows is None and isinstance(what, data.Mixture):
            print(f"{task.name}: its examples are taken as they are; nothing to write")
            continue
        made = data.write_rows(task, output, seed, rows_in_file)
        for side in ("train", "held_out"):
            print(
                f"{task.name}: {made[side]['rows']:,} rows, {made[side]['tokens']:,} "
                f"tokens for {side}, in {made[side]['files']} files of "
                f"{output}/{task.name}",
                flush=True,
            )


if __name__ == "__main__":
    define_flags()
    run_main(main)
