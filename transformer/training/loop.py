"""The training loop: one step per batch, with regular reports, evaluations and checkpoints.

    loop = Loop(trainer, data, steps=500, batch_size=16)
    with metrics.Metrics(folder, trainer.steps_done) as log:
      loop.run(folder, log)

Batches are addressed by the index of their first example. So a run that resumes from a
checkpoint gets the batches of an uninterrupted run, and a failed step can be repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import meshtf as mtf
from transformer.data import Data
from transformer.experts.moe_layer import experts_text, report_metrics
from transformer.training.input_batches import batches
from transformer.training.interrupts import interrupts_between_steps
from transformer.training.reporting import metrics
from transformer.training.reporting.monitor import Monitor, op_seconds, profiler_trace
from transformer.training.trainer import Trainer


@dataclasses.dataclass
class Loop:
    """Trains until `steps` steps are done in total.

    Args:
      trainer: the model and its optimizer.
      data: the training data.
      steps: total number of steps, over all runs in a folder.
      batch_size: examples in a step.
      report_every: steps between two lines of progress.
      save_every: steps between two checkpoints.
      evaluate: returns metrics on held-out examples, by name; None: no evaluation during
        training.
      evaluate_every: steps between two evaluations; 0: none.
      keep: how many of the newest checkpoints are kept.
      keep_every: checkpoints of steps that are multiples of it are kept too; 0: none.
      async_save: whether checkpoints are written in the background, during the next steps.
      monitor: times the loop and writes status.json.
      profile: the first and the last step that TensorFlow's profiler traces; None: none.
      say: prints a line.
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
        self._profiler = contextlib.ExitStack()

    def run(self, folder: str, log: metrics.Metrics) -> None:
        """Runs the remaining steps; the last one is always reported and saved.

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
            folder, self.keep, self.keep_every, self.async_save
        )
        if saver.empty:
            trainer.save(saver)  # so that any step can be repeated
        remaining = max(self.steps - start_step, 0)
        progress = metrics.Progress(self.steps, self._tokens(), self.print_line)
        # Steps whose loss and norm the host has not read yet.
        unread: list[tuple[int, mtf.Tensor, mtf.Tensor]] = []
        with saver, interrupts_between_steps() as requested_stop:
            for batch in self._batches(trainer.examples_done, remaining):
                with self._profiling(folder, log):
                    unread.append((trainer.steps_done, *trainer.step(batch)))
                step = trainer.steps_done
                trainer.examples_done += self.batch_size
                stop = requested_stop()
                is_last = step == self.steps or stop is not None
                saves = step % self.save_every == 0 or is_last
                if step % self.report_every == 0 or step == start_step + 1 or saves:
                    loss, norm = self._read(unread, saver)
                    self._report(step, loss, norm, progress, log)
                if (
                    self.evaluate
                    and self.evaluate_every
                    and step % self.evaluate_every == 0
                    and not is_last
                ):
                    self._evaluate(step, log)
                if saves:  # after the reports, which a resumed run does not repeat
                    trainer.save(saver)
                if stop is not None:
                    saver.finish()
                    raise stop
            saver.finish()
            if stop := requested_stop():
                raise stop

    def _report(
        self,
        step: int,
        loss: float,
        norm: float,
        progress: metrics.Progress,
        log: metrics.Metrics,
    ) -> None:
        speed = progress.speed(step)
        values = {"loss": loss, "gradient_norm": norm}
        if speed is not None:
            values["tokens_per_second"] = speed.tokens_per_second
        shares = self.monitor.report(step, **values) if self.monitor else {}
        reports = self.trainer.reports
        experts = report_metrics(reports)
        remarks = [experts_text(reports, experts)] if reports else []
        utilization = shares.get("model_flops_utilization")
        progress.report(step, loss, speed, utilization, remarks)
        log.write(step, **values, **shares, **experts)

    def _batches(self, start_example: int, num_batches: int) -> Iterable[Any]:
        dataset = batches(
            self.trainer.model, self.data, self.batch_size, start_example, num_batches
        )
        return self.monitor.batches(dataset) if self.monitor else dataset

    @contextlib.contextmanager
    def _profiling(self, folder: str, log: metrics.Metrics) -> Iterator[None]:
        """Starts the profiler before the first step of `profile`, and stops it after the
        last one.
        """
        step = self.trainer.steps_done + 1
        start, last = self.profile or (0, 0)
        if step == start:
            self._profiler.enter_context(profiler_trace(folder))
        yield
        if step == last and start:
            self._profiler.close()
            seconds = op_seconds(folder)
            log.write(
                step, **{f"profiled_{name}_seconds": x for name, x in seconds.items()}
            )
            self.print_line(
                f"profile of steps {start} to {last}: "
                + ", ".join(f"{name} {x:.3f} s" for name, x in seconds.items())
                + f"; tensorboard --logdir={folder}"
            )

    def _evaluate(self, step: int, log: metrics.Metrics) -> None:
        assert self.evaluate is not None
        scores = {f"held_out_{name}": x for name, x in self.evaluate().items()}
        log.write(step, **scores)
        self.print_line(
            "          " + "  ".join(f"{name} {x:.4f}" for name, x in scores.items())
        )

    def _read(
        self,
        unread: list[tuple[int, mtf.Tensor, mtf.Tensor]],
        saver: mtf.checkpoints.Saver,
    ) -> tuple[float, float]:
        """Reads losses and gradient norms of all unread steps; returns those of the last.

        Raises:
          NumericsError: one is not finite, and such steps are not skipped.
        """
        for step, loss, norm in unread:
            values = (float(loss), float(norm))
            if all(map(math.isfinite, values)):
                continue
            if not self.trainer.skip_nonfinite_steps:
                self._find_cause(step, *values, saver)
            self.print_line(
                f"{self._where(step)}: loss {values[0]}, gradient norm {values[1]}: "
                f"skipped; {self.trainer.skipped} skipped steps in this run."
            )
        unread.clear()
        return values

    def _find_cause(
        self, step: int, loss: float, norm: float, saver: mtf.checkpoints.Saver
    ) -> None:
        """Repeats the steps since the last checkpoint to name the first tensor that is not
        finite. Raises NumericsError.
        """
        trainer = self.trainer
        where = self._where(step)
        saver.wait()
        trainer.restore(saver.directory)
        self.print_line(
            f"{where}: loss {loss}, gradient norm {norm}. Repeating the steps since "
            f"the checkpoint of step {trainer.steps_done}, to find the first tensor "
            "that is not finite."
        )
        num_batches = step - trainer.steps_done + 1
        dataset = self.data.batches(self.batch_size, trainer.examples_done)
        for batch in dataset.take(num_batches):
            if trainer.steps_done == step:
                trainer.find_nonfinite(batch, step)
            else:
                trainer.step(batch)
        raise mtf.NumericsError(
            f"{where} had loss {loss} and gradient norm {norm}, and when repeated they "
            "are finite.\n"
            "  Run it with train.deterministic = True; if it recurs, report it."
        )

    def _where(self, step: int) -> str:
        """Returns the step, counted from 1, and the index of its first example."""
        later_steps = self.trainer.steps_done - step
        examples = self.trainer.examples_done - later_steps * self.batch_size
        return f"step {step + 1} (from example {examples:,})"

    def _tokens(self) -> int:
        """Returns the tokens of a batch, or its examples where it has no tokens."""
        features: dict[str, Any] = self.data.features(self.batch_size)
        spec = features.get("targets", features.get("tokens"))
        return self.batch_size if spec is None else math.prod(spec.shape)
