"""Held-out bits per byte of a mixture of experts, against a dense model of equal FLOPs.

    python -m benchmarks.moe.quality --seeds=0,1 --svg=moe_pays.svg --json=moe_pays.json
    python -m benchmarks.moe.quality --gin_param='steps = 300' --every=100

Both language models (configs/moe_pays_dense.gin, configs/moe_pays.gin) are trained on the
same bytes in the same order, for the same number of steps, with the same learning rates.
Both take the same FLOPs per token, as counted by `explain`. They are evaluated on the same
held-out windows.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import gin
from absl import flags

from meshtf.forecast.reports.svg import MARGIN, document, text
from meshtf.forecast.reports.units import bytes_text, flops_text
from transformer.cli import command_line
from transformer.cli.program import run_main
from transformer.training.evaluation import Evaluation
from transformer.training.training_run import Run

FLAGS = flags.FLAGS
CONFIGS = {"dense": "moe_pays_dense.gin", "mixture": "moe_pays.gin"}
NAMES = {"dense": "dense", "mixture": "16 experts, 2 for each token"}
WIDTH = 860
HEIGHT = 470
LEFT = 82
RIGHT = 250
TOP = 84
BOTTOM = 62
COLOURS = {"dense": "p0", "mixture": "p1"}
LIGHT = """\
    .line { fill: none; stroke-width: 2.2 } .dot { stroke: none }
    .line.p0 { stroke: #3d7fc1 } .line.p1 { stroke: #dd8531 }
"""


@dataclasses.dataclass(frozen=True)
class Curve:
    """One training."""

    model: str
    seed: int
    flops: float  # of training, for each token
    parameters: float  # bytes
    seconds: float  # of the training steps
    points: list[tuple[int, float]]  # steps, held-out bits per byte


def train(
    model: str,
    seed: int,
    every: int,
    params: Sequence[str],
) -> Curve:
    """Trains a model and evaluates it after each `every` steps; prints progress."""
    gin.clear_config()
    command_line.configure(
        [CONFIGS[model]], [*params, f"ByteText.seed = {seed}", f"Mesh.seed = {seed}"]
    )
    run = Run()
    forecast = run.explain()
    points = []
    seconds = 0.0
    for step, bits, seconds in measured(run, every):
        points.append((step, bits))
        print(
            f"{model:8} seed {seed}  step {step:5}  {bits:.4f} bits  {seconds:5.0f} s",
            flush=True,
        )
    tokens = math.prod(run.features()["tokens"].shape)
    return Curve(
        model,
        seed,
        forecast.flops() / tokens,
        forecast.memory.parameters,
        seconds,
        points,
    )


def measured(run: Run, every: int) -> Iterator[tuple[int, float, float]]:
    """Yields steps done, held-out bits per byte, and the seconds that all steps so far
    took.
    """
    evaluation = Evaluation(run.trainer.model, run.data, run.batch_size)
    seconds = 0.0
    began = time.monotonic()
    for step, batch in enumerate(run.data.batches(run.batch_size).take(run.steps), 1):
        loss, _ = run.trainer.step(batch)
        if step % every == 0 or step == run.steps:
            float(loss)  # waits for it
            seconds += time.monotonic() - began
            yield step, evaluation()["bits_per_byte"], seconds
            began = time.monotonic()


def table(curves: Sequence[Curve]) -> str:
    """Returns the costs of each model, and its bits per byte by steps, as means over seeds."""
    by_model = grouped(curves)
    lines = [f"{'':22}" + "".join(f"{model:>14}" for model in by_model)]
    for title, read in (
        ("flops of a token", lambda own: flops_text(own[0].flops)),
        ("parameters", lambda own: bytes_text(own[0].parameters)),
        (
            "seconds of training",
            lambda own: f"{statistics.mean(c.seconds for c in own):.0f}",
        ),
    ):
        lines.append(
            f"{title:22}" + "".join(f"{read(own):>14}" for own in by_model.values())
        )
    for step in [step for step, _ in curves[0].points]:
        lines.append(
            f"bits after {step:5} steps"
            + "".join(f"{means(own)[step]:15.4f}"[1:] for own in by_model.values())
        )
    ends = {model: [c.points[-1][1] for c in own] for model, own in by_model.items()}
    differences = [b - a for a, b in zip(ends["dense"], ends["mixture"], strict=True)]
    lines.append(
        "mixture less dense, by seed: " + ", ".join(f"{x:+.4f}" for x in differences)
    )
    return "\n".join(lines)


def grouped(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Returns curves by model."""
    return {model: [c for c in curves if c.model == model] for model in CONFIGS}


def means(curves: Sequence[Curve]) -> dict[int, float]:
    """Returns the mean bits over curves, by step."""
    by_step = zip(*(c.points for c in curves), strict=True)
    return {
        points[0][0]: statistics.mean(bits for _, bits in points) for points in by_step
    }


def picture(curves: Sequence[Curve]) -> str:
    """Returns the curves as an SVG document: a line for the mean, a dot for
    each seed.
    """
    steps = [step for step, _ in curves[0].points]
    bits = [b for c in curves for _, b in c.points]
    low = int(min(bits) * 10 - 0.5) / 10
    high = int(max(bits) * 10 + 1) / 10

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps[-1]

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    body = [
        text(MARGIN, 62, "note", "held-out bits per byte of Python's standard library")
    ]
    for tick in range(round(low * 10), round(high * 10) + 1, 2):
        body.append(
            f'  <path class="rule" d="M{LEFT} {y(tick / 10):.1f}H{WIDTH - RIGHT}"/>'
        )
        body.append(
            text(
                LEFT - 10, round(y(tick / 10) + 4, 1), "code", f"{tick / 10:.1f}", "end"
            )
        )
    for step in steps:
        body.append(
            text(round(x(step), 1), HEIGHT - BOTTOM + 22, "code", str(step), "middle")
        )
    body.append(
        text(round(x(steps[-1] / 2), 1), HEIGHT - 18, "note", "steps", "middle")
    )
    for model, own in grouped(curves).items():
        body += curve(model, own, x, y)
    return document(
        "A mixture of experts and a dense model of equal flops",
        WIDTH,
        HEIGHT,
        body,
        LIGHT,
    )


def curve(
    model: str,
    own: Sequence[Curve],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> list[str]:
    """Returns the curves of one model as elements of an SVG document.

    Args:
      model: the name of the model.
      own: its curves, one for each seed.
      x: the horizontal coordinate of a step.
      y: the vertical coordinate of bits per byte.
    """
    line = [(x(step), y(value)) for step, value in means(own).items()]
    path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in line)
    body = [f'  <path class="line {COLOURS[model]}" d="{path}"/>']
    body += [
        f'  <circle class="dot {COLOURS[model]}" cx="{x(step):.1f}" '
        f'cy="{y(value):.1f}" '
        'r="3.2"/>'
        for c in own
        for step, value in c.points
    ]
    end = round(line[-1][1] + (-6 if model == "dense" else 8), 1)
    body.append(text(WIDTH - RIGHT + 12, end, "name", NAMES[model]))
    last = list(means(own).values())[-1]
    cost = f"{last:.3f} bits, {flops_text(own[0].flops)} a token"
    body.append(
        text(
            WIDTH - RIGHT + 12,
            end + (-17 if model == "dense" else 17),
            "note",
            cost,
        )
    )
    return body


def main(argv: list[str]) -> None:
    """Trains, prints a table, and writes what is asked for."""
    del argv
    curves = [
        train(model, int(seed), FLAGS.every, command_line.GIN_PARAM.value)
        for seed in FLAGS.seeds
        for model in CONFIGS
    ]
    print(table(curves))
    if FLAGS.json:
        Path(FLAGS.json).write_text(
            json.dumps([dataclasses.asdict(c) for c in curves], indent=1),
            encoding="utf-8",
        )
    if FLAGS.svg:
        Path(FLAGS.svg).write_text(picture(curves), encoding="utf-8")


def define_flags() -> None:
    """Defines the flags. Not at import, so that tests can import this module."""
    flags.DEFINE_list(
        "seeds", ["0"], "Seeds of initial values and of the order of the text."
    )
    flags.DEFINE_integer("every", 250, "Steps between two measurements.")
    flags.DEFINE_string("json", None, "A file to write all numbers to.")
    flags.DEFINE_string("svg", None, "A file to draw the curves to.")


if __name__ == "__main__":
    define_flags()
    run_main(main)
