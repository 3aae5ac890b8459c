"""The training loop: one step per batch, with regular reports, evaluations and checkpoints.

    loop = Loop(trainer, data, steps=500, batch_size=16)
    with metrics.Metrics(folder, trainer.steps_done) as log:
      loop.run(folder, log)

A batch is read by the index of its first example. So a run that resumes from a checkpoint
gets the batches of an uninterrupted run, and a failed step can be repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import meshtf as mtf
from transformer.data import Data
from transformer.experts.moe_layer import Report, experts_text, report_metrics
from transformer.training.input_batches import batches
from transformer.training.interrupts import Terminated, interrupts_between_steps
from transformer.training.reporting import metrics
from transformer.training.reporting.monitor import Monitor, op_seconds, profiler_trace
from transformer.training.trainer import Trainer

# Several processes agree on stopping only now and then: they wait for each other, which costs
# as much as reading a loss.
_STEPS_BETWEEN_AGREEMENTS = 5

# The devices of a live mesh (a mesh of jax's devices) compute while Python goes on. Results of
# a step are read after this many further steps have started, so that no device waits for the host.
_STEPS_AHEAD = 2


class _StepResult(NamedTuple):
    """The results of a step on the devices, before the host reads them.

    Attributes:
      step_index: the index of the step, from 0.
      loss: the loss, a scalar.
      norm: the global norm of the gradients, a scalar.
      reports: the reports of mixtures of experts, by block name.
      is_reported: whether to report this step.
    """

    step_index: int
    loss: mtf.Tensor
    norm: mtf.Tensor
    reports: dict[str, Report]
    is_reported: bool


@dataclasses.dataclass
class Loop:
    """Trains until `steps` steps are done in total.

    Args:
      trainer: the model and its optimizer.
      data: the training data.
      steps: the total count of steps, over all runs in a folder.
      batch_size: the count of examples of a step.
      report_every: the count of steps between two lines of progress.
      save_every: the count of steps between two checkpoints.
      evaluate: a function that returns metrics on held-out examples, by name; None: no
        evaluation during training.
      evaluate_every: the count of steps between two evaluations; 0: none.
      keep: the count of newest checkpoints to keep.
      keep_every: an interval of steps: checkpoints of its multiples are kept, too; 0:
        none.
      async_save: whether checkpoints are written in the background, during the next steps.
      monitor: times the loop and writes status.json; None: neither.
      profile: the first and the last step that TensorFlow's profiler traces; None: none.
      print_line: prints a line.
    """

    trainer: Trainer
    data: Data
    steps: int
    batch_size: int
    report_every: int = 25
    save_every: int = 200
    evaluate: Callable[[], Mapping[str, float]] | None = None
    evaluate_every: int = 0
    keep: int = 2
    keep_every: int = 0
    async_save: bool = False
    monitor: Monitor | None = None
    profile: tuple[int, int] | None = None
    print_line: Callable[[str], None] = metrics.print_now

    def __post_init__(self) -> None:
        # Has the context of TensorFlow's profiler while it traces.
        self._profiler = contextlib.ExitStack()

    def run(self, folder: str, log: metrics.Metrics) -> None:
        """Runs the remaining steps; the last one is always reported and saved.

        Args:
          folder: the folder of checkpoints and metrics.
          log: writes the metrics of steps.

        Raises:
          KeyboardInterrupt: Ctrl-C was pressed; the step was finished and saved.
          Terminated: the same, after SIGTERM.
          WriteError: the last checkpoint could not be written; for earlier ones this is
            a warning.
          NumericsError: a loss or gradient is not finite, and such steps are not
            skipped; nothing is saved after that step.
        """
        trainer = self.trainer
        start_step = trainer.steps_done
        saver = mtf.checkpoints.Saver(
            folder,
            keep=self.keep,
            keep_every=self.keep_every,
            asynchronous=self.async_save,
        )
        if saver.empty:
            trainer.save(saver)  # so that any step can be repeated
        num_remaining = max(self.steps - start_step, 0)
        progress = metrics.Progress(
            self.steps, self._tokens_per_step(), print_line=self.print_line
        )
        # Reading a result waits for the device, so it is put off until the next report.
        unread: list[_StepResult] = []
        with saver, interrupts_between_steps() as requested_stop:
            for batch in self._batches(trainer.examples_done, num_remaining):
                with self._profiling(folder, log):
                    loss, norm = trainer.step(batch)
                step = trainer.steps_done  # from 1
                trainer.examples_done += self.batch_size
                stop = _agreed_stop(requested_stop(), step)
                is_first = step == start_step + 1
                is_last = step == self.steps or stop is not None
                saves_now = step % self.save_every == 0 or is_last
                evaluates_now = self._evaluates_after(step) and not is_last
                reports_now = is_first or saves_now or evaluates_now
                is_reported = is_first or saves_now or step % self.report_every == 0
                unread.append(
                    _StepResult(step - 1, loss, norm, trainer.reports, is_reported)
                )
                steps_ahead = 0 if reports_now else self._steps_ahead
                for result in list(unread):
                    if result.is_reported and result.step_index < step - steps_ahead:
                        self._report(result, unread, saver, progress, log)
                if evaluates_now:
                    self._evaluate(step, log)
                # After the reports: a resumed run does not repeat them.
                if saves_now:
                    trainer.save(saver)
                if stop is not None:
                    saver.finish()
                    raise stop
            saver.finish()
            # A signal may have come after the last step. Several processes ignore it: they
            # would not agree.
            stop = requested_stop()
            if stop is not None and mtf.cluster.processes().count == 1:
                raise stop

    @property
    def _steps_ahead(self) -> int:
        """The count of steps that have started when the results of a step are read."""
        return _STEPS_AHEAD if self.trainer.model.mesh.live else 0

    def _report(
        self,
        last_result: _StepResult,
        unread: list[_StepResult],
        saver: mtf.checkpoints.Saver,
        progress: metrics.Progress,
        log: metrics.Metrics,
    ) -> None:
        """Reads the results of steps; prints and writes the metrics of the last one.

        Args:
          last_result: the results of the last step.
          unread: the results that have not been read; those up to the last step are
            removed.
          saver: the saver of checkpoints, to repeat steps after a loss that is not finite.
          progress: prints a line.
          log: writes metrics.
        """
        num_read = unread.index(last_result) + 1
        loss, norm = self._read(unread[:num_read], saver)
        del unread[:num_read]
        step = last_result.step_index + 1  # counted from 1
        speed = progress.speed(step)
        values = {"loss": loss, "gradient_norm": norm}
        if speed is not None:
            values["tokens_per_second"] = speed.tokens_per_second
        shares = {}  # the fractions of the time and of the FLOPs that are used
        if self.monitor is not None:
            shares = self.monitor.report(step, **values)
        reports = last_result.reports
        expert_metrics = report_metrics(reports)
        remarks = []
        if reports:
            remarks.append(experts_text(reports, expert_metrics))
        utilization = shares.get("model_flops_utilization")
        progress.report(
            step, loss, speed, flops_utilization=utilization, remarks=remarks
        )
        log.write(step, **values, **shares, **expert_metrics)

    def _batches(self, start_example: int, num_batches: int) -> Iterable[Any]:
        """Returns batches; the monitor, if there is one, measures the time to get them."""
        dataset = batches(
            self.trainer.model,
            self.data,
            self.batch_size,
            start_example=start_example,
            num_batches=num_batches,
        )
        if self.monitor is None:
            return dataset
        return self.monitor.batches(dataset)

    @contextlib.contextmanager
    def _profiling(self, folder: str, log: metrics.Metrics) -> Iterator[None]:
        """The context of each step: starts the profiler before the first step of `profile`,
        and after the last one stops it and reports the time of ops.
        """
        if self.profile is None:
            yield
            return
        step = self.trainer.steps_done + 1
        first_step, last_step = self.profile
        if step == first_step:
            self._profiler.enter_context(profiler_trace(folder))
        yield
        if step == last_step:
            self._profiler.close()
            seconds = op_seconds(folder)
            log.write(
                step, **{f"profiled_{kind}_seconds": x for kind, x in seconds.items()}
            )
            times = ", ".join(f"{kind} {t:.3f} s" for kind, t in seconds.items())
            self.print_line(
                f"profile of steps {first_step} to {last_step}: {times}; "
                f"tensorboard --logdir={folder}"
            )

    def _evaluates_after(self, step: int) -> bool:
        """Returns whether the model is evaluated after this count of steps."""
        if self.evaluate is None or self.evaluate_every == 0:
            return False
        return step % self.evaluate_every == 0

    def _evaluate(self, step: int, log: metrics.Metrics) -> None:
        """Evaluates the model; writes and prints the metrics."""
        assert self.evaluate is not None
        scores = {f"held_out_{name}": x for name, x in self.evaluate().items()}
        log.write(step, **scores)
        columns = [f"{name} {x:.4f}" for name, x in scores.items()]
        self.print_line("          " + "  ".join(columns))

    def _read(
        self,
        results: Sequence[_StepResult],
        saver: mtf.checkpoints.Saver,
    ) -> tuple[float, float]:
        """Reads loss and gradient norm of each step, at least one; returns those of the last
        step.

        Raises:
          NumericsError: a value is not finite, and such steps are not skipped.
        """
        for result in results:
            loss = float(result.loss)
            norm = float(result.norm)
            if math.isfinite(loss) and math.isfinite(norm):
                continue
            if not self.trainer.skip_nonfinite_steps:
                self._raise_cause(result.step_index, loss=loss, norm=norm, saver=saver)
            self.print_line(
                f"{self._step_text(result.step_index)}: loss {loss}, gradient norm {norm}: "
                f"skipped; {self.trainer.skipped_steps} skipped steps in this run."
            )
        return loss, norm  # of the last result in the loop

    def _raise_cause(
        self, step_index: int, loss: float, norm: float, saver: mtf.checkpoints.Saver
    ) -> NoReturn:
        """Repeats the steps since the last checkpoint, and raises a NumericsError that names
        the first tensor that is not finite.

        Args:
          step_index: the index of the step, from 0, whose loss or norm is not finite.
          loss: the loss of the step.
          norm: the gradient norm of the step.
          saver: the saver of checkpoints.
        """
        trainer = self.trainer
        step_text = self._step_text(step_index)
        saver.wait()
        trainer.restore(saver.directory)
        self.print_line(
            f"{step_text}: loss {loss}, gradient norm {norm}. Repeating the steps since "
            f"the checkpoint of step {trainer.steps_done}, to find the first tensor "
            "that is not finite."
        )
        num_batches = step_index - trainer.steps_done + 1
        dataset = self.data.batches(self.batch_size, start=trainer.examples_done)
        for batch in dataset.take(num_batches):
            if trainer.steps_done == step_index:
                trainer.find_nonfinite(batch, step_index)
            else:
                trainer.step(batch)
        raise mtf.NumericsError(
            f"{step_text} had loss {loss} and gradient norm {norm}, and when repeated they "
            "are finite.\n"
            "  Run it with train.deterministic = True; if it recurs, report it."
        )

    def _step_text(self, step_index: int) -> str:
        """Returns a step, counted from 1, and the index of its first example, as text.

        Args:
          step_index: the index of the step, from 0.
        """
        num_steps_since = self.trainer.steps_done - step_index
        first_example = self.trainer.examples_done - num_steps_since * self.batch_size
        return f"step {step_index + 1} (from example {first_example:,})"

    def _tokens_per_step(self) -> int:
        """Returns the count of tokens of a batch; the count of examples, if the data have no
        tokens.
        """
        features: dict[str, Any] = self.data.features(self.batch_size)
        spec = features.get("targets", features.get("tokens"))
        if spec is None:
            return self.batch_size
        return math.prod(spec.shape)


def _agreed_stop(
    stop: type[KeyboardInterrupt] | None, step: int
) -> type[KeyboardInterrupt] | None:
    """Returns the exception to raise after a step; None: the run continues.

    If several processes train together, they stop after the same step: after every few steps
    they exchange whether one of them was asked to stop.

    Args:
      stop: the exception to raise since this process was asked to stop; None: it was not.
      step: the count of steps done.
    """
    if mtf.cluster.processes().count == 1:
        return stop
    if step % _STEPS_BETWEEN_AGREEMENTS:
        return None
    if not mtf.cluster.any_process(stop is not None):
        return None
    return stop or Terminated
