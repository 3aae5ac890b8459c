"""What a training run says at its beginning and its end.

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
    """Prints what is about to learn from what, and where, and what a step will cost.

    Args:
      model: what learns.
      data: what from.
      model_dir: the folder of the run.
      step: how many steps are done.
      steps: how many there are to be.
      forecast: of a step.
      changed: a line for each setting that is not what it was when the run was saved.
    """
    mesh, size = model.mesh, sum(math.prod(v.shape.sizes) for v in model.variables)
    print(
        f"data     {data}\n"
        f"model    {size:,} parameters in {len(model.variables)} variables; "
        f"{model.architecture}\n"
        f"mesh     {mesh!r}, layout {mesh.layout!r}\n"
        f"step     {cost(forecast)}\n"
        f"folder   {model_dir}, "
        + (f"going on from step {step}" if step else "a new run"),
        flush=True,
    )
    for line in changed:
        print(f"changed  {line}", flush=True)
    if step >= steps:
        print(finished(step, steps, bool(changed)), flush=True)


def finished(step: int, steps: int, changed: bool, setting: str = "model_dir") -> str:
    """Returns what is said of a run that has no steps left to do.

    Args:
      step: how many are done.
      steps: how many were asked for.
      changed: whether settings are not what they were.
      setting: which one names the folder.
    """
    more = f" are done, and there were {step}" if step > steps else " are done"
    nothing = (
        "What was changed has no effect: nothing is learned any more."
        if changed
        else "There is nothing left to do but to look at the result."
    )
    return (
        f"All {steps} steps{more}. {nothing}\n"
        f"To go on, ask for more steps; to begin again, take another {setting}."
    )


def cost(forecast: mtf.Forecast) -> str:
    """Returns one line: what a step costs a position of the mesh, or why it
    is refused.
    """
    if forecast.error is not None:
        return forecast.error.partition("\n")[0]
    return (
        f"on each position {forecast.memory.peak / 2**20:,.1f} MiB of memory, "
        f"{forecast.bytes_moved() / 2**20:,.1f} MiB received, "
        f"{forecast.flops() / 1e9:,.2f} GFLOP"
    )


def write_config(model_dir: str) -> None:
    """Writes config.gin, what was asked for, and operative_config.gin, all that was
    used.
    """
    for name, text in (
        ("config.gin", gin.config_str()),
        ("operative_config.gin", gin.operative_config_str()),
    ):
        Path(model_dir).mkdir(parents=True, exist_ok=True)
        Path(model_dir, name).write_text(text, encoding="utf-8")


def beginning(before: Scores) -> str:
    """Returns a line that tells how good the model is before the first step."""
    told = "  ".join(f"{name.replace('_', ' ')} {x:.3f}" for name, x in before.items())
    blind = " (8 is a blind guess)" if "bits_per_byte" in before else ""
    return f"held out, before: {told}{blind}. Losses are in nats: 0.693 is one bit."


def held_out(scores: Scores) -> dict[str, float]:
    """Returns scores by the names that they have in metrics.jsonl."""
    return {f"held_out_{name}": x for name, x in scores.items()}


def summarize(
    data: Data,
    evaluation: Evaluation,
    model_dir: str,
    before: tuple[int, Scores],
    after: tuple[int, Scores],
    seconds: float,
) -> None:
    """Prints how good the model is, for bytes of text beside what bigrams and gzip make
    of them.

    Args:
      data: whose held-out examples all are scored on.
      evaluation: how the model was scored.
      model_dir: where metrics and checkpoints are.
      before: step and scores when the run began.
      after: the same at its end.
      seconds: what the whole run took.
    """
    names = list(after[1])
    rows = [
        ("before", before[1], f"at step {before[0]}"),
        ("after", after[1], f"at step {after[0]}"),
    ]
    if isinstance(data, ByteText):
        old = baselines.compare(data.corpus.train, data.corpus.held_out, data.length)
        rows += [
            ("byte bigram", {"bits_per_byte": old.bigram}, ""),
            ("gzip", {"bits_per_byte": old.gzip}, ""),
        ]
    print(metrics.curve(model_dir))
    if evaluation.num_examples is not None:
        print(
            f"(The model's scores are those of at most {evaluation.num_examples:,} held-out "
            "examples, evenly spaced.)"
        )
    print("held out     " + "".join(f"{name.replace('_', ' '):>15}" for name in names))
    for row, scores, note in rows:
        cells = "".join(
            f"{scores[name]:>15.3f}" if name in scores else " " * 15 for name in names
        )
        print(f"  {row:<11}{cells}   {note}".rstrip())
    print(
        f"{metrics.duration(seconds)} in all; checkpoint, metrics.jsonl and "
        f"operative_config.gin are in {model_dir}",
        flush=True,
    )
