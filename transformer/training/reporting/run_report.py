"""The lines that a training run prints at its start and its end.

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

import gin

import meshtf as mtf
from transformer.data import ByteText, Data
from transformer.models.base import Model
from transformer.training.evaluation import Evaluation
from transformer.training.reporting import baselines, metrics

Scores = Mapping[str, float]


def introduce(
    model: Model,
    data: Data,
    model_dir: str,
    step: int,
    steps: int,
    forecast: mtf.Forecast,
    changed: Sequence[str] = (),
) -> None:
    """Prints data, model, mesh and folder of a run, and the cost of a step.

    Args:
      model: the model to train.
      data: the training data.
      model_dir: the folder of the run.
      step: how many steps are done.
      steps: total number of steps.
      forecast: the forecast of a step.
      changed: a line for each setting that has changed since the run was saved.
    """
    mesh = model.mesh
    num_parameters = sum(math.prod(v.shape.sizes) for v in model.variables)
    print(
        f"data     {data}\n"
        f"model    {num_parameters:,} parameters in {len(model.variables)} variables; "
        f"{model.architecture}\n"
        f"mesh     {mesh}, layout {mesh.layout!r}\n"
        f"step     {cost(forecast)}\n"
        f"folder   {model_dir}, "
        + (f"continuing from step {step}" if step else "a new run"),
        flush=True,
    )
    for line in changed:
        print(f"changed  {line}", flush=True)
    if step >= steps:
        print(finished(step, steps, bool(changed)), flush=True)


def finished(step: int, steps: int, changed: bool, setting: str = "model_dir") -> str:
    """Returns the message for a run whose steps are all done.

    Args:
      step: how many steps are done.
      steps: the total of the settings.
      changed: whether settings have changed since the run was saved.
      setting: the name of the setting of the folder.
    """
    done = f"{steps} steps are done"
    if step > steps:
        done = f"{steps} steps, and {step - steps} more, are done"
    consequence = (
        "The changed settings have no effect: no steps are left."
        if changed
        else "No steps are left."
    )
    return (
        f"All {done}. {consequence}\n"
        f"To continue, set more steps; to start again, use another {setting}."
    )


def cost(forecast: mtf.Forecast) -> str:
    """Returns the cost of a step for one mesh position, or the error of its plan, as one
    line.
    """
    if forecast.error is not None:
        return forecast.error.partition("\n")[0]
    return (
        f"on each position {forecast.memory.peak / 2**20:,.1f} MiB of memory, "
        f"{forecast.bytes_moved() / 2**20:,.1f} MiB received, "
        f"{forecast.flops() / 1e9:,.2f} GFLOP"
    )


def write_config(model_dir: str) -> None:
    """Writes config.gin, the bindings of the configuration, and operative_config.gin, all
    settings in use.
    """
    for name, text in (
        ("config.gin", gin.config_str()),
        ("operative_config.gin", gin.operative_config_str()),
    ):
        Path(model_dir).mkdir(parents=True, exist_ok=True)
        Path(model_dir, name).write_text(text, encoding="utf-8")


def beginning(before: Scores) -> str:
    """Returns a line with the scores before the first step."""
    text = "  ".join(f"{name.replace('_', ' ')} {x:.3f}" for name, x in before.items())
    uniform = " (8 for uniform guesses)" if "bits_per_byte" in before else ""
    return f"held out before training: {text}{uniform}. Losses are in nats: 0.693 is one bit."


def held_out(scores: Scores) -> dict[str, float]:
    """Returns scores by their names in metrics.jsonl."""
    return {f"held_out_{name}": x for name, x in scores.items()}


def summarize(
    data: Data,
    evaluation: Evaluation,
    model_dir: str,
    before: tuple[int, Scores],
    after: tuple[int, Scores],
    seconds: float,
) -> None:
    """Prints the scores of the model; for byte text also those of a bigram model and gzip.

    Args:
      data: the data whose held-out examples were scored.
      evaluation: the evaluation of the model.
      model_dir: the folder of metrics and checkpoints.
      before: step and scores at the start of the run.
      after: step and scores at its end.
      seconds: the duration of the run.
    """
    names = list(after[1])
    lines = [
        ("before", before[1], f"at step {before[0]}"),
        ("after", after[1], f"at step {after[0]}"),
    ]
    if isinstance(data, ByteText):
        reference = baselines.compare(
            data.corpus.train, data.corpus.held_out, data.length
        )
        lines += [
            ("byte bigram", {"bits_per_byte": reference.bigram}, ""),
            ("gzip", {"bits_per_byte": reference.gzip}, ""),
        ]
    print(metrics.curve(model_dir))
    if evaluation.num_examples is not None:
        print(
            f"(The model's scores are those of at most {evaluation.num_examples:,} held-out "
            "examples, evenly spaced.)"
        )
    print("held out     " + "".join(f"{name.replace('_', ' '):>15}" for name in names))
    for label, scores, note in lines:
        columns = "".join(
            f"{scores[name]:>15.3f}" if name in scores else " " * 15 for name in names
        )
        print(f"  {label:<11}{columns}   {note}".rstrip())
    print(
        f"{metrics.duration(seconds)} in total; checkpoint, metrics.jsonl and "
        f"operative_config.gin are in {model_dir}",
        flush=True,
    )
