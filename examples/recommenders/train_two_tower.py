"""Trains two towers on generated clicks, and measures what they retrieve.

    python -m examples.recommenders.train_two_tower
    python -m examples.recommenders.train_two_tower --gin_param='Mesh.layout = "batch:data"'

`two_tower.gin` has the settings, among them the layout: which tables are sharded, and how, is
told by names of dimensions.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer.cli.program import answer_usage, run_main

if __name__ == "__main__":
    answer_usage()  # before the imports below take seconds for TensorFlow

import numpy as np

from examples.recommenders import two_tower
from transformer.cli import command_line

GIN_FILE = Path(__file__).with_name("two_tower.gin")


def main(argv: list[str]) -> None:
    """Trains with the settings of gin, and prints what came out."""
    with command_line.exit_on_user_errors():
        command_line.configure_by_flags(argv, files=[str(GIN_FILE)])
        scores = two_tower.train()
    print(f"loss of the first and last steps  {scores.losses[0]:.4f}", end="")
    print(f"  {np.mean(scores.losses[-20:]):.4f}")
    print("held-out clicks           model  by popularity  planted")
    print(f"among the best scores     {scores.recall:.3f}", end="")
    print(f"  {scores.popular_recall:.3f}          {scores.best_recall:.3f}")


if __name__ == "__main__":
    run_main(main)
