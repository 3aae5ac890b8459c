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

from meshtf.display.svg import MARGIN, document, text
from meshtf.forecast.reports.units import bytes_text, flops_text
from transformer.cli import command_line
from transformer.cli.program import run_main
from transformer.training.evaluation import Evaluation
from transformer.training.training_run import Run

FLAGS = flags.FLAGS
CONFIGS = {"dense": "moe_pays_dense.gin", "mixture": "moe_pays.gin"}
# The titles of the models in the picture.
TITLES = {"dense": "dense", "mixture": "16 experts, 2 for each token"}
# The size of the picture, and the margins of its plot, in pixels.
WIDTH = 860
HEIGHT = 470
LEFT = 82
RIGHT = 250
TOP = 84
BOTTOM = 62
COLOURS = {"dense": "p0", "mixture": "p1"}  # CSS classes
# CSS rules in addition to those of all pictures.
LIGHT = """\
    .line { fill: none; stroke-width: 2.2 } .dot { stroke: none }
    .line.p0 { stroke: #3d7fc1 } .line.p1 { stroke: #dd8531 }
"""


@dataclasses.dataclass(frozen=True)
class Curve:
    """The results of training a model with a seed.

    Attributes:
      model: the model, a key of `CONFIGS`.
      seed: the seed.
      flops: the FLOPs of training for each token.
      parameters: the bytes of the parameters.
      seconds: the seconds of all training steps.
      points: the held-out bits per byte after numbers of steps: (step, bits per byte).
    """

    model: str
    seed: int
    flops: float
    parameters: float
    seconds: float
    points: list[tuple[int, float]]

    @property
    def last_bits(self) -> float:
        """The held-out bits per byte after all steps."""
        _, bits = self.points[-1]
        return bits


def train(
    model: str,
    seed: int,
    every: int,
    params: Sequence[str],
) -> Curve:
    """Trains a model, evaluates it at intervals, and prints progress.

    Args:
      model: the model, a key of `CONFIGS`.
      seed: the seed of initial values and of the order of the text.
      every: the number of steps between evaluations.
      params: further settings of gin.
    """
    gin.clear_config()
    command_line.configure(
        [CONFIGS[model]], [*params, f"ByteText.seed = {seed}", f"Mesh.seed = {seed}"]
    )
    run = Run()
    forecast = run.explain()
    points = []
    seconds = 0.0
    for step, bits, seconds in train_and_evaluate(run, every):
        points.append((step, bits))
        print(
            f"{model:8} seed {seed}  step {step:5}  {bits:.4f} bits  {seconds:5.0f} s",
            flush=True,
        )
    tokens = math.prod(run.features()["tokens"].shape)
    return Curve(
        model=model,
        seed=seed,
        flops=forecast.flops() / tokens,
        parameters=forecast.memory.parameters,
        seconds=seconds,
        points=points,
    )


def train_and_evaluate(run: Run, every: int) -> Iterator[tuple[int, float, float]]:
    """Trains, and yields at each evaluation: the number of steps done, the held-out bits per
    byte, and the seconds that all steps so far took.

    Args:
      run: the run, with its model and data.
      every: the number of steps between evaluations.
    """
    evaluation = Evaluation(run.trainer.model, run.data, run.batch_size)
    seconds = 0.0
    start = time.monotonic()
    for step, batch in enumerate(run.data.batches(run.batch_size).take(run.steps), 1):
        loss, _ = run.trainer.step(batch)
        if step % every == 0 or step == run.steps:
            float(loss)  # waits until the step is done
            seconds += time.monotonic() - start
            yield step, evaluation()["bits_per_byte"], seconds
            start = time.monotonic()


def table(curves: Sequence[Curve]) -> str:
    """Returns the costs of each model, and its bits per byte by steps, as means over seeds."""
    by_model = grouped(curves)

    def line(title: str, value_of: Callable[[Sequence[Curve]], str]) -> str:
        """Returns a title, and a value for the curves of each model."""
        values = [value_of(model_curves) for model_curves in by_model.values()]
        return f"{title:22}" + "".join(f"{value:>14}" for value in values)

    def mean_seconds(model_curves: Sequence[Curve]) -> str:
        """Returns the mean over seeds of the seconds of training."""
        seconds = statistics.mean(curve.seconds for curve in model_curves)
        return f"{seconds:.0f}"

    lines = [
        f"{'':22}" + "".join(f"{model:>14}" for model in by_model),
        line(
            "flops of a token", lambda model_curves: flops_text(model_curves[0].flops)
        ),
        line("parameters", lambda model_curves: bytes_text(model_curves[0].parameters)),
        line("seconds of training", mean_seconds),
    ]
    for step, _ in curves[0].points:
        lines.append(
            line(
                f"bits after {step:5} steps",
                # `step` is a default, so that each lambda has the step of its iteration.
                lambda model_curves, step=step: f"{means(model_curves)[step]:.4f}",
            )
        )
    differences = []
    for dense, mixture in zip(by_model["dense"], by_model["mixture"], strict=True):
        differences.append(f"{mixture.last_bits - dense.last_bits:+.4f}")
    lines.append(f"mixture less dense, by seed: {', '.join(differences)}")
    return "\n".join(lines)


def grouped(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Returns the curves of each model: one for each seed."""
    return {
        model: [curve for curve in curves if curve.model == model] for model in CONFIGS
    }


def means(curves: Sequence[Curve]) -> dict[int, float]:
    """Returns the mean bits per byte over curves, by step."""
    results = {}
    # All curves have points at the same steps.
    for points in zip(*(curve.points for curve in curves), strict=True):
        step, _ = points[0]
        results[step] = statistics.mean(bits for _, bits in points)
    return results


def picture(curves: Sequence[Curve]) -> str:
    """Returns the curves as an SVG document: a line for the mean, a dot for
    each seed.
    """
    steps = [step for step, _ in curves[0].points]
    low, high = vertical_range(curves)

    def x(step: float) -> float:
        """Returns the horizontal coordinate of a step."""
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps[-1]

    def y(value: float) -> float:
        """Returns the vertical coordinate of bits per byte."""
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    body = [
        text(MARGIN, 62, "note", "held-out bits per byte of Python's standard library")
    ]
    for tenths in range(round(low * 10), round(high * 10) + 1, 2):
        bits = tenths / 10
        body += [
            f'  <path class="rule" d="M{LEFT} {y(bits):.1f}H{WIDTH - RIGHT}"/>',
            text(
                x=LEFT - 10,
                y=round(y(bits) + 4, 1),
                kind="code",
                words=f"{bits:.1f}",
                anchor="end",
            ),
        ]
    for step in steps:
        body.append(
            text(
                x=round(x(step), 1),
                y=HEIGHT - BOTTOM + 22,
                kind="code",
                words=str(step),
                anchor="middle",
            )
        )
    middle = round(x(steps[-1] / 2), 1)
    body.append(text(middle, HEIGHT - 18, "note", "steps", anchor="middle"))
    for model, model_curves in grouped(curves).items():
        body += curve_elements(model, model_curves, x, y)
    return document(
        "A mixture of experts and a dense model of equal flops",
        width=WIDTH,
        height=HEIGHT,
        body=body,
        light=LIGHT,
    )


def vertical_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """Returns the range of the vertical axis, from one tenth of a bit to another: it starts
    at least half a tenth below all points, and ends at the first tenth above them.
    """
    all_bits = [bits for curve in curves for _, bits in curve.points]
    low = math.floor(min(all_bits) * 10 - 0.5) / 10
    high = math.floor(max(all_bits) * 10 + 1) / 10
    return low, high


def curve_elements(
    model: str,
    curves: Sequence[Curve],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> list[str]:
    """Returns the curves of one model as elements of an SVG document.

    Args:
      model: the name of the model.
      curves: the curves of the model, one for each seed.
      x: returns the horizontal coordinate of a step.
      y: returns the vertical coordinate of bits per byte.
    """
    mean_bits = means(curves)
    points = [(x(step), y(bits)) for step, bits in mean_bits.items()]
    path = "M" + "L".join(f"{point_x:.1f} {point_y:.1f}" for point_x, point_y in points)
    body = [f'  <path class="line {COLOURS[model]}" d="{path}"/>']
    for curve in curves:
        for step, bits in curve.points:
            body.append(
                f'  <circle class="dot {COLOURS[model]}" cx="{x(step):.1f}" '
                f'cy="{y(bits):.1f}" r="3.2"/>'
            )
    # Two lines of text at the end of the curve. The curve of the dense model is the upper
    # one: its text is above it, that of the mixture below.
    if model == "dense":
        name_offset = -6  # pixels from the end of the curve down to the name
        cost_offset = -17  # pixels from the name down to the costs
    else:
        name_offset = 8
        cost_offset = 17
    _, last_y = points[-1]
    last_mean = list(mean_bits.values())[-1]
    name_y = round(last_y + name_offset, 1)
    cost = f"{last_mean:.3f} bits, {flops_text(curves[0].flops)} a token"
    body += [
        text(WIDTH - RIGHT + 12, name_y, "name", TITLES[model]),
        text(WIDTH - RIGHT + 12, name_y + cost_offset, "note", cost),
    ]
    return body


def main(argv: list[str]) -> None:
    """Trains, prints a table, and writes the files that the flags name."""
    del argv
    curves = [
        train(
            model,
            seed=int(seed),
            every=FLAGS.every,
            params=command_line.GIN_PARAM.value,
        )
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
