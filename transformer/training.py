"""The training loop: a model, an optimizer and a corpus on a mesh, and a folder to go on from.

    mesh = mtf.Mesh("data:4;model:2", layout="batch:data; heads:model; d_ff:model")
    run = Run(corpus=python_library(), mesh=mesh, steps=500)
    print(run.explain())           # what a step will cost
    run.export().save("step")      # a step as a StableHLO module
    run.train("runs/lm")

`Trainer` is one compiled step and the variables that a checkpoint holds. `Run` is what gin's
settings of `train` make: `python -m transformer.train` trains it, `python -m meshtf explain` says
what its steps will cost, and `python -m meshtf export` writes one as a module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gin
import numpy as np
import tensorflow as tf

import meshtf as mtf
from transformer import configurables, data, metrics, reports
from transformer.base import Batch, Model
from transformer.evaluation import Evaluation
from transformer.interrupts import interrupts_between_steps
from transformer.model import LanguageModel
from transformer.moe import Report, told
from transformer.sampling import sample

__all__ = ["Run", "Trainer", "configurables", "train"]


class Trainer:
  """A model and its optimizer, one step of training, and where they are saved.

  Args:
    model: what learns.
    optimizer: called with the variables; returns their optimizer.
    seed: of dropout.
    clip_norm: the greatest norm of all gradients together.
    jit: whether XLA compiles the local work.
  """

  def __init__(self, model: Model,
               optimizer: Callable[..., mtf.optimizers.Optimizer] = mtf.optimizers.AdamW,
               seed: int = 0, clip_norm: float = 1.0, jit: bool = False) -> None:
    variables = model.trainable_variables
    self.model, self.optimizer, self.steps_done = model, optimizer(variables), 0
    self.reports: dict[str, Report] = {}      # what mixtures of experts told in the last step

    @mtf.function(mesh=model.mesh, jit=jit, batch=model.features, step="")
    def training_step(batch: Batch, step: mtf.Tensor
                      ) -> tuple[mtf.Tensor, mtf.Tensor, dict[str, Report]]:
      with mtf.seed(seed, step):
        loss, reports = model.loss_and_reports(batch, training=True)
      grads, norm = mtf.optimizers.clip_by_global_norm(mtf.gradients([loss], variables), clip_norm)
      self.optimizer.apply(grads, variables, step)
      return loss, norm, reports

    self._step = training_step

  def step(self, batch: Mapping[str, Any]) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Learns from arrays by name; returns the loss and the norm of the gradients before."""
    loss, norm, self.reports = self._step(dict(batch), np.int32(self.steps_done))
    self.steps_done += 1
    return loss, norm

  def explain(self, batch: Mapping[str, Any]) -> mtf.Forecast:
    """Returns what a step on such arrays, or `tf.TensorSpec`s, does and costs; nothing runs."""
    return mtf.explain(self._step, dict(batch), np.int32(0))

  def export(self, batch: Mapping[str, Any]) -> mtf.Export:
    """Returns a step on such arrays as a StableHLO module; nothing runs."""
    return mtf.export(self._step, dict(batch), np.int32(0))

  @property
  def variables(self) -> dict[str, mtf.Variable]:
    """All that a checkpoint holds, by name."""
    return {v.name: v for v in (*self.model.variables, *self.optimizer.variables)}

  def save(self, folder: str | Path) -> str:
    """Writes a checkpoint and returns its path."""
    return mtf.save_checkpoint(str(folder), self.steps_done, self.variables,
                               extra={"steps_done": self.steps_done})

  def restore(self, folder: str | Path) -> bool:
    """Goes on from the latest checkpoint of a folder; returns whether there is one.

    Raises:
      CheckpointError: it is one of another model or optimizer.
    """
    found = mtf.latest_checkpoint(str(folder))
    if found is not None:
      mtf.restore_checkpoint(found[1], self.variables)
      self.steps_done = found[0]
    return found is not None


def train(model_dir: str, **settings: Any) -> None:
  """Trains the `Run` of these settings, and of gin's, in a folder."""
  Run(**settings).train(model_dir)


@gin.configurable("train")
class Run:
  """A run of training, until `steps` steps are done in all.

  Args:
    corpus: what to learn from, and what is held out; None, if the run is only to be explained. (An
      argument without its name is not looked up by gin: `Run(None)` reads no text.)
    mesh: the positions, and the layout on them.
    model: called with the mesh.
    optimizer: called with the model's variables.
    steps: how many steps there are, counted over all runs in a folder.
    batch: windows in a step.
    length: bytes in a window.
    seed: of the order of the text and of dropout; that of first values is the mesh's.
    clip_norm: the greatest norm of all gradients together.
    jit: whether XLA compiles the local work.
    report_every: steps between two lines of progress.
    save_every: steps between two checkpoints.
  """

  def __init__(self, corpus: data.Corpus | None = gin.REQUIRED, mesh: mtf.Mesh = gin.REQUIRED,
               model: Callable[..., LanguageModel] = LanguageModel,
               optimizer: Callable[..., mtf.optimizers.Optimizer] = mtf.optimizers.AdamW,
               steps: int = 500, batch: int = 16, length: int = 128, seed: int = 0,
               clip_norm: float = 1.0, jit: bool = False, report_every: int = 25,
               save_every: int = 200) -> None:
    self.trainer = Trainer(model(mesh), optimizer, seed, clip_norm, jit)
    self.corpus, self.steps, self.batch, self.length, self.seed = corpus, steps, batch, length, seed
    self.report_every, self.save_every = report_every, save_every

  def explain(self) -> mtf.Forecast:
    """Returns what a step does and costs, before any runs."""
    return self.trainer.explain(self._features())

  def export(self) -> mtf.Export:
    """Returns a step as a StableHLO module of one replica."""
    return self.trainer.export(self._features())

  def _features(self) -> dict[str, tf.TensorSpec]:
    text = tf.TensorSpec([self.batch, self.length], tf.int32)
    return {"tokens": text, "targets": text}

  def train(self, model_dir: str) -> None:
    """Goes on from what is in a folder; tells how good the model is before and after."""
    began = time.monotonic()
    assert self.corpus is not None, "a run without a corpus is there to be explained"
    trainer, corpus = self.trainer, self.corpus
    evaluation = Evaluation(trainer.model, corpus.held_out, self.length, self.batch)
    trainer.restore(model_dir)
    first = trainer.steps_done
    reports.introduce(trainer.model, corpus, model_dir, first, self.steps, self.explain())
    reports.write_config(model_dir)
    before = evaluation()
    print(f"held-out bits per byte before: {before:.3f} (8 is a blind guess). The loss below is in "
          "nats: 0.693 is one bit.", flush=True)
    batches = data.batches(corpus.train, self.batch, self.length, self.seed, first)
    with metrics.Metrics(model_dir, first) as log:
      log.write(first, bits_per_byte=before)
      _loop(trainer, batches.take(max(self.steps - first, 0)), log,
            metrics.Progress(self.steps, self.batch * self.length), model_dir, self.report_every,
            self.save_every)
      after = evaluation()
      log.write(trainer.steps_done, bits_per_byte=after)
    print(f"\n{sample(trainer.model, self.length)}\n")
    reports.write_config(model_dir)
    reports.summarize(corpus, evaluation, self.length, model_dir, (first, before),
                      (trainer.steps_done, after), time.monotonic() - began)


def _loop(trainer: Trainer, batches: tf.data.Dataset, log: metrics.Metrics,
          progress: metrics.Progress, model_dir: str, report_every: int, save_every: int) -> None:
  """Takes a step for each batch; reports and saves now and then, and after the last one.

  Raises:
    KeyboardInterrupt: Ctrl-C was pressed; the step was finished, and saved.
  """
  first = trainer.steps_done
  last = first + int(batches.cardinality())
  with interrupts_between_steps() as asked:
    for tokens, targets in batches:
      loss, norm = trainer.step({"tokens": tokens, "targets": targets})
      step = trainer.steps_done
      if step % report_every == 0 or step in (first + 1, last) or asked():
        rate = progress.report(step, float(loss))
        log.write(step, loss=float(loss), gradient_norm=float(norm),
                  **({} if rate is None else {"tokens_per_second": rate}), **told(trainer.reports))
      if step % save_every == 0 or step == last or asked():
        trainer.save(model_dir)
      if asked():
        raise KeyboardInterrupt
