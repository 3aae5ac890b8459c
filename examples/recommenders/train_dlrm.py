"""Trains DLRM on generated clicks, and measures it on others.

    python -m examples.recommenders.train_dlrm
    python -m examples.recommenders.train_dlrm --gin_param='Mesh.layout = "batch:data; d:model"'

`dlrm.gin` has the settings, among them the layout: which tables are sharded, and how, is told by
names of dimensions. It needs scikit-learn: pip install -e '.[examples]'.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer.cli.program import answer_usage, run_main

if __name__ == "__main__":
    answer_usage()  # before the imports below take seconds for TensorFlow

import numpy as np

from examples.recommenders import dlrm
from transformer.cli import command_line

GIN_FILE = Path(__file__).with_name("dlrm.gin")


def main(argv: list[str]) -> None:
    """Trains with the settings of gin, and prints what came out."""
    with command_line.exit_on_user_errors():
        command_line.configure_by_flags(argv, files=[str(GIN_FILE)])
        scores = dlrm.train()
    print(f"loss of the first and last steps  {scores.losses[0]:.4f}", end="")
    print(f"  {np.mean(scores.losses[-20:]):.4f}")
    print("held-out clicks     model  planted")
    print(f"area under curve    {scores.auc:.3f}  {scores.best_auc:.3f}")
    print(f"loss in nats        {scores.log_loss:.3f}  {scores.best_log_loss:.3f}")


if __name__ == "__main__":
    run_main(main)
