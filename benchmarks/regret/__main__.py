"""What forecasts of the time of a step are worth: their error, and how good the layout is that
they choose. Regret is the measured time of the chosen layout divided by that of the best one.

    python -m benchmarks.regret                              # three models, live, on this machine
    python -m benchmarks.regret --regret_models=lm --regret_devices=logical:8
    python -m benchmarks.regret --published                  # measured steps of others
    python -m benchmarks.regret --published --published_file=runs.csv    # those of your file

--published fits the constants of hardware on one half of the groups of published runs, and
predicts the other. docs/explain/performance/time_model.md explains the results.
"""

from __future__ import annotations

from absl import flags

import meshtf as mtf
from benchmarks.regret import measured
from benchmarks.regret.published_steps.compare_published import compare_published
from benchmarks.regret.published_steps.published import PUBLISHED
from transformer.cli.program import run_main

FLAGS = flags.FLAGS
flags.DEFINE_list("regret_models", ["lm", "bert", "moe"], "The models.")
flags.DEFINE_string(
    "regret_devices", "spmd:cpu:8", 'The devices: "spmd:cpu:8", "logical:8", ...'
)
flags.DEFINE_string(
    "regret_profile", None, "A profile of hardware; default: it is measured."
)
flags.DEFINE_integer("regret_layouts", 30, "How many layouts are judged.")
flags.DEFINE_integer("regret_calibrating", 10, "How many others give factors.")
flags.DEFINE_integer("regret_rounds", 9, "How often each layout is timed.")
flags.DEFINE_integer("regret_seed", 0, "Of the layouts and their order.")
flags.DEFINE_enum(
    "regret_clock",
    "wall",
    ["wall", "processor"],
    "By which time layouts are judged: processor time does not count other programs.",
)
flags.DEFINE_string("regret_json", None, "A file to write all times to.")
flags.DEFINE_bool("published", False, "Compare with published measurements.")
flags.DEFINE_string(
    "published_file", str(PUBLISHED), "The file of published measurements (CSV)."
)
flags.DEFINE_integer(
    "split_seed", 0, "The seed that draws the groups which constants are fitted on."
)


def main(argv: list[str]) -> None:
    """Measures or compares, and prints."""
    del argv
    if FLAGS.published:
        for line in compare_published(FLAGS.published_file, FLAGS.split_seed):
            print(line, flush=True)
        return
    mtf.configure_process()
    options = measured.Options(
        devices=FLAGS.regret_devices or None,
        layouts=FLAGS.regret_layouts,
        calibrating=FLAGS.regret_calibrating,
        rounds=FLAGS.regret_rounds,
        seed=FLAGS.regret_seed,
        clock=FLAGS.regret_clock,
    )
    measured.run(
        FLAGS.regret_models,
        options,
        profile=FLAGS.regret_profile,
        json_path=FLAGS.regret_json,
        report=lambda line: print(line, flush=True),
    )


if __name__ == "__main__":
    run_main(main)
