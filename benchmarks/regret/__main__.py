"""The layout that a forecast takes for the fastest, beside the fastest of all that were run.

    python -m benchmarks.regret                                   # three models, live
    python -m benchmarks.regret --regret_models=lm --regret_devices=logical:8

Regret is the measured time of the chosen layout divided by that of the best one.
"""

from __future__ import annotations

from absl import flags

import meshtf as mtf
from benchmarks.regret import measured
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


def main(argv: list[str]) -> None:
    """Measures and prints."""
    del argv
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
