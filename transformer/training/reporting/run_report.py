"""The lines that a training run prints at its start and its end, such as a table.

Example:

    held out          loss  bits per byte  accuracy
      before         6.176          8.910     0.004   at step 0
      after          1.539          2.220     0.561   at step 400
      byte bigram                   3.555
      gzip                          1.976
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gin

import meshtf as mtf
from transformer.data import ByteText, Data
from transformer.models.base import Model
from transformer.training.evaluation import Evaluation
from transformer.training.reporting import baselines, metrics
from transformer.training.reporting.monitor import Monitor
from transformer.training.trainer import Trainer

Scores = Mapping[str, float]  # the metrics of `Evaluation` by name
_LABEL_WIDTH = 13  # of the first column of the table of scores
_COLUMN_WIDTH = 15  # of each other column


class StepScores(NamedTuple):
    """The scores of a model after a step.

    Attributes:
      step: the count of steps done.
      scores: the metrics of `Evaluation` by name.
    """

    step: int
    scores: Scores


def print_introduction(
    model: Model,
    data: Data,
    model_dir: str,
    step: int,
    steps: int,
    forecast: mtf.Forecast,
    origin: str | None = None,
    changed: Sequence[str] = (),
) -> None:
    """Prints data, model, mesh and folder of a run, and the cost of a step.

    Args:
      model: the model to train.
      data: the training data.
      model_dir: the folder of the run.
      step: the count of steps done.
      steps: the total count of steps.
      forecast: the forecast of a step.
      origin: the checkpoint whose weights a new run begins with; None: they were drawn.
      changed: a line for each setting that has changed since the run was saved.
    """
    mesh = model.mesh
    num_parameters = sum(math.prod(v.shape.sizes) for v in model.variables)
    start = f"continuing from step {step}" if step else "a new run"
    if origin is not None:
        start += f" with the weights of {origin}"
    print(
        f"data     {data}\n"
        f"model    {num_parameters:,} parameters in {len(model.variables)} variables; "
        f"{model.architecture}\n"
        f"mesh     {mesh}, layout {mesh.layout!r}\n"
        f"step     {cost(forecast)}\n"
        f"folder   {model_dir}, {start}",
        flush=True,
    )
    for line in changed:
        print(f"changed  {line}", flush=True)
    if step >= steps:
        text = finished_text(step=step, steps=steps, has_changes=bool(changed))
        print(text, flush=True)


def finished_text(
    step: int, steps: int, has_changes: bool, setting: str = "model_dir"
) -> str:
    """Returns the message for a run whose steps are all done.

    Args:
      step: the count of steps done.
      steps: the total count of steps in the settings.
      has_changes: whether settings have changed since the run was saved.
      setting: the name of the setting that names the folder.
    """
    steps_text = f"{steps} steps are done"
    if step > steps:
        steps_text = f"{steps} steps, and {step - steps} more, are done"
    consequence = "No steps are left."
    if has_changes:
        consequence = "The changed settings have no effect: no steps are left."
    return (
        f"All {steps_text}. {consequence}\n"
        f"To continue, set more steps; to start again, use another {setting}."
    )


def cost(forecast: mtf.Forecast) -> str:
    """Returns the cost of a step for one position of the mesh (one coordinate along each
    axis), as one line; the first line of the error, if the step has one.
    """
    if forecast.error is not None:
        return forecast.error.partition("\n")[0]
    return (
        f"on each position {forecast.memory.peak / 2**20:,.1f} MiB of memory, "
        f"{forecast.bytes_moved() / 2**20:,.1f} MiB received, "
        f"{forecast.flops() / 1e9:,.2f} GFLOP{_time(forecast)}"
    )


def _time(forecast: mtf.Forecast) -> str:
    """Returns the predicted time of a step as text; "" without a profile of hardware."""
    if forecast.time is None:
        return ""
    seconds = metrics.step_time(forecast.time.seconds)
    return f", {seconds} predicted for {forecast.time.hardware}"


def predicted_metrics(forecast: mtf.Forecast) -> dict[str, float]:
    """Returns the predicted time of a step and peak of memory of a device, by their names in
    metrics.jsonl; {} without a profile of hardware.
    """
    if forecast.time is None:
        return {}
    return {
        "predicted_step_seconds": forecast.time.seconds,
        "predicted_memory": forecast.memory.peak,
    }


def compare(
    trainer: Trainer,
    features: Mapping[str, Any],
    monitor: Monitor,
    log: metrics.Metrics,
) -> None:
    """Prints the predicted time and memory of a step beside the measured ones, if a profile of
    hardware is set.

    Args:
      trainer: the trainer, after the last step.
      features: the shape and dtype of each feature of a batch, by name.
      monitor: has the predicted and measured times.
      log: writes the measured memory.
    """
    if not monitor.has_prediction:
        return
    memory = trainer.device_memory(features)
    print(monitor.comparison(memory), end="", flush=True)
    if memory is not None:
        log.write(trainer.steps_done, memory=memory)


def write_config(model_dir: str) -> None:
    """Writes gin's settings to two files in a folder: config.gin has the bindings of the
    configuration, and operative_config.gin all settings that were used so far, defaults
    included. If several processes train together, only the first one writes.
    """
    if not mtf.cluster.processes().is_first:
        return
    folder = Path(model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.gin").write_text(gin.config_str(), encoding="utf-8")
    operative_config = gin.operative_config_str()
    (folder / "operative_config.gin").write_text(operative_config, encoding="utf-8")


def initial_scores_line(scores: Scores, step: int) -> str:
    """Returns a line with the scores before the first step of this process.

    Args:
      scores: the scores.
      step: the steps that were done before, by a run that goes on.
    """
    when = f"at step {step:,}" if step else "before training"
    text = "  ".join(f"{name.replace('_', ' ')} {x:.3f}" for name, x in scores.items())
    comparison = " (8 for uniform guesses)" if "bits_per_byte" in scores else ""
    return f"held out {when}: {text}{comparison}. Losses are in nats: 0.693 is one bit."


def held_out_metrics(scores: Scores) -> dict[str, float]:
    """Returns scores by their names in metrics.jsonl, such as "held_out_loss"."""
    return {f"held_out_{name}": x for name, x in scores.items()}


def print_summary(
    data: Data,
    evaluation: Evaluation,
    model_dir: str,
    before: StepScores,
    after: StepScores,
    seconds: float,
) -> None:
    """Prints a table of the model's scores; for byte text also the scores of a bigram model
    and of gzip.

    Args:
      data: the data whose held-out examples were scored.
      evaluation: the evaluation of the model.
      model_dir: the folder of metrics and checkpoints.
      before: the scores at the start of the run.
      after: the scores at the end of the run.
      seconds: the duration of the run.
    """
    names = list(after.scores)
    rows = [
        _table_row("before", names, before.scores, note=f"at step {before.step}"),
        _table_row("after", names, after.scores, note=f"at step {after.step}"),
    ]
    if isinstance(data, ByteText):
        bits_per_byte = baselines.compare(
            data.corpus.train, data.corpus.held_out, length=data.length
        )
        bigram_scores = {"bits_per_byte": bits_per_byte.bigram}
        gzip_scores = {"bits_per_byte": bits_per_byte.gzip}
        rows.append(_table_row("byte bigram", names, bigram_scores))
        rows.append(_table_row("gzip", names, gzip_scores))
    print(metrics.curve(model_dir))
    if evaluation.num_examples is not None:
        print(
            f"(The model's scores are those of at most {evaluation.num_examples:,} held-out "
            "examples, evenly spaced.)"
        )
    titles = [name.replace("_", " ").rjust(_COLUMN_WIDTH) for name in names]
    print("held out".ljust(_LABEL_WIDTH) + "".join(titles))
    print("\n".join(rows))
    print(
        f"{metrics.duration(seconds)} in total; checkpoint, metrics.jsonl and "
        f"operative_config.gin are in {model_dir}",
        flush=True,
    )


def _table_row(label: str, names: Sequence[str], scores: Scores, note: str = "") -> str:
    """Returns a row of the table of scores: a label, a column for each of `names`, empty
    where there is no such score, and a note.
    """
    columns = ""
    for name in names:
        column = f"{scores[name]:.3f}" if name in scores else ""
        columns += column.rjust(_COLUMN_WIDTH)
    return f"{f'  {label}':<{_LABEL_WIDTH}}{columns}   {note}".rstrip()
