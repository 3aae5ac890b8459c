"""What forecasts of the time of a step are worth: their error, and how good the layout is that
they choose.

    python -m benchmarks.regret --published                  # measured steps of others
    python -m benchmarks.regret --published --published_file=runs.csv    # those of your file

Fits the constants of hardware on one half of the groups of published runs, and predicts the
other. docs/explain/performance/time_model.md explains the results.
"""

from __future__ import annotations

from absl import app, flags

from benchmarks.regret.published_steps.compare_published import compare_published
from benchmarks.regret.published_steps.published import PUBLISHED
from transformer.cli.program import run_main

FLAGS = flags.FLAGS
flags.DEFINE_bool("published", False, "Compare with published measurements.")
flags.DEFINE_string(
    "published_file", str(PUBLISHED), "The file of published measurements (CSV)."
)
flags.DEFINE_integer(
    "split_seed", 0, "The seed that draws the groups which constants are fitted on."
)


def main(argv: list[str]) -> None:
    """Prints how good forecasts are."""
    del argv
    if not FLAGS.published:
        raise app.UsageError("Say what is compared: --published.")
    for line in compare_published(FLAGS.published_file, FLAGS.split_seed):
        print(line, flush=True)


if __name__ == "__main__":
    run_main(main)
