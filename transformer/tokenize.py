"""Makes the rows of a task, or of all tasks of a mixture, and writes them as TFRecords.

    python -m transformer.tokenize --task=span_corruption_stdlib --output=runs/rows
    python -m transformer.train --gin_param='TaskData.folder = "runs/rows"' ...

Settings are those of the run that will learn from the rows: --gin_file and --gin_param. Rows that
were made with other ones are refused there. A folder of a task is there whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from absl import app, flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")     # before TensorFlow is imported
from transformer import command, data
from transformer.data.tasks import tasks_of

_TASK = flags.DEFINE_string("task", None, "The name of a task or mixture.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "The folder to write into.", required=True)
_SEED = flags.DEFINE_integer("seed", 0, "Of what is random in rows, such as sentence pairs.")
_ROWS = flags.DEFINE_integer("rows_in_file", 10_000, "Rows in one file.", lower_bound=1)
flags.adopt_module_key_flags(command)                  # so that --help shows them


def main(argv: Sequence[str]) -> None:
  """Reads flags and configuration, and writes rows."""
  with command.leaving_plainly():
    command.configure_by_flags(argv)
    for task in tasks_of(data.find(_TASK.value)):
      if task.rows is None and _TASK.value != task.name:
        print(f"{task.name}: its examples are taken as they are; nothing to write")
        continue
      made = data.write_rows(task, _OUTPUT.value, _SEED.value, _ROWS.value)
      for side in ("train", "held_out"):
        print(f"{task.name}: {made[side]['rows']:,} rows, {made[side]['tokens']:,} tokens for "
              f"{side}, in {made[side]['files']} files of {_OUTPUT.value}/{task.name}", flush=True)


if __name__ == "__main__":
  app.run(main)
