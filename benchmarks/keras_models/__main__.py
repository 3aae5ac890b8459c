"""Sixty Keras models on a mesh of eight positions, beside Keras.

    python -m benchmarks.keras_models                            # all, and writes the page
    python -m benchmarks.keras_models --models=Bert,transformer  # some, and prints the table
    python -m benchmarks.keras_models --keras_hub=FOLDER         # the folder of keras_hub

Each model runs three steps of its own, unmodified `fit` in float64, with SGD and momentum, on
"data:4; model:2", and on one device by Keras. Models are small, weights are random, nothing is
downloaded. Models run in processes of their own, a few in each.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence

_IN_A_PROCESS = 3
_PAGE = "docs/reference/keras_models.md"


def main() -> int:
    """Runs the models that the command names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="", help="names, with commas; default: all")
    parser.add_argument("--keras_hub", default="", help="the folder that has keras_hub")
    parser.add_argument("--output", default="", help=f"the page; for all: {_PAGE}")
    parser.add_argument(
        "--results", default="", help="a file of results, to go on with"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.keras_hub:
        sys.path.append(options.keras_hub)
    if options.worker:
        return _work(options.models.split(","))
    return _run_all(options)


def _work(names: Sequence[str]) -> int:
    """Measures models, and prints a line of JSON for each."""
    from benchmarks.keras_models.configurations import CONFIGURATIONS
    from benchmarks.keras_models.measure import measure

    by_name = {f"{c.source}/{c.name}": c for c in CONFIGURATIONS}
    for name in names:
        result = measure(by_name[name])
        print(json.dumps(dataclasses.asdict(result)), flush=True)
    return 0


def _run_all(options: argparse.Namespace) -> int:
    from benchmarks.keras_models.configurations import CONFIGURATIONS
    from benchmarks.keras_models.measure import Result
    from benchmarks.keras_models.page import page, table

    chosen = [name for name in options.models.split(",") if name]
    names = [
        f"{c.source}/{c.name}"
        for c in CONFIGURATIONS
        if not chosen or c.name in chosen or c.source in chosen
    ]
    results: dict[str, Result] = {}
    if options.results and os.path.exists(options.results):
        with open(options.results) as file:
            results = _results(file.read())
    pending = [name for name in names if name not in results]
    while pending:
        group, pending = pending[:_IN_A_PROCESS], pending[_IN_A_PROCESS:]
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.keras_models"]
        command += ["--worker", f"--models={','.join(group)}"]
        command += [f"--keras_hub={options.keras_hub}"]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
        finished = _results(output)
        left = [name for name in group if name not in finished]
        if left:
            # The process has ended: by this one.
            source, name = left.pop(0).split("/")
            died = Result(source, name, error="the process ended")
            finished[f"{source}/{name}"] = died
            pending = left + pending
        results |= finished
        print(table(list(finished.values())), flush=True)
        if options.results:
            lines = [json.dumps(dataclasses.asdict(r)) for r in results.values()]
            with open(options.results, "w") as file:
                file.write("\n".join(lines) + "\n")
    ordered = [results[name] for name in names]
    path = options.output or ("" if chosen else _PAGE)
    if path:
        with open(path, "w") as file:
            file.write(page(ordered))
    return 0 if all(not r.error for r in ordered) else 1


def _results(lines: str) -> dict:
    from benchmarks.keras_models.measure import Result

    results = [
        Result(**json.loads(line)) for line in lines.splitlines() if line[:1] == "{"
    ]
    return {f"{r.source}/{r.name}": r for r in results}


if __name__ == "__main__":
    sys.exit(main())
