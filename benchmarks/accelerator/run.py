"""Times the training steps of a folder on this machine's first device, beside plain JAX.

    python FOLDER/run.py                        # all cases
    python FOLDER/run.py --models=gpt2,llama_1b --seconds=300

It needs jax and numpy, and neither meshtf nor TensorFlow: `python -m benchmarks.accelerator export`
has written the folder. Each case runs in a process of its own, `timed_case.py`, so that an error,
or memory that is used up, ends one case only. A row is printed as soon as it is measured; if $OUT
names a folder, all rows are in its accelerator.json. Exit code: 1 if a case has an error, else 0.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
# Of the device's memory, so that large cases fit; by default jax takes three quarters.
_MEMORY = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}
_ERROR_LINES = 6
_MIN_SECONDS = 15.0  # a case is not started with less time
_TOLERANCE = 1e-2  # of first losses, whose activations are bfloat16
_GIB = 2**30

Row = dict[str, Any]
COLUMNS = [
    "model",
    "batch",
    "ms",
    "forecast ms",
    "TFLOP/s",
    "of peak",
    "peak GiB",
    "XLA's plan GiB",
    "forecast GiB",
    "compile s",
    "losses",
    "JAX ms",
    "ratio",
    "JAX's plan GiB",
    "JAX's compile s",
    "JAX's losses",
]


def line(row: Row) -> str:
    """Returns a row of the table, in Markdown."""

    def cell(name: str, form: str, scale: float = 1.0) -> str:
        value = row.get(name)
        return "-" if value is None else format(value * scale, form)

    def losses(name: str) -> str:
        return " ".join(f"{loss:.4f}" for loss in row.get(name, [])) or "-"

    cells = [
        row["name"],
        str(row["batch"]),
        cell("ms", ".1f"),
        cell("forecast_ms", ".1f"),
        cell("tflops", ".1f"),
        cell("share", ".1%"),
        cell("peak", ".2f", 1 / _GIB),
        cell("planned_peak", ".2f", 1 / _GIB),
        cell("forecast_peak", ".2f", 1 / _GIB),
        cell("compile_seconds", ".1f"),
        losses("losses"),
        cell("peer_ms", ".1f"),
        cell("ratio", ".3f"),
        cell("peer_planned_peak", ".2f", 1 / _GIB),
        cell("peer_compile_seconds", ".1f"),
        losses("peer_losses"),
    ]
    return f"| {' | '.join(cells)} |"


def loss_error(row: Row) -> str:
    """Returns what is wrong with the losses of a row; "": nothing."""
    losses = [*row.get("losses", []), *row.get("peer_losses", [])]
    if not all(map(math.isfinite, losses)):
        return f"not all losses are finite: {losses}"
    if "peer_losses" in row:
        first, peer_first = row["losses"][0], row["peer_losses"][0]
        if abs(first - peer_first) > _TOLERANCE * abs(peer_first):
            return f"the first loss is {first}, and plain JAX's {peer_first}"
    return ""


def run_all(options: argparse.Namespace) -> list[Row]:
    """Runs each case in a process, and returns the rows; those of errors have an "error"."""
    deadline = time.monotonic() + options.seconds
    names = json.loads((FOLDER / "cases.json").read_text())
    rows: list[Row] = []
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    for name in options.models.split(",") if options.models else names:
        remaining = deadline - time.monotonic()
        if remaining < min(_MIN_SECONDS, options.seconds):
            print(
                f"{name}: skipped, since --seconds={options.seconds:g} are over",
                flush=True,
            )
            rows.append({"name": name, "error": "skipped: no time was left"})
        else:
            rows.append(_run_process(name, options, remaining))
        _write(rows)
    devices = {f"{row['device']}, jax {row['jax']}" for row in rows if "device" in row}
    print("; ".join(sorted(devices)))
    return rows


def _run_process(name: str, options: argparse.Namespace, remaining: float) -> Row:
    """Runs a case in a process, prints and returns its row.

    Args:
      name: the name of the case.
      options: the flags.
      remaining: the seconds that are left for all cases.
    """
    path = FOLDER / f"{name}.row"
    path.unlink(missing_ok=True)
    numbers = [f"--steps={options.steps}", f"--rounds={options.rounds}"]
    program = [sys.executable, str(FOLDER / "timed_case.py")]
    limit = min(remaining, options.case_seconds)
    error = ""
    try:
        done = subprocess.run(
            [*program, name, str(path), *numbers],
            env={**_MEMORY, **os.environ},
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=limit,
        )
        if done.returncode:
            error = _process_error(done.returncode, done.stderr)
    except subprocess.TimeoutExpired:
        error = f"stopped after {limit:.0f} s"
    row = json.loads(path.read_text()) if path.exists() else {"name": name}
    error = error or loss_error(row)
    if "ms" in row:
        print(line(row), flush=True)
    if error:
        row["error"] = error
        print(f"{name}: {error}", flush=True)
    if row.get("peer_note"):
        print(f"{name}: no plain JAX: {_first_lines(row['peer_note'])}", flush=True)
    return row


def _first_lines(text: str) -> str:
    """Returns the first lines of a message, each of them shortened."""
    return "\n".join(line[:300] for line in text.strip().split("\n")[:_ERROR_LINES])


def _process_error(code: int, log: str) -> str:
    """Returns the error of a process: that of Python, or the end of its log.

    Args:
      code: its exit code.
      log: what it has written to standard error.
    """
    _, mark, error = log.rpartition("\nerror: ")
    if mark:
        return _first_lines(error)
    ending = "\n".join(log.strip().split("\n")[-_ERROR_LINES:])
    return f"exit code {code}\n{_first_lines(ending)}"


def _write(rows: Sequence[Row]) -> None:
    """Writes all rows into the folder $OUT, if there is one."""
    if os.environ.get("OUT"):
        path = Path(os.environ["OUT"], "accelerator.json")
        path.write_text(json.dumps(rows, indent=1))


def main() -> int:
    """Parses the flags, runs, and returns 1 if a case has an error, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default="", help="cases, by name; default: all")
    parser.add_argument("--seconds", type=float, default=500.0, help="for all cases")
    parser.add_argument("--case_seconds", type=float, default=150.0, help="for one")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of steps")
    parser.add_argument("--steps", type=int, default=5, help="the steps of a round")
    options = parser.parse_args()
    return 1 if any("error" in row for row in run_all(options)) else 0


if __name__ == "__main__":
    sys.exit(main())
