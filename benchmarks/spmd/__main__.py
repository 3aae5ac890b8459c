"""A language model on eight CPU devices: JAX, meshtf on a live mesh, meshtf's placed
runtime.

    python -m benchmarks.spmd                     # a small model on two meshes: about two minutes
    python -m benchmarks.spmd --size=full --grids=4x2 --starts=3 --json=out.json
    python -m benchmarks.spmd --dropout=0.1

JAX shards one global program by NamedSharding. A live mesh runs the program of one mesh
position on each device, by the same compiler and client as JAX; the placed runtime runs
one TensorFlow program with ops on all devices. The benchmark checks that all losses agree
(with dropout those of meshtf alone, since JAX draws other masks),
and prints step time, compile time (tracing, lowering, compiling and the first step; with
the initial values of the variables: "first"), and memory as ratios to JAX. The memory of a
process contains the compiler's; that of a device is what XLA plans for a step. Nothing is
read from a cache of compiled programs. Processes take steps in turn, as in
`benchmarks.step`. JAX is in the extra "spmd".
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys

from absl import flags

from benchmarks.harness.report import Row, agreement, table
from benchmarks.harness.rounds import measure
from benchmarks.spmd.ratios import live_ratios
from benchmarks.step.cases.cases import SIZES, make_config, spmd_cases
from transformer.cli.program import run_main

FLAGS = flags.FLAGS
flags.DEFINE_enum(
    "size",
    "quick",
    list(SIZES),
    "How large a model.",
)
flags.DEFINE_list("grids", ["8x1", "4x2"], "Meshes of data x model.")
flags.DEFINE_float("dropout", 0.0, "The rate of dropout.", lower_bound=0.0)
flags.DEFINE_integer("rounds", 10, "How many steps of each case are timed.")
flags.DEFINE_integer(
    "starts", 1, "How often each case is started; the fastest start counts."
)
flags.DEFINE_integer("losses", 10, "How many steps the losses are compared over.")
flags.DEFINE_string("json", None, "A file to write all numbers to.")

_TOLERANCE = 1e-5  # the relative difference up to which losses agree


def main(argv: list[str]) -> None:
    """Measures, prints, and fails if losses disagree."""
    del argv
    if importlib.util.find_spec("jax") is None:
        sys.exit("JAX is not installed here: pip install -e '.[spmd]'.")
    measured = []
    disagreements = []
    config = make_config("lm", FLAGS.size)
    config = dataclasses.replace(config, dropout=FLAGS.dropout)
    for group in spmd_cases(config, FLAGS.grids):
        rows, _ = measure(
            group,
            rounds=FLAGS.rounds,
            starts=FLAGS.starts,
            losses=FLAGS.losses,
        )
        print(f"\n{table(rows, start_time='compile')}\n{live_ratios(rows)}", flush=True)
        disagreements += agreement(_comparable(rows), _TOLERANCE)
        measured += rows
    if FLAGS.json:
        with open(FLAGS.json, "w") as file:
            json.dump(
                {
                    "size": FLAGS.size,
                    "dropout": FLAGS.dropout,
                    "rows": [row.as_dict() for row in measured],
                },
                file,
                indent=1,
            )
    if disagreements:
        sys.exit("\n".join(["losses disagree:", *disagreements]))
    if FLAGS.dropout:
        print("\nJAX's losses are not compared: it draws other dropout masks.", end="")
    print(
        f"\nlosses agree over {FLAGS.losses} steps to {_TOLERANCE:g}; "
        f"median of {FLAGS.rounds} steps"
    )


def _comparable(rows: list[Row]) -> list[Row]:
    """Returns the rows that draw equal dropout masks: all of them without dropout."""
    if not FLAGS.dropout:
        return rows
    return [row for row in rows if row.name.startswith("meshtf")]


if __name__ == "__main__":
    run_main(main)
