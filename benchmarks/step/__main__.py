"""Time and memory of a training step: hand-written TensorFlow, meshtf on one mesh position,
meshtf on eight.

    python -m benchmarks.step                    # a small language model, graph mode: two minutes
    python -m benchmarks.step --model=bert --only=1x1                # or --model=moe
    python -m benchmarks.step --peer=all --only=8x1                  # also JAX and DTensor
    python -m benchmarks.step --onednn --only=1x1                    # also TensorFlow with oneDNN
    python -m benchmarks.step --size=full --modes=graph,xla --dropouts=0,0.1 --json=out.json

A mesh position is one of the virtual devices of a mesh; several may share a device. The
benchmark checks that all losses agree, and prints step time, time to the first step and peak
memory as ratios to plain TensorFlow in the same mode. Each case is a separate process.
Starts are measured while no other case is alive; then all are alive and take steps in
turn, so that other load on the machine affects all of them equally. Ratios of step times
are medians over rounds.
"""

from __future__ import annotations

import json
import statistics
import sys

from absl import app, flags

from benchmarks.harness.report import Row, agreement, memory_table, ratio, table
from benchmarks.harness.rounds import measure
from benchmarks.step.cases.cases import PEERS, SIZES, Case, cases, make_config
from benchmarks.step.cases.sizes import MODELS

FLAGS = flags.FLAGS
flags.DEFINE_enum("model", "lm", MODELS, "Which model.")
flags.DEFINE_enum(
    "size",
    "quick",
    list(SIZES),
    "How large a model.",
)
flags.DEFINE_list("modes", ["graph"], "graph, xla or both.")
flags.DEFINE_list("dropouts", ["0"], "Rates of dropout.")
flags.DEFINE_list("only", [""], "Compare only cases with one of these in their names.")
flags.DEFINE_multi_enum(
    "peer",
    [],
    ["all", *PEERS],
    "Other programs to compare, which train the model on eight devices.",
)
flags.DEFINE_bool(
    "onednn", False, "Whether to run TensorFlow without meshtf with oneDNN as well."
)
flags.DEFINE_integer("rounds", 10, "How many steps of each case are timed.")
flags.DEFINE_integer(
    "starts", 1, "How often each case is started; the fastest start counts."
)
flags.DEFINE_integer("losses", 5, "How many steps the losses are compared over.")
flags.DEFINE_string("json", None, "A file to write all numbers to.")


def main(argv: list[str]) -> None:
    """Measures, prints, and fails if losses disagree."""
    del argv
    config = make_config(FLAGS.model, FLAGS.size)
    peers = list(PEERS) if "all" in FLAGS.peer else FLAGS.peer
    all_rows = []
    disagreements = []
    refused = {}  # the reasons why cases do not run, by name
    for group in cases(
        config,
        modes=FLAGS.modes,
        dropouts=list(map(float, FLAGS.dropouts)),
        words=FLAGS.only,
        peers=peers,
        onednn=FLAGS.onednn,
    ):
        rows, refused_in_group = measure(
            group,
            rounds=FLAGS.rounds,
            starts=FLAGS.starts,
            losses=FLAGS.losses,
        )
        blocks = [table(rows), peer_ratios(group, rows), memory_table(rows)]
        for name, reason in refused_in_group.items():
            blocks.append(f"{name} does not run: {reason}")
        print("\n" + "\n".join(filter(None, blocks)), flush=True)
        disagreements += agreement(rows)
        all_rows += rows
        refused |= refused_in_group
    if FLAGS.json:
        with open(FLAGS.json, "w") as file:
            json.dump(
                {
                    "model": FLAGS.model,
                    "size": FLAGS.size,
                    "rows": [row.as_dict() for row in all_rows],
                    "refused": refused,
                },
                file,
                indent=1,
            )
    if disagreements:
        sys.exit("\n".join(["losses disagree:", *disagreements]))
    print(
        f"\nlosses agree over {FLAGS.losses} steps; median of {FLAGS.rounds} steps, "
        f"spread of plain TensorFlow {_spread(all_rows[0].step['wall']):.0%}"
    )


def peer_ratios(group: list[Case], rows: list[Row]) -> str:
    """Returns lines with the ratios of meshtf's steps to those of peers (other programs that
    train the same model) on the same mesh.

    Peers are compared with meshtf on logical devices. Towers, which share variables, and JAX
    are also compared with meshtf on one device.

    Args:
      group: the cases of one mode.
      rows: the rows of the cases that run.
    """
    row_of = {row.name: row for row in rows}  # by the name of the case
    measured_cases = [case for case in group if case.name in row_of]
    lines = []
    for peer in measured_cases:
        for case in measured_cases:
            if _is_compared(case, peer):
                row = row_of[case.name]
                peer_row = row_of[peer.name]
                lines.append(
                    f"{case.name} / {peer.name}: {ratio(row, peer_row, 'wall'):.2f}, "
                    f"cpu {ratio(row, peer_row, 'cpu'):.2f}"
                )
    return "\n".join(lines)


def _is_compared(case: Case, peer: Case) -> bool:
    """Returns whether a case of meshtf is compared with a case of a peer. Live SPMD meshes
    are in PEERS, but are meshtf's.
    """
    if peer.runtime not in PEERS or peer.runtime == "spmd" or case.grid != peer.grid:
        return False
    if case.sharded_over_data or case.recompute:
        return False
    if case.runtime == "placed":
        return bool(case.devices) or peer.runtime in ("towers", "jax")
    return case.runtime == "spmd"


def _spread(values: list[float]) -> float:
    """Returns the interquartile range over the median."""
    first_quartile, median, third_quartile = statistics.quantiles(values, n=4)
    return (third_quartile - first_quartile) / median


if __name__ == "__main__":
    app.run(main)
