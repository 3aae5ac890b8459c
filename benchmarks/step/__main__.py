"""Time and memory of a training step: hand-written TensorFlow, meshtf on one mesh position,
meshtf on eight.

    python -m benchmarks.step                    # a small language model, graph mode: two minutes
    python -m benchmarks.step --model=bert --only=1x1                # or --model=moe
    python -m benchmarks.step --peer=all --only=8x1                  # also JAX and DTensor
    python -m benchmarks.step --onednn --only=1x1                    # also TensorFlow with oneDNN
    python -m benchmarks.step --size=full --modes=graph,xla --dropouts=0,0.1 --json=out.json

It checks that all losses agree, and prints step time, time to the first step and peak
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
from benchmarks.step.cases.cases import PEERS, SIZES, Case, cases, sized
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
    "What else trains it on eight devices.",
)
flags.DEFINE_bool(
    "onednn", False, "Whether to compare what is TensorFlow's with oneDNN, too."
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
    config = sized(FLAGS.model, FLAGS.size)
    peers = list(PEERS) if "all" in FLAGS.peer else FLAGS.peer
    measured = []
    wrong = []
    refused = {}
    rates = list(map(float, FLAGS.dropouts))
    for group in cases(
        config,
        FLAGS.modes,
        rates,
        FLAGS.only,
        peers,
        FLAGS.onednn,
    ):
        rows, why = measure(
            group,
            FLAGS.rounds,
            FLAGS.starts,
            FLAGS.losses,
        )
        blocks = [
            table(rows),
            peer_ratios(group, rows),
            memory_table(rows),
            *(f"{name} does not run: {error}" for name, error in why.items()),
        ]
        print("\n" + "\n".join(filter(None, blocks)), flush=True)
        wrong += agreement(rows)
        measured += rows
        refused |= why
    if FLAGS.json:
        with open(FLAGS.json, "w") as file:
            rows = [row.as_dict() for row in measured]
            json.dump(
                {
                    "model": FLAGS.model,
                    "size": FLAGS.size,
                    "rows": rows,
                    "refused": refused,
                },
                file,
                indent=1,
            )
    if wrong:
        sys.exit("\n".join(["losses disagree:", *wrong]))
    print(
        f"\nlosses agree over {FLAGS.losses} steps; median of {FLAGS.rounds} steps, "
        f"spread of plain TensorFlow {_spread(measured[0].step['wall']):.0%}"
    )


def peer_ratios(group: list[Case], rows: list[Row]) -> str:
    """Returns lines with the ratios of meshtf's steps to those of peers on the same mesh.

    Peers are compared with meshtf on logical devices. Towers, which share variables, and JAX
    are also compared with meshtf on one device.
    """
    row_of = {row.name: row for row in rows}
    lines = []
    for peer in group:
        for case in group:
            if (
                peer.runtime in PEERS
                and peer.runtime != "spmd"
                and case.grid == peer.grid
                and (
                    case.runtime == "spmd"
                    or case.runtime == "placed"
                    and (case.devices or peer.runtime in ("towers", "jax"))
                )
                and not (case.sharded_over_data or case.recompute)
                and {peer.name, case.name} <= row_of.keys()
            ):
                own = row_of[case.name]
                other = row_of[peer.name]
                lines.append(
                    f"{case.name} / {peer.name}: {ratio(own, other, 'wall'):.2f}, cpu "
                    f"{ratio(own, other, 'cpu'):.2f}"
                )
    return "\n".join(lines)


def _spread(values: list[float]) -> float:
    quarters = statistics.quantiles(values, n=4)
    return (quarters[2] - quarters[0]) / quarters[1]


if __name__ == "__main__":
    app.run(main)
