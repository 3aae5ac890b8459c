"""A model and its optimizer: one compiled step of training, and where it is saved.

Example:

    trainer = Trainer(LanguageModel(mesh), mtf.optimizers.AdamW)
    loss, norm = trainer.step({"tokens": tokens, "targets": targets})
    print(trainer.explain(batch))          # what a step costs; nothing runs
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.base import Batch, Model


class Trainer:
    """A model and its optimizer, one step of training, and where they are saved.

    Args:
      model: what learns.
      optimizer: called with the variables; returns their optimizer.
      seed: of dropout.
      clip_norm: the greatest norm of all gradients together; None: any.
      jit: whether XLA compiles the local work.
      microbatches: how many parts of a batch are learned from one after another, to
        need less memory.
      skip_nonfinite_steps: whether to skip the update of a step whose gradients are
        not finite. A step is two programs then, since the host reads the norm of the
        gradients between them.
    """

    def __init__(
        self,
        model: Model,
        optimizer: Callable[..., mtf.optimizers.Optimizer] = mtf.optimizers.AdamW,
        seed: int = 0,
        clip_norm: float | None = 1.0,
        jit: bool = False,
        microbatches: int = 1,
        skip_nonfinite_steps: bool = False,
    ) -> None:
        self._learned = model.trainable_variables
        self.model, self.optimizer, self.steps_done = model, optimizer(self._learned), 0
        self.seed, self.microbatches = seed, microbatches
        self.examples_done = 0  # where the data go on: kept by whoever gives batches
        self.reports: dict[
            str, Report
        ] = {}  # what mixtures of experts told in the last step
        self.record: dict[
            str, Any
        ] = {}  # what shapes the run, saved with it: see `records`
        self.restored: dict[
            str, Any
        ] = {}  # what was saved with the checkpoint that was read

        @mtf.function(mesh=model.mesh, jit=jit, batch=model.features, step="")
        def training_step(
            batch: Batch, step: mtf.Tensor
        ) -> tuple[mtf.Tensor, mtf.Tensor, dict[str, Report]]:
            loss, grads, reports = self._gradients(batch, step)
            grads, norm = mtf.optimizers.clip_by_global_norm(grads, clip_norm)
            self.optimizer.apply(grads, self._learned, step)
            return loss, norm, reports

        @mtf.function(mesh=model.mesh, jit=jit, batch=model.features, step="")
        def gradients(
            batch: Batch, step: mtf.Tensor
        ) -> tuple[mtf.Tensor, mtf.Tensor, dict[str, Report], Any]:
            loss, grads, reports = self._gradients(batch, step)
            grads, norm = mtf.optimizers.clip_by_global_norm(grads, clip_norm)
            return loss, norm, reports, grads

        @mtf.function(mesh=model.mesh, jit=jit, step="")
        def update(grads: Any, step: mtf.Tensor) -> None:
            self.optimizer.apply(grads, self._learned, step)

        self._step, self._apart, self.skipped = training_step, (gradients, update), 0
        self.skip_nonfinite_steps = skip_nonfinite_steps

    def _gradients(self, batch: Batch, step: mtf.Tensor) -> tuple[mtf.Tensor, Any, Any]:
        with mtf.seed(self.seed, step):
            if self.microbatches == 1:
                loss, reports = self.model.loss_and_reports(batch, training=True)
                return loss, mtf.gradients([loss], self._learned), reports
            loss, grads = mtf.optimizers.accumulate_gradients(
                lambda part: self.model.loss(part, training=True),
                self._learned,
                dict(batch),
                "batch",
                self.microbatches,
            )
            return loss, grads, {}

    def step(self, batch: Mapping[str, Any]) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Learns from arrays by name; returns the loss and the norm of the gradients
        before.
        """
        number = np.int32(self.steps_done)
        self.steps_done += 1
        if not self.skip_nonfinite_steps:
            loss, norm, self.reports = self._step(dict(batch), number)
            return loss, norm
        gradients, update = self._apart
        loss, norm, self.reports, grads = gradients(dict(batch), number)
        if np.isfinite(float(norm)):
            update(grads, number)
        else:
            self.skipped += 1
        return loss, norm

    def find_bad_number(self, batch: Mapping[str, Any], step: int) -> None:
        """Does the forward and backward pass of a step op by op; changes nothing.

        Raises:
          NumericsError: of the first tensor that holds a number that is not finite, and
            its line.
        """
        mesh, names = self.model.mesh, self.model.features
        held = {
            name: mtf.import_tensor(mesh, np.asarray(x), names[name])
            for name, x in batch.items()
        }
        with mtf.check_numerics():
            self._gradients(held, mtf.import_tensor(mesh, np.int32(step), ""))

    def explain(self, batch: Mapping[str, Any]) -> mtf.Forecast:
        """Returns what a step on such arrays, or `tf.TensorSpec`s, does and costs;
        nothing runs.
        """
        return mtf.explain(self._step, dict(batch), np.int32(0))

    def export(self, batch: Mapping[str, Any]) -> mtf.Export:
        """Returns a step on such arrays as a StableHLO module; nothing runs."""
        return mtf.export(self._step, dict(batch), np.int32(0))

    @property
    def variables(self) -> dict[str, mtf.Variable]:
        """All that a checkpoint holds, by name."""
        return {v.name: v for v in (*self.model.variables, *self.optimizer.variables)}

    def save(self, saver: mtf.checkpoints.Saver) -> None:
        """Saves all there is to go on with, or begins to."""
        saver.save(
            self.steps_done,
            self.variables,
            extra={
                "steps_done": self.steps_done,
                "examples_done": self.examples_done,
                "seed": self.seed,
                **self.record,
            },
        )

    def restore(self, folder: str | Path) -> bool:
        """Goes on from the latest checkpoint of a folder that is whole; returns whether
        there is one.

        Raises:
          CheckpointError: it is one of another model or optimizer, or all of them are
            damaged.
        """
        found = mtf.checkpoints.restore_latest(str(folder), self.variables)
        if found is not None:
            self.restored = found.extra
            self.steps_done, self.examples_done = (
                found.step,
                found.extra.get("examples_done", 0),
            )
            if found.extra.get("seed", self.seed) != self.seed:
                warnings.warn(
                    f"{found.path} was saved with seed {found.extra['seed']}, and this "
                    f"run has seed {self.seed}: dropout is another from here on.",
                    mtf.checkpoints.CheckpointWarning,
                    stacklevel=2,
                )
        return found is not None
