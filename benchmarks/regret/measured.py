"""Layouts of small models: predicted and measured steps on eight devices of this machine.

    run(["lm"], devices="spmd:cpu:8", profile=None)

A profile of the machine is measured first. Layouts are drawn at random, all are compiled, and
then timed in rounds, a step each, in an order that is shuffled anew for each round. A round in
which the machine was slow is scaled to the others, by the median over all layouts. One layout
is timed twice in each round: the two medians show the noise.

Some further layouts, which are not judged, give the profile its factors by kind of work, as
`python -m meshtf calibrate --gin_file` does; results with the rates alone are printed as well.
"""

from __future__ import annotations

import json
import random
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import meshtf as mtf
from benchmarks.regret.candidates import Candidate, draw
from benchmarks.regret.scores import Scores, score
from benchmarks.regret.small_models import SIZES, make_trainer
from meshtf.hardware import Hardware, as_hardware
from transformer.training.trainer import Trainer

_WARM_UP = 2  # steps of each layout before it is timed


class Timed(NamedTuple):
    """A layout with its forecast and its measured steps.

    Attributes:
      candidate: the layout.
      step: runs a training step, and waits for its loss.
      explain: returns the forecast of a step from a profile of hardware.
    """

    candidate: Candidate
    step: Callable[[], None]
    explain: Callable[[Any], mtf.Forecast]


def run(
    models: Sequence[str],
    devices: str | None = "spmd:cpu:8",
    profile: str | Hardware | None = None,
    layouts: int = 30,
    calibrating: int = 8,
    rounds: int = 9,
    seed: int = 0,
    json_path: str | None = None,
    sizes: Mapping[str, int] = SIZES,
    report: Callable[[str], None] = print,
) -> list[Scores]:
    """Measures and prints; returns the scores of each model, with factors.

    Args:
      models: "lm", "bert", "moe".
      devices: the devices, as `mtf.Mesh` takes them.
      profile: a profile of hardware, or the path of one; None: it is measured.
      layouts: how many layouts are judged.
      calibrating: how many others give the profile its factors.
      rounds: how often each layout is timed.
      seed: of the draw of layouts and the order of steps.
      json_path: a file to write all times to.
      sizes: the sizes of the models.
      report: is called with each line.
    """
    warnings.simplefilter("ignore", mtf.LayoutWarning)
    if profile is None:
        hardware = mtf.calibration.calibrate(devices, report=report)
    else:
        hardware = as_hardware(profile)
    scores = []
    rows: dict[str, Any] = {}
    for model in models:
        report(f"\n{model}: layouts on {devices or 'one device'}, seed {seed}")
        result, rows[model] = _compare(
            model,
            devices,
            hardware,
            (layouts, calibrating, rounds, seed),
            sizes,
            report,
        )
        scores.append(result)
    if json_path is not None:
        Path(json_path).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return scores


def _compare(
    model: str,
    devices: str | None,
    hardware: Hardware,
    counts: tuple[int, int, int, int],
    sizes: Mapping[str, int],
    report: Callable[[str], None],
) -> tuple[Scores, list[dict[str, Any]]]:
    """Returns the scores of one model, and a row for each layout.

    Args:
      counts: layouts that are judged, those that are not, rounds, and the seed.
      model, devices, hardware, sizes, report: as in `run`.
    """
    num_judged, num_calibrating, rounds, seed = counts
    candidates = draw(
        model,
        seed,
        num_judged + num_calibrating,
        is_legal=lambda candidate: _is_legal(model, candidate, sizes),
    )
    timed = [
        _compile(model, candidate, devices, sizes, f"{i + 1}/{len(candidates)}", report)
        for i, candidate in enumerate(candidates)
    ]
    seconds, noise = measure(timed, rounds, seed, report)
    profile = hardware
    steps = [
        mtf.calibration.MeasuredStep(timed[i].explain(hardware), seconds[i])
        for i in range(num_judged, len(timed))
    ]
    if steps:
        profile = mtf.calibration.adjust(hardware, steps)
    rows = []
    for i, layout in enumerate(timed):
        by_rates = layout.explain(hardware).time
        forecast = layout.explain(profile).time
        assert by_rates is not None and forecast is not None
        rows.append(
            {
                "layout": layout.candidate.text,
                "judged": i < num_judged,
                "measured": seconds[i],
                "predicted": forecast.seconds,
                "by_rates": by_rates.seconds,
                "work": dict(by_rates.work),
            }
        )
    return _report(rows[:num_judged], noise, report), rows


def _is_legal(model: str, candidate: Candidate, sizes: Mapping[str, int]) -> bool:
    """Returns whether a layout can run, without padding of any dimension."""
    try:
        trainer, batch = make_trainer(model, candidate, "abstract", sizes)
        forecast = trainer.explain(batch)
    except mtf.MeshtfError:
        return False
    return forecast.error is None


def _compile(
    model: str,
    candidate: Candidate,
    devices: str | None,
    sizes: Mapping[str, int],
    progress: str,
    report: Callable[[str], None],
) -> Timed:
    """Returns a layout whose step is compiled."""
    start = time.monotonic()
    trainer, batch = make_trainer(model, candidate, devices, sizes)
    _assign_values(trainer)

    def step() -> None:
        """Trains for a step."""
        loss, _norm = trainer.step(batch)
        float(loss)

    def explain(hardware: Any) -> mtf.Forecast:
        """Returns the forecast of a step."""
        return trainer.explain(batch, hardware=hardware)

    for _ in range(_WARM_UP):
        step()
    report(f"  {progress} {candidate.text}: {time.monotonic() - start:.1f} s")
    return Timed(candidate, step, explain)


def _assign_values(trainer: Trainer) -> None:
    """Assigns values to all variables, which is faster than to compile what draws them."""
    rng = np.random.default_rng(0)
    for variable in trainer.variables.values():
        values = rng.standard_normal(variable.shape.sizes, np.float32)
        variable.assign(np.abs(values) * 0.02)


def measure(
    layouts: Sequence[Timed],
    rounds: int,
    seed: int,
    report: Callable[[str], None],
) -> tuple[list[float], float]:
    """Returns the seconds of a step of each layout, and the relative difference of two
    measurements of the same layout.
    """
    rng = random.Random(seed)
    middle = len(layouts) // 2  # the layout that is timed twice
    indices = [*range(len(layouts)), middle]
    times = np.zeros((rounds, len(indices)))
    start = time.monotonic()
    for i in range(rounds):
        order = list(range(len(indices)))
        rng.shuffle(order)
        for j in order:
            begin = time.perf_counter()
            layouts[indices[j]].step()
            times[i, j] = time.perf_counter() - begin
        report(f"  round {i + 1}/{rounds}, {time.monotonic() - start:.0f} s")
    # Scales each round so that its layouts have the times of a usual round.
    usual = np.median(times, axis=0)
    scales = np.median(times / usual, axis=1, keepdims=True)
    medians = np.median(times / scales, axis=0)
    noise = abs(medians[-1] / medians[middle] - 1)
    return [float(x) for x in medians[:-1]], float(noise)


def _report(
    rows: Sequence[Mapping[str, Any]], noise: float, report: Callable[[str], None]
) -> Scores:
    """Prints the layouts, the fastest first, and returns the scores."""
    report(f"{'layout':64}{'measured':>10}{'predicted':>11}{'error':>8}{'rates':>8}")
    for row in sorted(rows, key=lambda row: row["measured"]):
        errors = [row[key] / row["measured"] - 1 for key in ("predicted", "by_rates")]
        report(
            f"{row['layout']:64}{row['measured'] * 1e3:7.1f} ms"
            f"{row['predicted'] * 1e3:8.1f} ms{errors[0]:8.1%}{errors[1]:8.1%}"
        )
    seconds = [row["measured"] for row in rows]
    scores = score([row["predicted"] for row in rows], seconds)
    by_rates = score([row["by_rates"] for row in rows], seconds)
    report(f"with factors: {scores.text}")
    report(f"rates alone:  {by_rates.text}")
    report(f"noise: the same layout twice differs by {noise:.1%}")
    return scores
