"""A model and its optimizer: the compiled training step, saving and restoring.

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
    """A model and its optimizer, with one training step, saving and restoring.

    Args:
      model: the model to train.
      optimizer: called with the trainable variables; returns their optimizer.
      seed: of dropout.
      clip_norm: gradients are scaled so that their global norm is at most this; None:
        no clipping.
      jit: whether XLA compiles the local work.
      microbatches: into how many microbatches a batch is split, whose gradients are
        accumulated one after another to save memory.
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
        self._variables = model.trainable_variables
        self.model = model
        self.optimizer = optimizer(self._variables)
        self.seed = seed
        self.microbatches = microbatches
        self.skip_nonfinite_steps = skip_nonfinite_steps
        self.steps_done = 0
        self.examples_done = 0  # index in the data; advanced by the caller of `step`
        self.skipped = 0  # steps without an update, as their gradients were not finite
        # Reports of the mixture-of-experts layers in the last step, by layer.
        self.reports: dict[str, Report] = {}
        # Vocabulary and settings of the run, saved with checkpoints: see `run_record`.
        self.record: dict[str, Any] = {}
        # The `extra` of the checkpoint that was restored.
        self.restored: dict[str, Any] = {}

        @mtf.function(mesh=model.mesh, jit=jit, batch=model.features, step="")
        def training_step(
            batch: Batch, step: mtf.Tensor
        ) -> tuple[mtf.Tensor, mtf.Tensor, dict[str, Report]]:
            loss, grads, reports = self._gradients(batch, step)
            grads, norm = mtf.optimizers.clip_by_global_norm(grads, clip_norm)
            self.optimizer.apply_gradients(grads, self._variables, step)
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
            self.optimizer.apply_gradients(grads, self._variables, step)

        self._step = training_step
        self._gradients_then_update = (gradients, update)

    def _gradients(self, batch: Batch, step: mtf.Tensor) -> tuple[mtf.Tensor, Any, Any]:
        """Returns the loss, gradients of the trainable variables, and reports by layer."""
        with mtf.seed(self.seed, step):
            if self.microbatches == 1:
                loss, reports = self.model.loss_and_reports(batch, training=True)
                return loss, mtf.gradients([loss], self._variables), reports
            loss, grads = mtf.optimizers.accumulate_gradients(
                lambda microbatch: self.model.loss(microbatch, training=True),
                self._variables,
                dict(batch),
                "batch",
                self.microbatches,
            )
            return loss, grads, {}

    def step(self, batch: Mapping[str, Any]) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Trains on one batch of arrays by name; returns the loss and the global norm of
        the gradients before clipping.
        """
        step = np.int32(self.steps_done)
        self.steps_done += 1
        if not self.skip_nonfinite_steps:
            loss, norm, self.reports = self._step(dict(batch), step)
            return loss, norm
        gradients, update = self._gradients_then_update
        loss, norm, self.reports, grads = gradients(dict(batch), step)
        if np.isfinite(float(norm)):
            update(grads, step)
        else:
            self.skipped += 1
        return loss, norm

    def find_nonfinite(self, batch: Mapping[str, Any], step: int) -> None:
        """Runs the forward and backward pass of a step op by op; changes no variable.

        Raises:
          NumericsError: names the first tensor that is not finite, and its source line.
        """
        mesh = self.model.mesh
        names = self.model.features
        tensors = {
            name: mtf.asarray(mesh, np.asarray(x), names[name])
            for name, x in batch.items()
        }
        with mtf.check_numerics():
            self._gradients(tensors, mtf.asarray(mesh, np.int32(step), ""))

    def explain(
        self, batch: Mapping[str, Any], device_memory: float | str | None = None
    ) -> mtf.Forecast:
        """Returns what a step on such arrays, or `tf.TensorSpec`s, does and costs;
        nothing runs.

        Args:
          batch: arrays or specs by name.
          device_memory: the bytes of one device, such as "40GiB"; see `mtf.explain`.
        """
        return mtf.explain(
            self._step, dict(batch), np.int32(0), device_memory=device_memory
        )

    def export(self, batch: Mapping[str, Any]) -> mtf.Export:
        """Returns a step on such arrays as a StableHLO module; nothing runs."""
        return mtf.export(self._step, dict(batch), np.int32(0))

    def compile_for(
        self, batch: Mapping[str, Any], topology: str
    ) -> mtf.CompiledForecast:
        """Returns what XLA makes of a step on such arrays: see `mtf.compile_for`."""
        step = np.int32(0)
        return mtf.compile_for(self._step, dict(batch), step, topology=topology)

    @property
    def variables(self) -> dict[str, mtf.Variable]:
        """The variables of model and optimizer, which a checkpoint stores, by name."""
        return {v.name: v for v in (*self.model.variables, *self.optimizer.variables)}

    def save(self, saver: mtf.checkpoints.Saver) -> None:
        """Saves the variables and the index in the data; may return before they are written."""
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
        """Restores the latest undamaged checkpoint of a folder; returns whether there is
        one.

        Raises:
          CheckpointError: it is of another model or optimizer, or all checkpoints are
            damaged.
        """
        checkpoint = mtf.checkpoints.restore_latest(str(folder), self.variables)
        if checkpoint is None:
            return False
        self.restored = checkpoint.extra
        self.steps_done = checkpoint.step
        self.examples_done = checkpoint.extra.get("examples_done", 0)
        saved_seed = checkpoint.extra.get("seed", self.seed)
        if saved_seed != self.seed:
            warnings.warn(
                f"{checkpoint.path} was saved with seed {saved_seed}, and this "
                f"run has seed {self.seed}: dropout differs from here on.",
                mtf.checkpoints.CheckpointWarning,
                stacklevel=2,
            )
        return True
