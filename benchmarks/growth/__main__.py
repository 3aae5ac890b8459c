"""How cost grows with devices, layers, experts and tokens, against theory.

    python -m benchmarks.growth                            # about 15 minutes on two idle cores
    python -m benchmarks.growth --only=planning            # seconds; or devices, layers, ...
    python -m benchmarks.growth --only=devices --sizes=8,64 --rounds=3
    python -m benchmarks.growth --svg=FOLDER --json=growth.json
    python -m benchmarks.growth --svg=FOLDER --drawn=growth.json     # draws earlier measurements

The cases are a training step of a small language model in meshtf, in graph mode, and the same
step in plain TensorFlow on one device. A panel is a quantity that grows, such as the number
of layers. The panel "devices" has meshes of more and more positions (the virtual devices of a
mesh), which share one device or have a logical device each; each position adds examples to
the batch.

Each case runs in a separate process. First steps are measured while no other case is alive,
and the fastest of several starts counts; further steps are taken in turn. Ratios are to plain
TensorFlow at the same size. Below each table are the fitted curves that theory predicts, and
the largest deviation from them.
"""

from __future__ import annotations

import json
from pathlib import Path

from absl import app, flags

from benchmarks.growth.cases import SIZES
from benchmarks.growth.measure import Row, measure_panel, table
from benchmarks.growth.panels import picture
from benchmarks.growth.planning import planning
from benchmarks.growth.theory import describe

FLAGS = flags.FLAGS


def main(argv: list[str]) -> None:
    """Measures, prints tables, and writes the files that the flags name."""
    del argv
    results: dict[str, list[Row]] = {}
    if FLAGS.drawn:
        results = json.loads(Path(FLAGS.drawn).read_text(encoding="utf-8"))
    for panel in FLAGS.only or SIZES:
        if panel not in results:
            sizes = list(map(int, FLAGS.sizes)) or SIZES[panel]
            if panel == "planning":
                results[panel] = planning(sizes, FLAGS.rounds)
            else:
                results[panel] = measure_panel(panel, sizes, FLAGS.rounds, FLAGS.starts)
        rows = results[panel]
        print(f"\n{table(panel, rows)}\n\n{describe(panel, rows)}", flush=True)
        if FLAGS.svg:
            path = Path(FLAGS.svg, f"growth_{panel}.svg")
            path.write_text(picture(panel, rows), encoding="utf-8")
    if FLAGS.json:
        Path(FLAGS.json).write_text(json.dumps(results, indent=1), encoding="utf-8")


def define_flags() -> None:
    """Defines the flags. Not at import, so that tests can import this module."""
    flags.DEFINE_list("only", [], f"Which panels: {', '.join(SIZES)}.")
    flags.DEFINE_list("sizes", [], "Sizes, in place of the defaults of the panel.")
    flags.DEFINE_integer("rounds", 5, "How many steps of each case are timed.")
    flags.DEFINE_integer("starts", 1, "How often each case is started.")
    flags.DEFINE_string("json", None, "A file for all measurements.")
    flags.DEFINE_string(
        "drawn",
        None,
        "A file that --json has written; its panels are printed and drawn, not measured.",
    )
    flags.DEFINE_string("svg", None, "A folder for the charts.")


if __name__ == "__main__":
    define_flags()
    app.run(main)
