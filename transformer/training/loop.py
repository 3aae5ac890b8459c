"""The loop of training: a step for each batch; now and then progress, a measurement, a
checkpoint.

    loop = Loop(trainer, data, steps=500, batch_size=16)
    with metrics.Metrics(folder, trainer.steps_done) as log:
      loop.run(folder, log)

A batch is found by its number, so a run that goes on from a checkpoint sees what it
would have seen, and a step that went wrong can be done again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import meshtf as mtf
from transformer.data import Data
from transformer.experts.moe_layer import told
from transformer.training.input_batches import batches
from transformer.training.interrupts import interrupts_between_steps
from transformer.training.reporting import metrics
from transformer.training.reporting.monitor import Watch, profiled, spent
from transformer.training.trainer import Trainer


@dataclasses.dataclass
class Loop:
    """Steps until `steps` are done in all.

    Args:
      trainer: what takes them.
      data: what is learned from.
      steps: how many there are, counted over all runs in a folder.
      batch_size: examples in a step.
      report_every: steps between two lines of progress.
      save_every: steps between two checkpoints.
      evaluate: returns named numbers of held-out examples; None: nothing is measured on
        the way.
      evaluate_every: steps between two measurements; 0: none.
      keep: how many of the newest checkpoints stay.
      keep_every: those of steps that are multiples of it stay as well; 0: no others.
      async_save: whether checkpoints are written in the background, while steps go on.
      watch: times the loop, and tells other programs.
      profile: the first and the last step that TensorFlow's profiler looks at; None:
        none.
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
    watch: Watch | None = None
    profile: tuple[int, int] | None = None
    say: Callable[[str], None] = metrics.say_now

    def __post_init__(self) -> None:
        self._profiler = contextlib.ExitStack()

    def run(self, folder: str, log: metrics.Metrics) -> None:
        """Takes the steps that are left; the last one is reported and saved, too.

        Raises:
          KeyboardInterrupt: Ctrl-C was pressed; the step was finished, and saved.
          Terminated: the same, after SIGTERM.
          WriteError: the last checkpoint could not be written. Of others that is a
            warning.
          NumericsError: a loss or gradient is no finite number, and such steps are not
            left out; nothing is saved after that step.
        """
        trainer, first = self.trainer, self.trainer.steps_done
        saver = mtf.checkpoints.Saver(
            folder, self.keep, self.keep_every, self.async_save
        )
        if saver.empty:
            trainer.save(saver)  # so that any step can be done again
        left = max(self.steps - first, 0)
        progress = metrics.Progress(self.steps, self._tokens(), self.say)
        waiting: list[
            tuple[int, mtf.Tensor, mtf.Tensor]
        ] = []  # steps whose numbers were not read
        with saver, interrupts_between_steps() as asked:
            for batch in self._batches(trainer.examples_done, left):
                with self._profiling(folder, log):
                    waiting.append((trainer.steps_done, *trainer.step(batch)))
                step = trainer.steps_done
                trainer.examples_done += self.batch_size
                stop = asked()
                stops = step == self.steps or stop is not None
                saves = step % self.save_every == 0 or stops
                if step % self.report_every == 0 or step == first + 1 or saves:
                    loss, norm = self._read(waiting, saver)
                    self._report(step, loss, norm, progress, log)
                if (
                    self.evaluate
                    and self.evaluate_every
                    and step % self.evaluate_every == 0
                    and not stops
                ):
                    self._measure(step, log)
                if saves:  # last: what a checkpoint has behind it, it has told
                    trainer.save(saver)
                if stop is not None:
                    saver.finish()
                    raise stop
            saver.finish()
            if stop := asked():
                raise stop

    def _report(
        self,
        step: int,
        loss: float,
        norm: float,
        progress: metrics.Progress,
        log: metrics.Metrics,
    ) -> None:
        rate = progress.report(step, loss)
        numbers = {"loss": loss, "gradient_norm": norm} | (
            {} if rate is None else {"tokens_per_second": rate}
        )
        shares = self.watch.report(step, **numbers) if self.watch else {}
        log.write(step, **numbers, **shares, **told(self.trainer.reports))

    def _batches(self, examples: int, left: int) -> Iterable[Any]:
        found = batches(self.trainer.model, self.data, self.batch_size, examples, left)
        return self.watch.batches(found) if self.watch else found

    @contextlib.contextmanager
    def _profiling(self, folder: str, log: metrics.Metrics) -> Iterator[None]:
        """Profiles the step to come, if it is the first of those that are asked for, up
        to the last.
        """
        step = self.trainer.steps_done + 1
        first, last = self.profile or (0, 0)
        if step == first:
            self._profiler.enter_context(profiled(folder))
        yield
        if step == last and first:
            self._profiler.close()
            seconds = {
                f"profiled_{name}_seconds": x for name, x in spent(folder).items()
            }
            log.write(step, **seconds)
            self.say(
                f"profile of steps {first} to {last}: "
                + ", ".join(f"{name} {x:.3f} s" for name, x in spent(folder).items())
                + f"; tensorboard --logdir={folder}"
            )

    def _measure(self, step: int, log: metrics.Metrics) -> None:
        assert self.evaluate is not None
        found = {f"held_out_{name}": x for name, x in self.evaluate().items()}
        log.write(step, **found)
        self.say(
            "          " + "  ".join(f"{name} {x:.4f}" for name, x in found.items())
        )

    def _read(
        self,
        waiting: list[tuple[int, mtf.Tensor, mtf.Tensor]],
        saver: mtf.checkpoints.Saver,
    ) -> tuple[float, float]:
        """Returns the loss and norm of the last step; refuses numbers that are not
        finite.
        """
        for step, loss, norm in waiting:
            last = float(loss), float(norm)
            if (
                not all(map(math.isfinite, last))
                and not self.trainer.skip_nonfinite_steps
            ):
                self._look_for_the_cause(step, *last, saver)
            elif not all(map(math.isfinite, last)):
                self.say(
                    f"{self._where(step)}: loss {last[0]}, norm of the gradients "
                    f"{last[1]}: left out; so far {self.trainer.skipped} in this run."
                )
        waiting.clear()
        return last

    def _look_for_the_cause(
        self, step: int, loss: float, norm: float, saver: mtf.checkpoints.Saver
    ) -> None:
        trainer, where = self.trainer, self._where(step)
        saver.wait()
        trainer.restore(saver.directory)
        self.say(
            f"{where}: loss {loss}, norm of the gradients {norm}. Going on from the "
            f"checkpoint of step {trainer.steps_done} again, to look for the first "
            "tensor that is not finite."
        )
        first = trainer.steps_done
        for batch in self.data.batches(self.batch_size, trainer.examples_done).take(
            step - first + 1
        ):
            if trainer.steps_done == step:
                trainer.find_bad_number(batch, step)
            else:
                trainer.step(batch)
        raise mtf.NumericsError(
            f"{where} had loss {loss} and gradients of norm {norm}, and done again it "
            "has not.\n"
            "  Do it once more with deterministic ops; if it comes again, report it."
        )

    def _where(self, step: int) -> str:
        examples = (
            self.trainer.examples_done
            - (self.trainer.steps_done - step) * self.batch_size
        )
        return f"step {step + 1} (examples {examples:,} and on)"

    def _tokens(self) -> int:
        features: dict[str, Any] = self.data.features(self.batch_size)
        spec = features.get("targets", features.get("tokens"))
        return self.batch_size if spec is None else math.prod(spec.shape)
