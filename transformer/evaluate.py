"""Evaluates a trained model on the held-out examples of its data, or of other data.

    python -m transformer.evaluate --model_dir=runs/lm_stdlib
    python -m transformer.evaluate --model_dir=runs/t5_stdlib --num_examples=256 --json=scores.json
    python -m transformer.evaluate --model_dir=runs/t5_stdlib --num_answers=64

It prints a metric per line. With `--num_answers=64`, an encoder-decoder also generates
answers to 64 inputs, which are compared with the targets: exact match, and F1 of words.

The configuration is config.gin of the run's folder, unless --gin_file is given; mesh and
layout may differ from those of training. Exit code: 0, or 1 if there is an error.
"""

from __future__ import annotations

import json
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
    flags.DEFINE_string("model_dir", None, "The folder of the run.", required=True)
    flags.DEFINE_integer(
        "num_examples", None, "How many held-out examples, evenly spaced; default: all."
    )
    flags.DEFINE_integer("batch_size", 16, "Examples per batch.", lower_bound=1)
    flags.DEFINE_integer(
        "num_answers",
        0,
        "How many answers an encoder-decoder generates, for exact match and F1.",
        lower_bound=0,
    )
    flags.DEFINE_string("json", None, "A file to write the metrics to, as JSON.")
    flags.adopt_module_key_flags(command_line)  # so that --help shows them


def main(argv: Sequence[str]) -> None:
    """Reads flags and configuration, and prints metrics."""
    # Imports of TensorFlow are in functions, so that --help is fast.
    from transformer.data.atomic_files import check_writable
    from transformer.inference import answer_metrics
    from transformer.training.evaluation import Evaluation
    from transformer.training.load_trained import Trained

    args = flags.FLAGS
    with command_line.exit_on_user_errors():
        command_line.configure_by_flags(argv, model_dir=args.model_dir)
        if args.json:
            check_writable(args.json, name="--json")
        command_line.connect_by_flags()
        trained = Trained.of(args.model_dir)
        evaluation = Evaluation(
            trained.model,
            trained.data,
            batch_size=args.batch_size,
            num_examples=args.num_examples,
        )
        metrics = {"step": trained.step, **evaluation()}
        if args.num_answers:
            metrics |= answer_metrics.evaluate_answers(
                trained, num_examples=args.num_answers, batch_size=args.batch_size
            )
        if args.json:
            with command_line.output_file(args.json) as file:
                print(json.dumps(metrics, indent=2), file=file)
    for name, value in metrics.items():
        print(f"{name.replace('_', ' '):<24} {value:.4f}")


if __name__ == "__main__":
    define_flags()
    run_main(main)
