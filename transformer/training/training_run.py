"""A training run, configured by gin's settings of `train`. It resumes from the newest
checkpoint in its folder.

    mesh = mtf.Mesh("data:4;model:2", layout="batch:data; heads:model; d_ff:model")
    run = Run(ByteText(python_library), mesh, steps=500)
    print(run.explain())           # the cost of a step
    run.export().save("step")      # a step as a StableHLO module
    run.train("runs/lm")

`python -m transformer.train` runs it, `python -m meshtf explain` prints the cost of a step,
and `python -m meshtf export` writes a step as a StableHLO module.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from numbers import Integral
from typing import Any

import gin
import tensorflow as tf

import meshtf as mtf
from transformer.cli import gin_configurables
from transformer.data import Data, DataError
from transformer.data.array_spec import ArraySpec
from transformer.data.atomic_files import check_folder
from transformer.inference.sample import check_sample_settings, print_sample
from transformer.models.base import Model
from transformer.models.language_model import LanguageModel
from transformer.training import run_record
from transformer.training.evaluation import Evaluation
from transformer.training.loop import Loop
from transformer.training.reporting import metrics, run_report
from transformer.training.reporting.monitor import Monitor
from transformer.training.trainer import Trainer
from transformer.training.weights.read_weights import copy_source_files, initial_weights

# `gin_configurables` is imported to register meshtf's classes with gin.
__all__ = ["Run", "gin_configurables", "train"]
# Files that a run writes to its folder.
FILES = (
    "run.lock",
    "step_*",
    "config.gin",
    "hugging_face",
    "operative_config.gin",
    "metrics.*",
    "status.*",
    "events.out.tfevents.*",
    "plugins",
)
# Settings of `train` that are integers -> the minimum of their value.
_MIN_VALUES = {
    "steps": 0,
    "batch_size": 1,
    "microbatches": 1,
    "report_every": 1,
    "save_every": 1,
    "evaluate_every": 0,
    "keep": 1,
    "keep_every": 0,
}


def train(model_dir: str, **settings: Any) -> None:
    """Trains a run in a folder.

    Args:
      model_dir: the folder of the run.
      **settings: arguments of `Run`; gin's settings of `train` bind the rest.
    """
    Run(**settings).train(model_dir)


@gin.configurable("train")
class Run:
    """A training run, until `steps` steps are done in total.

    Args:
      data: the training and held-out examples; they are read only when needed.
      mesh: the mesh, with its layout.
      model: the class of the model, or a function that makes it; called with the mesh.
      optimizer: the class of the optimizer, or a function that makes it; called with the
        model's trainable variables.
      steps: the total count of steps, over all runs in a folder.
      batch_size: the count of examples of a step.
      microbatches: the count of microbatches that a batch is split into; their gradients
        are accumulated.
      seed: the seed of dropout. Initial values use the seed of the mesh, and the order of
        examples the seed of the data.
      clip_norm: gradients are scaled so that their global norm is at most this; None:
        no clipping.
      jit: whether XLA compiles the program of each device.
      report_every: the count of steps between two lines of progress.
      init_checkpoint: a checkpoint whose weights the run begins with, or a folder whose newest
        one is taken, such as that of a converted model; it may come from any mesh. Only
        weights are read: steps, optimizer and data begin anew. A run that goes on does not
        read it. None: initial values are drawn.
      save_every: the count of steps between two checkpoints.
      evaluate_every: the count of steps between two evaluations on held-out examples; 0:
        only before and after training.
      keep: the count of newest checkpoints to keep.
      keep_every: an interval of steps: checkpoints of its multiples are kept, too; 0:
        none.
      async_save: whether checkpoints are written in the background, during the next steps.
      deterministic: whether TensorFlow uses only deterministic ops from now on, in the
        entire process: a resumed run has the losses of an uninterrupted one, bit for bit.
      profile: the first and the last step that TensorFlow's profiler traces, such as
        (10, 12); None: none.
      skip_nonfinite_steps: whether to skip the update of a step whose gradients are
        not finite. By default, such a step stops the run.
      ema_decay: the decay rate of moving averages of the variables, such as 0.999, which
        are evaluated, decoded, exported and converted in their place; None: none.
      peak_flops: the peak FLOPs per second of all devices together, to report model FLOPs
        utilisation; None: it is not reported.
      hardware: the profile of the devices, such as "h100", or the file of one that
        `python -m meshtf calibrate` wrote, to report the predicted time and memory of a
        step beside the measured ones; None: they are not reported.

    Raises:
      DataError: the vocabulary is larger than the model's, or the model takes other
        features.
      ParseError: a setting is out of its range.
    """

    # The checkpoint whose weights a new run has begun with.
    _origin: str | None = None

    def __init__(
        self,
        data: Data = gin.REQUIRED,
        mesh: mtf.Mesh = gin.REQUIRED,
        model: Callable[..., Model] = LanguageModel,
        optimizer: Callable[..., mtf.optimizers.Optimizer] = mtf.optimizers.AdamW,
        steps: int = 500,
        batch_size: int = 16,
        microbatches: int = 1,
        seed: int = 0,
        clip_norm: float | None = 1.0,
        jit: bool = False,
        init_checkpoint: str | None = None,
        report_every: int = 25,
        save_every: int = 200,
        evaluate_every: int = 0,
        keep: int = 2,
        keep_every: int = 0,
        async_save: bool = False,
        deterministic: bool = False,
        profile: tuple[int, int] | None = None,
        skip_nonfinite_steps: bool = False,
        ema_decay: float | None = None,
        peak_flops: float | None = None,
        hardware: str | None = None,
    ) -> None:
        _check_integers(
            steps=steps,
            batch_size=batch_size,
            microbatches=microbatches,
            report_every=report_every,
            save_every=save_every,
            evaluate_every=evaluate_every,
            keep=keep,
            keep_every=keep_every,
        )
        _check_profile(profile)
        _check_microbatches(microbatches, batch_size)
        if deterministic:
            tf.config.experimental.enable_op_determinism()
        self.model = model(mesh)
        check_fit(data, self.model)
        self._make_trainer = functools.partial(  # called by the property `trainer`
            Trainer,
            self.model,
            optimizer,
            seed=seed,
            clip_norm=clip_norm,
            jit=jit,
            microbatches=microbatches,
            skip_nonfinite_steps=skip_nonfinite_steps,
            ema_decay=ema_decay,
        )
        self.data = data
        self.batch_size = batch_size
        self.steps = steps
        self.init_checkpoint = init_checkpoint
        self._recorded_settings = {  # saved with checkpoints: see `run_record`
            "train.batch_size": batch_size,
            "train.microbatches": microbatches,
            "train.seed": seed,
            "train.clip_norm": clip_norm,
            "train.skip_nonfinite_steps": skip_nonfinite_steps,
            "train.ema_decay": ema_decay,
        }
        self._loop_settings: dict[str, Any] = {  # arguments of `Loop`
            "report_every": report_every,
            "save_every": save_every,
            "evaluate_every": evaluate_every,
            "profile": profile,
            "keep": keep,
            "keep_every": keep_every,
            "async_save": async_save,
        }
        self.peak_flops = peak_flops
        self.hardware = hardware

    @functools.cached_property
    def trainer(self) -> Trainer:
        """The model with its optimizer, made at first use."""
        return self._make_trainer()

    def features(self) -> dict[str, ArraySpec]:
        """Returns the shape and dtype of each feature of a batch, by name."""
        return self.data.features(self.batch_size)

    def explain(
        self,
        device_memory: float | str | None = None,
        hardware: str | None = None,
        runtime: Any = None,
    ) -> mtf.Forecast:
        """Returns the forecast of a step: its FLOPs, communication and memory. No step
        runs.

        Args:
          device_memory: the memory of a device in bytes, or as text such as "40GiB": the
            forecast then says whether the step fits. None: it does not say so.
          hardware: the profile of the devices, such as "h100": the forecast then has the
            time of a step. None: it has none.
          runtime: whose memory it is, "placed" or "spmd"; None: as `mtf.explain` has it.
        """
        return self.trainer.explain(self.features(), device_memory, hardware, runtime)

    def export(self, platform: str = "") -> mtf.Export:
        """Returns a step as a StableHLO module of one replica: see `mtf.export`."""
        return self.trainer.export(self.features(), platform)

    def compile_for(self, topology: str) -> mtf.CompiledForecast:
        """Returns the memory and communication of a step as XLA compiles it, compared with
        the forecast.

        Args:
          topology: the kind and the count of the devices, such as "h100:8". This process
            need not have them.
        """
        return self.trainer.compile_for(self.features(), topology)

    def train(self, model_dir: str) -> None:
        """Trains from the newest checkpoint in a folder on; evaluates before and after.

        Raises:
          CheckpointError: another process trains in this folder, or workers do not see
            it, or the run in the folder, or `init_checkpoint`, has another vocabulary or
            other variables.
          DataError: the folder cannot be written, or has files, but none of a run.
          MeshtfError: a step cannot be planned, or a setting of `sample` is out of its
            range. In these cases, and after a DataError, nothing was written.
        """
        check_folder(model_dir, name="model_dir", run_files=FILES)
        check_sample_settings()
        # Before the optimizer is made, whose slots may begin with the values of variables.
        self._origin = initial_weights(
            self.init_checkpoint, self.model, self.data, model_dir
        )
        # An error of the step is raised before any file is written.
        forecast = self.explain(hardware=self.hardware)
        if forecast.error is not None:
            # The error is text, such as "PlanError: ...": raise the class that it names.
            class_name, _, message = forecast.error.partition(": ")
            raise getattr(mtf, class_name, mtf.PlanError)(message)
        with mtf.checkpoints.only_run(model_dir):
            mtf.checkpoints.check_shared(model_dir)
            self._train(model_dir, forecast)

    def _restore(self, model_dir: str, forecast: mtf.Forecast) -> None:
        """Restores the newest checkpoint, if there is one, and prints a summary of the run."""
        copy_source_files(self._origin, model_dir)
        trainer = self.trainer
        trainer.record = run_record.make_record(
            trainer, self.data, self._recorded_settings
        )
        trainer.restore(model_dir)  # changes nothing if there is no checkpoint
        run_record.check_vocabulary(
            trainer.restored_extra,
            self.data.vocabulary,
            source=f"the run in {model_dir}",
        )
        run_report.print_introduction(
            trainer.model,
            self.data,
            model_dir,
            step=trainer.steps_done,
            steps=self.steps,
            forecast=forecast,
            origin=self._origin,
            changed=run_record.differences(trainer.restored_extra, trainer.record),
        )

    def _train(self, model_dir: str, forecast: mtf.Forecast) -> None:
        """Trains in a folder that no other process trains in; see `train`."""
        start_time = time.monotonic()
        trainer = self.trainer
        evaluation = Evaluation(trainer.model, self.data, batch_size=self.batch_size)
        self._restore(model_dir, forecast)
        start_step = trainer.steps_done
        # A finished run keeps the files of the settings that it was trained with.
        is_finished = bool(trainer.restored_extra) and start_step >= self.steps
        if not is_finished:
            run_report.write_config(model_dir)
        scores_before = trainer.with_averages(evaluation)
        print(run_report.initial_scores_line(scores_before, start_step), flush=True)
        monitor = Monitor(
            model_dir,
            self.steps,
            # The forecast is for one position of the mesh: one coordinate along each axis.
            flops=forecast.flops() * trainer.model.mesh.size,
            peak_flops=self.peak_flops,
            predicted=run_report.predicted_metrics(forecast),
        )
        loop = Loop(
            trainer,
            self.data,
            steps=self.steps,
            batch_size=self.batch_size,
            evaluate=functools.partial(trainer.with_averages, evaluation),
            monitor=monitor,
            **self._loop_settings,
        )
        with metrics.Metrics(model_dir, start_step) as log, monitor:
            log.write(start_step, **run_report.held_out_metrics(scores_before))
            loop.run(model_dir, log)
            run_report.compare(self.trainer, self.features(), monitor, log)
            scores_after = trainer.with_averages(evaluation)
            log.write(trainer.steps_done, **run_report.held_out_metrics(scores_after))
        sample_of = (trainer.model, self.data.vocabulary, self.features())
        trainer.with_averages(lambda: print_sample(*sample_of))
        if not is_finished:
            # Again: training has used further settings, which gin has recorded by now.
            run_report.write_config(model_dir)
        run_report.print_summary(
            self.data,
            evaluation,
            model_dir,
            before=run_report.StepScores(start_step, scores_before),
            after=run_report.StepScores(trainer.steps_done, scores_after),
            seconds=time.monotonic() - start_time,
        )


def _check_integers(**settings: int) -> None:
    """Raises ParseError if a setting is not an integer, or below its minimum."""
    for name, value in settings.items():
        minimum = _MIN_VALUES[name]
        # In Python a bool is an integer, too.
        is_integer = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_integer or value < minimum:
            raise mtf.ParseError(
                f"train.{name} is {value!r}: it must be an integer, at least {minimum}."
            )


def _check_microbatches(microbatches: int, batch_size: int) -> None:
    """Raises ParseError if a batch cannot be split into microbatches of equal size."""
    if batch_size % microbatches:
        raise mtf.ParseError(
            f"train.microbatches is {microbatches}, which does not divide "
            f"train.batch_size, {batch_size}."
        )


def _check_profile(profile: tuple[int, int] | None) -> None:
    """Raises ParseError if `profile` is not the first and the last step of a range."""
    if profile is None:
        return
    first_step, last_step = profile
    if not 1 <= first_step <= last_step:
        raise mtf.ParseError(
            f"train.profile is {profile!r}: it is the first step and the last one, "
            "counted from 1."
        )


def check_fit(data: Data, model: Model) -> None:
    """Raises DataError if the data have token ids or features that a model does not take."""
    model_vocab = model.architecture.vocab
    vocabulary_size = data.vocabulary.size
    if vocabulary_size > model_vocab:
        raise DataError(
            f"the vocabulary has {vocabulary_size:,} ids, and the model {model_vocab:,}.\n"
            f"  Bind Architecture.vocab = {vocabulary_size}, or use another vocabulary."
        )
    unexpected = set(data.features(batch_size=1)) - set(model.features)
    if unexpected:
        raise DataError(
            f"{type(model).__name__} does not take {', '.join(sorted(unexpected))}: it takes "
            f"{', '.join(model.features)}.\n  Use data with these features."
        )
