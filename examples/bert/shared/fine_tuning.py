"""Training and evaluation, shared by the three programs that train.

    fine_tuning.prepare(argv)          # gin, and whether --output_dir can be written
    trainer = fine_tuning.trainer(model, steps, warmup)
    fine_tuning.train(trainer, examples, steps)      # from the last checkpoint, if any
    metrics = Evaluation(model, examples, batch_size=8)()

A program that is started again continues from the last checkpoint in --output_dir.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

import meshtf as mtf
from examples.bert.shared import gin_configuration, optimizer_setup, program_flags
from examples.bert.shared.training_flags import (
    EPOCHS,
    INIT,
    JIT,
    OUTPUT,
    OVERLAPS,
    RATE,
    REPORT_EVERY,
    SAVE_EVERY,
    TRAIN,
    TRAIN_BATCH,
    WARMUP,
)
from transformer import data
from transformer.cli import command_line
from transformer.data.atomic_files import atomic_file, check_folder
from transformer.models.base import Model
from transformer.training import run_record, training_run
from transformer.training.loop import Loop
from transformer.training.reporting import run_report
from transformer.training.reporting.metrics import Metrics
from transformer.training.trainer import Trainer

# Globs of the files that the programs write to --output_dir.
FILES = (
    *training_run.FILES,
    "*results.t*",
    "*predictions.json",
    "*predictions.tsv",
    "null_odds.json",
)
# Defaults of the arguments of `Loop` that gin may set.
_LOOP_DEFAULTS = {"keep": 2, "keep_every": 0, "async_save": False, "profile": None}


def prepare(argv: Sequence[str], **train_flags: flags.FlagHolder[Any]) -> None:
    """Reads gin's settings, and checks that --output_dir can be written.

    Args:
      argv: the arguments of the command line that are no flags.
      **train_flags: further flags with the same meaning as a gin setting train.NAME, by
        NAME.

    Raises:
      ConfigError: a setting is wrong.
      DataError: the folder cannot be written, or has files of other programs.
    """
    overlaps = {f"train.{name}": flag for name, flag in train_flags.items()}
    gin_configuration.read(argv, OVERLAPS | overlaps)
    check_folder(OUTPUT.value, "--output_dir", FILES)


class InMemorySource:
    """A source of examples that are in memory: see `transformer.data.sources`."""

    def __init__(
        self,
        train: Sequence[data.sources.Example],
        held_out: Sequence[data.sources.Example] = (),
    ) -> None:
        self._train = train
        self._held_out = held_out

    def train(self) -> Sequence[data.sources.Example]:
        return self._train

    def held_out(self) -> Sequence[data.sources.Example]:
        return self._held_out


def steps_of(examples: int) -> tuple[int, int]:
    """Returns the number of training steps and the number of warmup steps, given the
    number of training examples.
    """
    steps = max(int(examples * EPOCHS.value / TRAIN_BATCH.value), 1)
    return steps, int(steps * WARMUP.value)


def trainer(model: Model, steps: int, warmup: int) -> Trainer:
    """Returns the trainer of a model.

    The rate rises linearly during the warmup, then falls linearly to 0 at the last step.
    Gradients are clipped to a global norm of 1; biases and norms are not decayed. Settings
    of gin override this.

    Args:
      model: the model.
      steps: the total number of steps.
      warmup: the number of warmup steps.

    Raises:
      ConfigError: the optimizer has no parameter for a given flag, or a setting has no
        effect.
    """
    # The result is not needed here: the call marks the settings of `Loop` as used, since
    # `print_setup` refuses unused settings before `run_loop` reads them.
    gin_configuration.train_settings(**_LOOP_DEFAULTS)
    settings = gin_configuration.train_settings(
        clip_norm=1.0, microbatches=1, skip_nonfinite_steps=False
    )
    trainer = Trainer(
        model,
        optimizer_setup.make_optimizer(steps, warmup),
        seed=program_flags.SEED.value,
        jit=JIT.value,
        **settings,
    )
    # The settings that a later run with the same --output_dir is compared with.
    trainer.record = {f"train.{name}": value for name, value in settings.items()} | {
        "steps": steps,
        "warmup steps": warmup,
        "--learning_rate": RATE.value,
        "--train_batch_size": TRAIN_BATCH.value,
    }
    return trainer


def print_setup(model: Model, examples: object) -> None:
    """Prints examples, model and mesh, and gin settings that are overridden or unused.

    Args:
      model: the model.
      examples: a description of the examples, or an object that prints as one.

    Raises:
      ConfigError: a setting of --gin_param has no effect.
    """
    lines = gin_configuration.refuse_unused()
    parameters = sum(math.prod(v.shape.sizes) for v in model.variables)
    print(
        f"examples {examples}\nmodel    {parameters:,} parameters; "
        f"{model.architecture}\n"
        f"mesh     {model.mesh}, layout {model.mesh.layout!r}",
        flush=True,
    )
    for line in lines:
        print(f"gin      {line}", flush=True)


def train(
    trainer: Trainer,
    examples: data.TaskData | None,
    steps: int,
    prefix: str = "bert/",
) -> None:
    """Starts from a checkpoint (see `start`), and trains if --do_train is given.

    Args:
      trainer: the trainer of the model.
      examples: the training examples.
      steps: the total number of steps.
      prefix: the prefix of the names of variables that --init_checkpoint must have.

    Raises:
      CheckpointError: another process trains in --output_dir; and as `start`.
    """
    with contextlib.ExitStack() as stack:
        # `only_run` locks the folder, and makes it if it is missing: then only when
        # training starts, after all errors of `start`.
        folder_exists = Path(OUTPUT.value).is_dir()
        if TRAIN.value and folder_exists:
            stack.enter_context(mtf.checkpoints.only_run(OUTPUT.value))
        start(trainer, examples, steps, prefix)
        if not TRAIN.value:
            return
        if not folder_exists:
            stack.enter_context(mtf.checkpoints.only_run(OUTPUT.value))
        run_loop(trainer, examples, steps)


def start(
    trainer: Trainer,
    examples: data.TaskData | None = None,
    steps: int = 0,
    prefix: str = "bert/",
) -> None:
    """Restores the last checkpoint in --output_dir; without one, reads --init_checkpoint.

    Args:
      trainer: the trainer of the model.
      examples: the training examples. They and their vocabulary are recorded, and compared
        with those of the checkpoint; None: they are not.
      steps: the total number of steps.
      prefix: the prefix of the variables that are read from --init_checkpoint, such as that
        of the encoder, whose variables have the same names in all models. Other variables
        keep their random initial values.

    Raises:
      CheckpointError: a checkpoint is of another model or vocabulary.
      DataError: --init_checkpoint does not exist; or there is no checkpoint, and nothing
        is to be trained.
    """
    if examples is not None:
        num_examples = len(examples.task.source.train())
        description = f"{examples.task.name}, {num_examples:,} training examples"
        trainer.record = run_record.make_record(
            trainer, examples, {"data": description, **trainer.record}
        )
    if trainer.restore(OUTPUT.value):
        _report_restored(trainer, examples, steps)
    elif INIT.value:
        _read_initial_variables(trainer, examples, prefix)
    elif not TRAIN.value:
        raise data.DataError(
            f"there is no checkpoint in {OUTPUT.value}: the model would have random "
            "variables.\n  Give --do_train or --init_checkpoint."
        )


def _read_initial_variables(
    trainer: Trainer, examples: data.TaskData | None, prefix: str
) -> None:
    """Reads the variables with a prefix from --init_checkpoint: a checkpoint, or a folder
    whose last checkpoint is taken. The arguments and errors are those of `start`.
    """
    path = INIT.value
    latest_checkpoint = mtf.checkpoints.latest(path)
    if latest_checkpoint is not None:
        _, path = latest_checkpoint
    foreign = mtf.checkpoints.foreign_format(path)
    if foreign or not Path(path).is_dir():
        raise data.DataError(
            f"--init_checkpoint={path}: there is no such checkpoint.\n  {foreign}".rstrip()
        )
    if examples is not None:
        extra = mtf.checkpoints.Manifest.read(path).extra
        run_record.check_vocabulary(
            extra, examples.vocabulary, f"--init_checkpoint={path}"
        )
    variables = trainer.model.variables
    variables_to_read = {v.name: v for v in variables if v.name.startswith(prefix)}
    # The checkpoint may have further variables.
    averages = run_record.averages_in(path, variables_to_read.values())
    mtf.checkpoints.restore(path, variables_to_read, partly=True, renames=averages)
    print(
        f"read {len(variables_to_read)} of {len(variables)} variables from {path}",
        flush=True,
    )


def _report_restored(
    trainer: Trainer, examples: data.TaskData | None, steps: int
) -> None:
    """Prints the step of the restored checkpoint, and which settings have changed."""
    steps_done = trainer.steps_done
    changed_settings = []
    if examples is not None:
        run_record.check_vocabulary(
            trainer.restored_extra, examples.vocabulary, f"the run in {OUTPUT.value}"
        )
        changed_settings = run_record.differences(
            trainer.restored_extra, trainer.record
        )
    if not TRAIN.value:
        print(f"the model is that of step {steps_done} in {OUTPUT.value}", flush=True)
        return
    for line in changed_settings:
        print(f"changed  {line}", flush=True)
    if steps_done >= steps > 0:
        line = run_report.finished_text(
            steps_done,
            steps,
            has_changes=bool(changed_settings),
            setting="output_dir",
        )
    else:
        line = f"continuing from step {steps_done} in {OUTPUT.value}"
    print(line, flush=True)


@contextlib.contextmanager
def exit_on_user_errors() -> Iterator[None]:
    """Within the context, errors of the user and Ctrl-C end the program with a message
    instead of a traceback.
    """
    try:
        with command_line.exit_on_user_errors():
            yield
    except KeyboardInterrupt:
        command_line.exit_with_message(
            "\nInterrupted. The same command continues from the checkpoint in "
            f"{OUTPUT.value}."
        )


def run_loop(trainer: Trainer, examples: data.Data, steps: int) -> None:
    """Trains until `steps` steps are done in total. Saves checkpoints periodically, at the
    end, and at Ctrl-C.

    Raises:
      KeyboardInterrupt: Ctrl-C was pressed; the step was finished, and saved.
      NumericsError: a loss is not finite.
    """
    settings = gin_configuration.train_settings(**_LOOP_DEFAULTS)
    loop = Loop(
        trainer,
        examples,
        steps=steps,
        batch_size=TRAIN_BATCH.value,
        report_every=REPORT_EVERY.value,
        save_every=SAVE_EVERY.value,
        **settings,
    )
    # Metrics are written to --output_dir, and not printed.
    with Metrics(OUTPUT.value, trainer.steps_done, print_line=lambda line: None) as log:
        loop.run(OUTPUT.value, log)


def report(table: Mapping[str, tuple[str, str]], metrics: Mapping[str, float]) -> None:
    """Prints metrics with their baselines, and writes eval_results.txt.

    Args:
      table: the printed values of the model and of the baseline, by the metric's title.
      metrics: the values for eval_results.txt, by name.
    """
    width = max(map(len, table))
    print(f"\n{'held-out examples':<{width}}  {'model':>8}  baseline")
    for title, (model, baseline) in table.items():
        print(f"{title:<{width}}  {model:>8}  {baseline}")
    lines = [f"{name} = {value:.6g}\n" for name, value in sorted(metrics.items())]
    write_text("eval_results.txt", "".join(lines))


def write_text(name: str, text: str) -> None:
    """Writes a file in --output_dir; it appears only when it is complete."""
    with atomic_file(Path(OUTPUT.value, name)) as path:
        path.write_text(text, encoding="utf-8")
