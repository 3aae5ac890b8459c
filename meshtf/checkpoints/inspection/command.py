"""Tells what a checkpoint holds, or what differs between two.

    python -m meshtf checkpoint inspect runs/lm                 # the newest one of a run
    python -m meshtf checkpoint inspect runs/lm/step_00000600 --json=found.json
    python -m meshtf checkpoint diff runs/lm/step_00000400 runs/lm/step_00000600

All files are read and their sums compared. Exit codes: 0: it is whole, or the two are
equal; 1: a file is damaged, or the two differ; 2: wrong flags, or there is no
checkpoint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from meshtf.checkpoints.inspection.report import (
    compare,
    compared,
    differs,
    inspect,
    inspected,
)
from meshtf.errors import CheckpointError, DamageError

_JSON = flags.DEFINE_string(
    "json", None, "A file for all that was found, as JSON.", allow_override=True
)  # other commands have one as well
_USE = (
    "python -m meshtf checkpoint inspect FOLDER [--json=FILE]\n"
    "python -m meshtf checkpoint diff FOLDER FOLDER [--json=FILE]"
)


def main(argv: Sequence[str]) -> int:
    """Reads the flags and what they ask for, prints it, and returns the exit code."""
    try:
        match argv[1:]:
            case ["inspect", folder]:
                found = inspect(folder)
                _tell(found, inspected(found))
                return int(any(file["damage"] for file in found["files"]))
            case ["diff", folder, other]:
                found = compare(folder, other)
                _tell(found, compared(found))
                return int(differs(found))
            case _:
                print(_USE, file=sys.stderr)
                return 2
    except CheckpointError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1 if isinstance(error, DamageError) else 2


def _tell(found: dict[str, Any], text: str) -> None:
    print(text)
    if _JSON.value:
        Path(_JSON.value).write_text(
            json.dumps(found, indent=2) + "\n", encoding="utf-8"
        )
