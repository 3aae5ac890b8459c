"""A model and its optimizer, with the compiled training step, saving and restoring.

Example:

    trainer = Trainer(LanguageModel(mesh), mtf.optimizers.AdamW)
    loss, norm = trainer.step({"tokens": tokens, "targets": targets})
    print(trainer.explain(batch))          # what a step costs; nothing runs
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.base import Batch, Model

R = TypeVar("R")


class Trainer:
    """A model and its optimizer, with one training step, saving and restoring.

    Args:
      model: the model to train.
      optimizer: the class of the optimizer, or a function that makes it; called with the
        trainable variables.
      seed: the seed of dropout.
      clip_norm: gradients are scaled so that their global norm is at most this; None:
        no clipping.
      jit: whether XLA compiles the program of each device.
      microbatches: the count of microbatches that a batch is split into; their gradients
        are computed one after another and accumulated, to save memory.
      skip_nonfinite_steps: whether to skip the update of a step whose gradients are
        not finite. A step is then two programs, since the host reads the norm of the
        gradients between them.
      ema_decay: the decay rate of moving averages of the variables; None: there are none.

    Attributes:
      steps_done: the count of steps done, over all runs in a folder.
      examples_done: the index of the next example in the data. The caller of `step`
        advances it.
      skipped_steps: the count of steps without an update since this trainer was made,
        since their gradients were not finite.
      reports: the reports of mixtures of experts in the last step, by block name.
      record: vocabulary and settings of the run, which are saved with checkpoints: see
        `run_record`. Set by the caller.
      moving_average: the moving averages of the variables; None: there are none.
      restored_extra: the `extra` of the checkpoint that was restored, a dict of steps and
        examples done, seed and record; empty if none was restored.
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
        ema_decay: float | None = None,
    ) -> None:
        self._variables = model.trainable_variables
        self.model = model
        self.optimizer = optimizer(self._variables)
        self.moving_average: mtf.optimizers.ExponentialMovingAverage | None = None
        if ema_decay is not None:
            average = mtf.optimizers.ExponentialMovingAverage(
                self._variables, ema_decay
            )
            self.moving_average = average
        self.seed = seed
        self.microbatches = microbatches
        self.skip_nonfinite_steps = skip_nonfinite_steps
        self.steps_done = 0
        self.examples_done = 0
        self.skipped_steps = 0
        self.reports: dict[str, Report] = {}
        self.record: dict[str, Any] = {}
        self.restored_extra: dict[str, Any] = {}

        # The decorators name the dimensions of arguments; step="": a scalar.
        @mtf.function(mesh=model.mesh, jit=jit, batch=model.features, step="")
        def training_step(
            batch: Batch, step: mtf.Tensor
        ) -> tuple[mtf.Tensor, mtf.Tensor, dict[str, Report]]:
            """Returns the loss, the norm of the gradients before clipping, and reports."""
            loss, grads, reports = self._gradients(batch, step)
            grads, norm = mtf.optimizers.clip_by_global_norm(grads, clip_norm)
            self._apply(grads, step)
            return loss, norm, reports

        @mtf.function(mesh=model.mesh, jit=jit, batch=model.features, step="")
        def compute_gradients(
            batch: Batch, step: mtf.Tensor
        ) -> tuple[mtf.Tensor, mtf.Tensor, dict[str, Report], Any]:
            """Returns the results of `training_step`, and the clipped gradients."""
            loss, grads, reports = self._gradients(batch, step)
            grads, norm = mtf.optimizers.clip_by_global_norm(grads, clip_norm)
            return loss, norm, reports, grads

        @mtf.function(mesh=model.mesh, jit=jit, step="")
        def update(grads: Any, step: mtf.Tensor) -> None:
            """Updates the variables by clipped gradients."""
            self._apply(grads, step)

        self._step = training_step
        self._compute_gradients = compute_gradients
        self._update = update

    def _gradients(self, batch: Batch, step: mtf.Tensor) -> tuple[mtf.Tensor, Any, Any]:
        """Returns the loss, a scalar, the gradient of each trainable variable, and the
        reports of mixtures of experts by block name; no reports with microbatches.

        Args:
          batch: the examples of the step.
          step: the index of the step, which the random numbers of dropout depend on.
        """
        with mtf.seed(self.seed, step):
            if self.microbatches == 1:
                loss, reports = self.model.loss_and_reports(batch, training=True)
                return loss, mtf.gradients([loss], self._variables), reports
            loss, grads = mtf.optimizers.accumulate_gradients(
                lambda microbatch: self.model.loss(microbatch, training=True),
                self._variables,
                dict(batch),
                dim="batch",
                microbatches=self.microbatches,
            )
            return loss, grads, {}

    def _apply(self, grads: Any, step: mtf.Tensor) -> None:
        """Updates the variables by clipped gradients, and their moving averages."""
        self.optimizer.apply_gradients(grads, self._variables, step)
        if self.moving_average is not None:
            self.moving_average.update(self._variables, step)

    def with_averages(self, function: Callable[[], R]) -> R:
        """Returns function(), called while the variables of the model have their moving
        averages as values, if there are any.
        """
        if self.moving_average is None:
            return function()
        with self.moving_average.applied_to(self._variables):
            return function()

    def step(self, batch: Mapping[str, Any]) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Trains on one batch of arrays by name; returns the loss and the global norm of
        the gradients before clipping.
        """
        step_index = np.int32(self.steps_done)
        self.steps_done += 1
        arrays = dict(batch)
        if not self.skip_nonfinite_steps:
            loss, norm, self.reports = self._step(arrays, step_index)
            return loss, norm
        loss, norm, self.reports, grads = self._compute_gradients(arrays, step_index)
        if np.isfinite(float(norm)):
            self._update(grads, step_index)
        else:
            self.skipped_steps += 1
        return loss, norm

    def find_nonfinite(self, batch: Mapping[str, Any], step: int) -> None:
        """Runs the forward and backward pass of a step op by op; changes no variable.

        Args:
          batch: the arrays of the step, by feature.
          step: the index of the step, from 0; random numbers depend on it.

        Raises:
          NumericsError: a tensor is not finite. The message names the first such tensor,
            and its source line.
        """
        mesh = self.model.mesh
        dims = self.model.features
        tensors = {
            name: mtf.asarray(mesh, np.asarray(x), dims[name])
            for name, x in batch.items()
        }
        step_tensor = mtf.asarray(mesh, np.int32(step), "")  # a scalar
        with mtf.check_numerics():
            # The gradients are not needed: computing them finds the tensor.
            self._gradients(tensors, step_tensor)

    def explain(
        self,
        batch: Mapping[str, Any],
        device_memory: float | str | None = None,
        hardware: str | None = None,
        runtime: Any = None,
    ) -> mtf.Forecast:
        """Returns the forecast of a step: its FLOPs, communication and memory. Nothing
        runs.

        Args:
          batch: the arrays of a batch, or the shape and dtype of each, by feature.
          device_memory: the memory of one device in bytes, or as text such as "40GiB": the
            forecast then says whether the step fits. None: it does not say so.
          hardware: the profile of the devices, such as "h100": the forecast then has the
            time of a step. None: it has none.
          runtime: whose memory it is, "placed" or "spmd"; None: as `mtf.explain` has it.
        """
        step_index = np.int32(0)
        return mtf.explain(
            self._step,
            dict(batch),
            step_index,
            device_memory=device_memory,
            hardware=hardware,
            runtime=runtime,
        )

    def device_memory(self, features: Mapping[str, Any]) -> int | None:
        """Returns the bytes of a device at the peak of a step, as XLA has planned them; None:
        they are not known, since the mesh is not live or has pipeline stages.

        Args:
          features: the shape and dtype of each feature of a batch.
        """
        if not self.model.mesh.live:
            return None
        arrays = {
            name: np.zeros(spec.shape, spec.dtype.as_numpy_dtype)
            for name, spec in features.items()
        }
        executable = self._step.lower(arrays, np.int32(0))
        live_executable = getattr(executable, "live_executable", None)
        return getattr(live_executable, "peak_memory", None)

    def export(self, batch: Mapping[str, Any], platform: str = "") -> mtf.Export:
        """Returns a step as a StableHLO module; nothing runs.

        Args:
          batch: the arrays of a batch, or the shape and dtype of each, by feature.
          platform: the devices that it is for: see `mtf.export`.
        """
        step_index = np.int32(0)
        return mtf.export(self._step, dict(batch), step_index, platform=platform)

    def compile_for(
        self, batch: Mapping[str, Any], topology: str
    ) -> mtf.CompiledForecast:
        """Returns the memory and communication of a step as XLA compiles it, compared with
        the forecast: see `mtf.compile_for`.

        Args:
          batch: the arrays of a batch, or the shape and dtype of each, by feature.
          topology: the kind and the count of the devices, such as "h100:8". This process
            need not have them.
        """
        step_index = np.int32(0)
        return mtf.compile_for(self._step, dict(batch), step_index, topology=topology)

    @property
    def training_step(self) -> Callable[..., Any]:
        """The function (batch, index of the step) -> (loss, norm of the gradients, reports)
        that trains on a batch.
        """
        return self._step

    @property
    def variables(self) -> dict[str, mtf.Variable]:
        """The variables of model and optimizer, and moving averages, which a checkpoint
        stores, by name.
        """
        all_variables = [*self.model.variables, *self.optimizer.variables]
        if self.moving_average is not None:
            all_variables += self.moving_average.variables
        return {variable.name: variable for variable in all_variables}

    def save(self, saver: mtf.checkpoints.Saver) -> None:
        """Saves the variables, and the steps and examples done. With an asynchronous saver,
        it returns before the files are written.
        """
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
        """Restores the latest undamaged checkpoint in a folder; returns False if there are
        no checkpoints.

        Raises:
          CheckpointError: the checkpoint is of another model or optimizer, or all
            checkpoints are damaged.
        """
        try:
            checkpoint = mtf.checkpoints.restore_latest(str(folder), self.variables)
        except mtf.CheckpointError:
            self._check_has_optimizer(str(folder))  # raises an error that says more
            raise
        if checkpoint is None:
            return False
        self.restored_extra = checkpoint.extra
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

    def _check_has_optimizer(self, folder: str) -> None:
        """Raises CheckpointError if the newest checkpoint in a folder has no variable of the
        optimizer, as that of a converted model.
        """
        newest = mtf.checkpoints.latest(folder)
        names = {variable.name for variable in self.optimizer.variables}
        if newest is None or not names:
            return
        _, path = newest
        if not names & set(mtf.checkpoints.Manifest.read(path).tensors):
            raise mtf.CheckpointError(
                f"the checkpoint {path} has no variable of "
                f"{type(self.optimizer).__name__}: it is of a converted model, or of another "
                "optimizer.\n  To begin a run with its weights, name it by "
                "train.init_checkpoint, and take another model_dir."
            )
