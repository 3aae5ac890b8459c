"""Measures a trained model on the held-out examples of its data, or of other data.

    python -m transformer.evaluate --model_dir=runs/lm_stdlib
    python -m transformer.evaluate --model_dir=runs/t5_stdlib --num_examples=256 --json=scores.json
    python -m transformer.evaluate --model_dir=runs/t5_stdlib --written=64

`--written` lets an encoder-decoder write to so many inputs, and compares it with the
targets: exact matches, and F1 of words. It takes config.gin from the folder, or the gin
files and settings of `python -m transformer.train`; mesh and layout may be others. Exit
code: 0, or 1 if there is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer.cli import command_line
from transformer.cli.program import run_main
from transformer.data.atomic_files import check_writable, whole_file
from transformer.inference import answer_metrics
from transformer.training.evaluation import Evaluation
from transformer.training.load_trained import Trained


def define_flags() -> None:
    """Defines the flags of the command; other modules have some of the same names."""
    flags.DEFINE_string("model_dir", None, "The folder of the run.", required=True)
    flags.DEFINE_integer(
        "num_examples", None, "Of so many examples, evenly spaced; default: of all."
    )
    flags.DEFINE_integer("batch_size", 16, "Examples at a time.", lower_bound=1)
    flags.DEFINE_integer(
        "written", 0, "Inputs to which an encoder-decoder writes.", lower_bound=0
    )
    flags.DEFINE_string("json", None, "A file for the scores as JSON.")
    flags.adopt_module_key_flags(command_line)  # so that --help shows them


def main(argv: Sequence[str]) -> None:
    """Reads flags and configuration, and prints scores."""
    asked = flags.FLAGS
    with command_line.leaving_plainly():
        command_line.configure_by_flags(argv, model_dir=asked.model_dir)
        if asked.json:
            check_writable(asked.json, "--json")
        command_line.connect_by_flags()
        trained = Trained.of(asked.model_dir)
        measured = Evaluation(
            trained.model,
            trained.data,
            asked.batch_size,
            num_examples=asked.num_examples,
        )()
        scores = {"step": trained.step, **measured}
        if asked.written:
            scores |= answer_metrics.compare(trained, asked.written, asked.batch_size)
        if asked.json:
            _write(asked.json, scores)
    for name, x in scores.items():
        print(f"{name.replace('_', ' '):<24} {x:.4f}")


def _write(path: str, scores: dict[str, float]) -> None:
    try:
        with whole_file(path) as partial:
            partial.write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise command_line.ConfigError(
            f"cannot write {path}: {error.strerror}."
        ) from None


if __name__ == "__main__":
    define_flags()
    run_main(main)
