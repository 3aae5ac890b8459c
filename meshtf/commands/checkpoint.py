"""Prints the contents of a checkpoint, or the differences between two.

    python -m meshtf checkpoint inspect runs/lm                 # the newest one of a run
    python -m meshtf checkpoint inspect runs/lm/step_00000600 --json=report.json
    python -m meshtf checkpoint diff runs/lm/step_00000400 runs/lm/step_00000600

All files are read and their checksums compared. Exit codes: 0: the checkpoint is complete,
or the two are equal; 1: a file is damaged, or the two differ; 2: wrong flags, or there is
no checkpoint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from meshtf.errors import CheckpointError, DamageError

# `allow_override`, since other commands define a flag of this name as well.
_JSON = flags.DEFINE_string(
    "json", None, "A file for the report as JSON.", allow_override=True
)
_USAGE = (
    "python -m meshtf checkpoint inspect FOLDER [--json=FILE]\n"
    "python -m meshtf checkpoint diff FOLDER FOLDER [--json=FILE]"
)


def usage_error(argv: Sequence[str]) -> str:
    """Returns what is wrong with the arguments, or "".

    `python -m meshtf` calls it before `main`, to report the error without TensorFlow.

    Args:
      argv: the name of the program, "inspect" or "diff", and one or two folders.
    """
    match argv[1:]:
        case ["inspect", _] | ["diff", _, _]:
            folders = argv[2:]
        case _:
            return _USAGE
    for folder in folders:
        if not Path(folder).exists():
            return f"there is no folder {folder}."
    return ""


def main(argv: Sequence[str]) -> int:
    """Runs the command, prints its report, and returns the exit code."""
    from meshtf.checkpoints.inspection import report as reports

    try:
        match argv[1:]:
            case ["inspect", folder]:
                report = reports.inspect(folder)
                _output(report, text=reports.inspection_text(report))
                is_damaged = any(file["damage"] for file in report["files"])
                return 1 if is_damaged else 0
            case ["diff", folder, other_folder]:
                comparison = reports.compare(folder, other_folder)
                _output(comparison, text=reports.comparison_text(comparison))
                return 1 if reports.differs(comparison) else 0
            case _:
                print(_USAGE, file=sys.stderr)
                return 2
    except CheckpointError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1 if isinstance(error, DamageError) else 2


def _output(report: dict[str, Any], text: str) -> None:
    """Prints a report as text, and writes it as JSON to the file of the flag --json, if there
    is one.
    """
    print(text)
    if _JSON.value:
        Path(_JSON.value).write_text(
            json.dumps(report, indent=2) + "\n", encoding="utf-8"
        )
