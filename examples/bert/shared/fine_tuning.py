"""Training and evaluation, shared by the three programs that train.

    fine_tuning.prepare(argv)          # gin, and whether --output_dir can be written
    trainer = fine_tuning.trainer(model, steps, warmup)
    fine_tuning.train(trainer, examples, steps)      # from the last checkpoint, if any
    metrics = Evaluation(model, examples, batch_size=8)()

A program that is started again continues from the last checkpoint in --output_dir.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

import meshtf as mtf
from examples.bert.shared import gin_configuration, model_setup, program_flags
from examples.bert.shared.training_flags import (
    DECAY,
    EPOCHS,
    INIT,
    JIT,
    OPTIMIZER,
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
    "null_odds.json",
)
# Defaults of the settings that are passed to `Loop`, unless gin binds them.
_LOOP_DEFAULTS = {"keep": 2, "keep_every": 0, "async_save": False, "profile": None}


def prepare(argv: Sequence[str], **train_flags: flags.FlagHolder[Any]) -> None:
    """Reads gin's settings, and checks that --output_dir can be written.

    Args:
      argv: the arguments of the command line that are no flags.
      **train_flags: further flags with the same meaning as gin settings of `train`, by the
        names of these settings.

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
    gin_configuration.train_settings(
        **_LOOP_DEFAULTS
    )  # marks them as used; `learn` reads them
    settings = gin_configuration.train_settings(
        clip_norm=1.0, microbatches=1, skip_nonfinite_steps=False
    )
    trainer = Trainer(
        model,
        optimizer_of(steps, warmup),
        seed=program_flags.SEED.value,
        jit=JIT.value,
        **settings,
    )
    trainer.record = {f"train.{name}": value for name, value in settings.items()} | {
        "steps": steps,
        "warmup steps": warmup,
        "--learning_rate": RATE.value,
        "--train_batch_size": TRAIN_BATCH.value,
    }
    return trainer


def optimizer_of(steps: int, warmup: int) -> Callable[..., mtf.optimizers.Optimizer]:
    """Returns a function of variables that makes the optimizer of the flags, with the
    parameters that gin binds.

    Raises:
      ConfigError: the optimizer has no parameter for a given flag.
    """
    rate = mtf.optimizers.product(
        RATE.value,
        mtf.optimizers.linear_warmup(warmup),
        mtf.optimizers.linear_decay(steps, steps - warmup),
    )
    kind = gin_configuration.configured(
        mtf.optimizers.AdamW if OPTIMIZER.value == "adamw" else mtf.optimizers.LAMB
    )
    if gin_configuration.is_bound("train.optimizer"):
        if gin_configuration.is_given(OPTIMIZER):
            gin_configuration.record_override("train.optimizer", OPTIMIZER)
        else:
            kind = gin_configuration.train_settings(optimizer=None)["optimizer"]
    name = kind.__name__
    arguments = {}
    for parameter, value, flag in (
        ("learning_rate", rate, RATE),
        ("weight_decay", DECAY.value, DECAY),
        ("epsilon", 1e-6, None),
        ("decay_mask", mtf.optimizers.exclude_names(model_setup.SMALL), None),
    ):
        is_given = flag is not None and gin_configuration.is_given(flag)
        if parameter not in gin_configuration.parameter_names(name):
            if is_given:
                raise command_line.ConfigError(
                    f"--{flag.name}={flag.value}: {name} has no {parameter}.\n"
                    "  Leave it out, or choose another optimizer."
                )
        elif not gin_configuration.is_bound(f"{name}.{parameter}"):
            arguments[parameter] = value
        elif is_given:
            gin_configuration.record_override(f"{name}.{parameter}", flag)
            arguments[parameter] = value
    return functools.partial(kind, **arguments)


def introduce(model: Model, examples: object) -> None:
    """Prints examples, model and mesh, and gin settings that are overridden or unused.

    Args:
      model: the model.
      examples: a description of the examples, or an object that prints as one.

    Raises:
      ConfigError: a setting of --gin_param has no effect.
    """
    notes = gin_configuration.refuse_unused()
    parameters = sum(math.prod(v.shape.sizes) for v in model.variables)
    print(
        f"examples {examples}\nmodel    {parameters:,} parameters; "
        f"{model.architecture}\n"
        f"mesh     {model.mesh}, layout {model.mesh.layout!r}",
        flush=True,
    )
    for line in notes:
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
        # A missing folder is only made when training starts, after all errors of `start`.
        folder_exists = Path(OUTPUT.value).is_dir()
        if TRAIN.value and folder_exists:
            stack.enter_context(mtf.checkpoints.only_run(OUTPUT.value))
        start(trainer, examples, steps, prefix)
        if not TRAIN.value:
            return
        if not folder_exists:
            stack.enter_context(mtf.checkpoints.only_run(OUTPUT.value))
        learn(trainer, examples, steps)


def start(
    trainer: Trainer,
    examples: data.TaskData | None = None,
    steps: int = 0,
    prefix: str = "bert/",
) -> None:
    """Restores the last checkpoint in --output_dir; without one, reads --init_checkpoint.

    Args:
      trainer: the trainer of the model.
      examples: the training examples; None: neither they nor their vocabulary are
        recorded and compared.
      steps: the total number of steps.
      prefix: --init_checkpoint must have the variables whose names start with it; those of
        the encoder have the same names in all models. The others keep their random
        initial values.

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
        latest = mtf.checkpoints.latest(INIT.value)
        path = latest[1] if latest else INIT.value
        if not Path(path).is_dir():
            raise data.DataError(
                f"--init_checkpoint={path}: there is no such checkpoint."
            )
        if examples is not None:
            extra = mtf.checkpoints.Manifest.read(path).extra
            run_record.check_vocabulary(
                extra, examples.vocabulary, f"--init_checkpoint={path}"
            )
        shared = {
            v.name: v for v in trainer.model.variables if v.name.startswith(prefix)
        }
        mtf.checkpoints.restore(path, shared, partly=True)
        print(
            f"read {len(shared)} of {len(trainer.model.variables)} variables from {path}",
            flush=True,
        )
    elif not TRAIN.value:
        raise data.DataError(
            f"there is no checkpoint in {OUTPUT.value}: the model would have random "
            "variables.\n  Give --do_train or --init_checkpoint."
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
            steps_done, steps, bool(changed_settings), "output_dir"
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


def learn(trainer: Trainer, examples: data.Data, steps: int) -> None:
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
        steps,
        TRAIN_BATCH.value,
        report_every=REPORT_EVERY.value,
        save_every=SAVE_EVERY.value,
        **settings,
    )
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
