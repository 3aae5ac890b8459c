"""What a training run says at its beginning and its end.

    held-out bits per byte
      before this run   8.412   at step 0
      after it          2.314   at step 500
      byte bigram       3.341
      gzip              1.913
"""

from __future__ import annotations

import math
from pathlib import Path

import gin

import meshtf as mtf
from transformer import baselines, data, metrics
from transformer.evaluation import Evaluation
from transformer.model import LanguageModel


def introduce(model: LanguageModel, corpus: data.Corpus, model_dir: str, step: int,
              steps: int, forecast: mtf.Forecast) -> None:
  """Prints what is about to learn from what, and where, and what a step will cost."""
  mesh, size = model.mesh, sum(math.prod(v.shape.sizes) for v in model.variables)
  print(f"corpus   {corpus}\n"
        f"model    {size:,} parameters in {len(model.variables)} variables; {model.architecture}\n"
        f"mesh     {mesh!r}, layout {mesh.layout!r}\n"
        f"step     {cost(forecast)}\n"
        f"folder   {model_dir}, " + (f"going on from step {step}" if step else "a new run"),
        flush=True)
  if step >= steps:
    print(f"All {steps} steps are done: there is nothing left to do but to look at the result.\n"
          "To go on, ask for more steps; to begin again, take another model_dir.", flush=True)


def cost(forecast: mtf.Forecast) -> str:
  """Returns one line: what a step costs a position of the mesh, or why it is refused."""
  if forecast.error is not None:
    return forecast.error.partition("\n")[0]
  return (f"on each position {forecast.memory.peak / 2**20:,.1f} MiB of memory, "
          f"{forecast.bytes_moved() / 2**20:,.1f} MiB received, "
          f"{forecast.flops() / 1e9:,.2f} GFLOP")


def write_config(model_dir: str) -> None:
  """Writes config.gin, what was asked for, and operative_config.gin, all that was used."""
  for name, text in (("config.gin", gin.config_str()),
                     ("operative_config.gin", gin.operative_config_str())):
    Path(model_dir).mkdir(parents=True, exist_ok=True)
    Path(model_dir, name).write_text(text, encoding="utf-8")


def summarize(corpus: data.Corpus, evaluation: Evaluation, length: int, model_dir: str,
              before: tuple[int, float], after: tuple[int, float], seconds: float) -> None:
  """Prints how good the model is, beside what bigrams and gzip make of the same files.

  Args:
    corpus: its held-out files are what all are scored on.
    evaluation: how the model was scored.
    length: bytes in a window.
    model_dir: where metrics and checkpoints are.
    before: step and bits per byte when the run began.
    after: the same at its end.
    seconds: what the whole run took.
  """
  old = baselines.compare(corpus.train, corpus.held_out, length)
  scored, every = len(evaluation.windows), evaluation.of
  rows = [("before this run", f"{before[1]:6.3f}   at step {before[0]}"),
          ("after it", f"{after[1]:6.3f}   at step {after[0]}"),
          ("byte bigram", f"{old.bigram:6.3f}"), ("gzip", f"{old.gzip:6.3f}")]
  print(metrics.curve(model_dir))
  print("held-out bits per byte" + (f" (the model's are of {scored:,} windows of {length} bytes, "
                                    f"evenly spaced, out of {every:,})" if scored < every else ""))
  print("\n".join(f"  {name:<17} {text}" for name, text in rows))
  print(f"{metrics.duration(seconds)} in all; checkpoint, metrics.jsonl and operative_config.gin "
        f"are in {model_dir}", flush=True)
