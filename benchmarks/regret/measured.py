"""Layouts of small models: predicted and measured steps on eight devices of this machine.

    run(["lm"], Options(devices="spmd:cpu:8"))

A profile of the machine is measured first. Layouts are drawn at random, all are compiled, and
then timed in rounds, in an order that is shuffled anew for each round. The timed step follows one
that is not timed, since in training each step follows another of the same program. A round in
which the machine was slow is scaled to the others, by the median over all layouts. One layout
is timed twice in each round: the two medians show the noise.

On the SPMD runtime, what one device computes is timed at the local sizes of each layout,
without communication, as `python -m meshtf calibrate --devices` does, in the same rounds. Some
further layouts, which are not judged, give the profile its factors by kind of work, as
`calibrate --gin_file` does. Results with the rates alone are printed as well.
"""

from __future__ import annotations

import dataclasses
import json
import os
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
from meshtf.calibration.clock import clock_of
from meshtf.calibration.local_step import LocalStep
from meshtf.hardware import Hardware, MeasuredLocalStep, as_hardware
from transformer.training.trainer import Trainer

_CLOCKS = ("wall", "processor")
_DEVICES = 8
_WARM_UP = 2  # steps of each layout before it is timed


class Options(NamedTuple):
    """What is measured, and how.

    Attributes:
      devices: the devices, as `mtf.Mesh` takes them.
      layouts: how many layouts are judged.
      calibrating: how many others give the profile its factors.
      rounds: how often each layout is timed.
      seed: of the draw of layouts and the order of steps.
      clock: by which time layouts are judged: "wall", or "processor": the processor time of
        this process divided by the cores, which does not count other programs.
      sizes: the sizes of the models.
    """

    devices: str | None = "spmd:cpu:8"
    layouts: int = 30
    calibrating: int = 10
    rounds: int = 9
    seed: int = 0
    clock: str = "wall"
    sizes: Mapping[str, int] = SIZES


class Timed(NamedTuple):
    """A layout with its forecast and its measured steps.

    Attributes:
      candidate: the layout.
      step: runs a training step, and waits for its loss.
      explain: returns the forecast of a step from a profile of hardware.
      local_step: what one device computes; None: other runtimes have no such program.
    """

    candidate: Candidate
    step: Callable[[], None]
    explain: Callable[[Any], mtf.Forecast]
    local_step: LocalStep | None = None


def run(
    models: Sequence[str],
    options: Options,
    profile: str | Hardware | None = None,
    json_path: str | None = None,
    report: Callable[[str], None] = print,
) -> list[Scores]:
    """Measures and prints; returns the scores of each model, with factors.

    Args:
      models: "lm", "bert", "moe".
      options: what is measured, and how.
      profile: a profile of hardware, or the path of one; None: it is measured.
      json_path: a file to write all times to.
      report: is called with each line.
    """
    warnings.simplefilter("ignore", mtf.LayoutWarning)
    if profile is None:
        hardware = mtf.calibration.calibrate(options.devices, report=report)
    else:
        hardware = as_hardware(profile)
    scores = []
    rows: dict[str, Any] = {}
    for model in models:
        report(f"\n{model}: layouts on {options.devices}, seed {options.seed}")
        result, rows[model] = _compare(model, options, hardware, report)
        scores.append(result)
        if json_path is not None:
            Path(json_path).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return scores


def _compare(
    model: str,
    options: Options,
    hardware: Hardware,
    report: Callable[[str], None],
) -> tuple[Scores, list[dict[str, Any]]]:
    """Returns the scores of one model, and a row for each layout."""
    candidates = draw(
        model,
        options.seed,
        options.layouts + options.calibrating,
        is_legal=lambda candidate: _is_legal(model, candidate, options.sizes),
    )
    timed = [
        _compile(
            model,
            candidate,
            options,
            f"{i + 1}/{len(candidates)}",
            report,
        )
        for i, candidate in enumerate(candidates)
    ]
    works: list[Callable[[], None]] = [layout.step for layout in timed]
    works += [x.local_step for x in timed if x.local_step is not None]
    seconds, noise = measure(works, options.rounds, options.seed, report)
    # Local steps are taken by the clock of the rates that they are compared with.
    clock_of_rates = clock_of(options.devices, _DEVICES).name
    local_steps = _local_steps(timed, hardware, seconds[clock_of_rates][len(timed) :])
    # The chosen clock last: its table and scores end the output.
    for clock in sorted(_CLOCKS, key=lambda name: name == options.clock):
        rows = _rows(timed, hardware, local_steps, seconds[clock], options.layouts)
        report(f"by {clock} time; the same layout twice differs by {noise[clock]:.1%}")
        scores = _report(rows, report, with_table=clock == options.clock)
    other_times = {f"{clock}_seconds": seconds[clock] for clock in _CLOCKS}
    for i, row in enumerate(rows):
        row["local_step"] = dataclasses.asdict(local_steps[i]) if local_steps else None
        row.update({name: values[i] for name, values in other_times.items()})
    return scores, rows


def _local_steps(
    timed: Sequence[Timed], hardware: Hardware, seconds: Sequence[float]
) -> list[MeasuredLocalStep]:
    """Returns the measured local step of each layout; none if the runtime has none.

    Args:
      timed: the layouts.
      hardware: the profile.
      seconds: the times of the local steps.
    """
    steps = [layout.local_step for layout in timed if layout.local_step is not None]
    return [step.measured(t, hardware) for step, t in zip(steps, seconds, strict=True)]


def _rows(
    timed: Sequence[Timed],
    hardware: Hardware,
    local_steps: Sequence[MeasuredLocalStep],
    seconds: Sequence[float],
    num_judged: int,
) -> list[dict[str, Any]]:
    """Returns a row for each layout: measured and predicted, with and without factors.

    Args:
      timed: the layouts; those after the judged ones give the factors.
      hardware: the profile, without factors.
      local_steps: what one device computes under each, measured.
      seconds: the measured time of each.
      num_judged: how many are judged.
    """
    by_rates = [layout.explain(hardware) for layout in timed]
    profile = dataclasses.replace(hardware, local_steps=tuple(local_steps))
    steps = [
        mtf.calibration.MeasuredStep(layout.explain(profile), measured)
        for layout, measured in zip(timed[num_judged:], seconds[num_judged:])
    ]
    if steps:
        profile = mtf.calibration.adjust(profile, steps)
    rows = []
    for i, layout in enumerate(timed):
        rate_time = by_rates[i].time
        forecast_time = layout.explain(profile).time
        assert rate_time is not None and forecast_time is not None
        rows.append(
            {
                "layout": layout.candidate.text,
                "candidate": dataclasses.asdict(layout.candidate),
                "judged": i < num_judged,
                "measured": seconds[i],
                "predicted": forecast_time.seconds,
                "by_rates": rate_time.seconds,
                "work": dict(rate_time.work),
            }
        )
    return rows


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
    options: Options,
    progress: str,
    report: Callable[[str], None],
) -> Timed:
    """Returns a layout whose step is compiled."""
    start = time.monotonic()
    local_step = _local_step(model, candidate, options)
    trainer, batch = make_trainer(model, candidate, options.devices, options.sizes)
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
        if local_step is not None:
            local_step()
    report(f"  {progress} {candidate.text}: {time.monotonic() - start:.1f} s")
    return Timed(candidate, step, explain, local_step)


def _local_step(model: str, candidate: Candidate, options: Options) -> LocalStep | None:
    """Returns what one device computes under a layout; None: the runtime has no program of
    one device.
    """
    devices = options.devices or ""
    if not devices.startswith("spmd"):
        return None
    trainer, batch = make_trainer(model, candidate, "abstract", options.sizes)
    return LocalStep(trainer.training_step, (batch, np.int32(0)), devices)


def _assign_values(trainer: Trainer) -> None:
    """Assigns values to all variables, which is faster than to compile what draws them."""
    rng = np.random.default_rng(0)
    for variable in trainer.variables.values():
        values = rng.standard_normal(variable.shape.sizes, np.float32)
        variable.assign(np.abs(values) * 0.02)


def measure(
    works: Sequence[Callable[[], None]],
    rounds: int,
    seed: int,
    report: Callable[[str], None],
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Returns by clock the seconds of each work, and the relative difference of two
    measurements of the same work.
    """
    rng = random.Random(seed)
    middle = len(works) // 4  # the work that is timed twice: the step of a layout
    indices = [*range(len(works)), middle]
    cores = min(len(os.sched_getaffinity(0)), _DEVICES)
    times = np.zeros((len(_CLOCKS), rounds, len(indices)))
    start = time.monotonic()
    for i in range(rounds):
        order = list(range(len(indices)))
        rng.shuffle(order)
        for j in order:
            work = works[indices[j]]
            work()
            begin = time.perf_counter(), time.process_time() / cores
            work()
            end = time.perf_counter(), time.process_time() / cores
            times[:, i, j] = np.subtract(end, begin)
        report(f"  round {i + 1}/{rounds}, {time.monotonic() - start:.0f} s")
    # Scales each round so that its works have the times of a usual round.
    usual = np.median(times, axis=1, keepdims=True)
    scales = np.median(times / usual, axis=2, keepdims=True)
    medians = np.median(times / scales, axis=1)
    seconds = {}
    noise = {}
    for clock, values in zip(_CLOCKS, medians):
        seconds[clock] = [float(x) for x in values[:-1]]
        noise[clock] = abs(float(values[-1] / values[middle]) - 1)
    return seconds, noise


def _report(
    rows: Sequence[Mapping[str, Any]],
    report: Callable[[str], None],
    with_table: bool,
) -> Scores:
    """Returns the scores of the judged layouts; prints them, and a table with the fastest
    layout first.
    """
    judged = [row for row in rows if row["judged"]]
    if with_table:
        report(
            f"{'layout':64}{'measured':>10}{'predicted':>11}{'error':>8}{'rates':>8}"
        )
        for row in sorted(judged, key=lambda row: row["measured"]):
            errors = [
                row[key] / row["measured"] - 1 for key in ("predicted", "by_rates")
            ]
            report(
                f"{row['layout']:64}{row['measured'] * 1e3:7.1f} ms"
                f"{row['predicted'] * 1e3:8.1f} ms{errors[0]:8.1%}{errors[1]:8.1%}"
            )
    seconds = [row["measured"] for row in judged]
    by_rates = np.array([row["by_rates"] for row in judged])
    others = [row for row in rows if not row["judged"]]
    level = 1.0
    if others:
        level = float(np.median([row["measured"] / row["by_rates"] for row in others]))
    scores = score([row["predicted"] for row in judged], seconds)
    report(f"with factors: {scores.text}")
    report(f"rates x {level:.2f}: {score(list(by_rates * level), seconds).text}")
    report(f"rates alone:  {score(list(by_rates), seconds).text}")
    return scores
