"""What the three programs that train share: flags, how they start, learn, and measure.

    fine_tuning.prepare(argv)          # gin, and whether --output_dir can be written
    trainer = fine_tuning.trainer(model, steps, warmup)
    fine_tuning.train(trainer, examples, steps)      # from the checkpoint that there is
    numbers = Evaluation(model, examples, batch_size=8)()

A program that is started again goes on from the last checkpoint in --output_dir.
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
from examples.bert.shared import gin_configuration, program_flags
from transformer import data
from transformer.cli import command_line
from transformer.data.atomic_files import atomic_file, check_folder
from transformer.models.base import Model
from transformer.training import run_record, training_run
from transformer.training.loop import Loop
from transformer.training.reporting import run_report
from transformer.training.reporting.metrics import Metrics
from transformer.training.trainer import Trainer

OUTPUT = flags.DEFINE_string(
    "output_dir", None, "Where checkpoints and results are written."
)
INIT = flags.DEFINE_string(
    "init_checkpoint",
    None,
    "A checkpoint to begin with, or a folder of some: what this model shares with it "
    "is read, the rest is drawn.",
)
TRAIN = flags.DEFINE_bool("do_train", False, "Whether to train.")
EVAL = flags.DEFINE_bool("do_eval", False, "Whether to measure on held-out examples.")
PREDICT = flags.DEFINE_bool("do_predict", False, "Whether to tell what is not known.")
TRAIN_BATCH = flags.DEFINE_integer(
    "train_batch_size", 32, "Rows of a step.", lower_bound=1
)
EVAL_BATCH = flags.DEFINE_integer(
    "eval_batch_size", 8, "Rows that are measured at a time.", lower_bound=1
)
RATE = flags.DEFINE_float("learning_rate", 5e-5, "The highest one.")
OPTIMIZER = flags.DEFINE_enum("optimizer", "adamw", ["adamw", "lamb"], "AdamW or LAMB.")
DECAY = flags.DEFINE_float("weight_decay", 0.01, "Of all but biases and norms.")
SAVE_EVERY = flags.DEFINE_integer(
    "save_checkpoints_steps", 1000, "Steps between checkpoints.", lower_bound=1
)
REPORT_EVERY = flags.DEFINE_integer(
    "report_every", 50, "Steps between lines of progress.", lower_bound=1
)
EPOCHS = flags.DEFINE_float(
    "num_train_epochs", 3.0, "How often each example is learnt from."
)
WARMUP = flags.DEFINE_float(
    "warmup_proportion", 0.1, "The part of all steps in which the rate climbs."
)
ON_BAD = flags.DEFINE_enum(
    "on_bad",
    "refuse",
    ["refuse", "skip"],
    "What becomes of examples that are malformed.",
)
JIT = flags.DEFINE_bool("jit", False, "Whether XLA compiles the local work.")
for name in ("gin_file", "gin_param", "gin_import"):  # so that --help shows them
    flags.declare_key_flag(name)
FILES = (
    *training_run.FILES,
    "*results.t*",
    "*predictions.json",
    "null_odds.json",
)  # of programs
_LOOP = {"keep": 2, "keep_every": 0, "async_save": False, "profile": None}
OVERLAPS = program_flags.OVERLAPS | {  # settings of gin that say the same as a flag
    "train.batch_size": TRAIN_BATCH,
    "train.report_every": REPORT_EVERY,
    "train.save_every": SAVE_EVERY,
    "train.jit": JIT,
}


def prepare(argv: Sequence[str], **more: flags.FlagHolder[Any]) -> None:
    """Reads gin's settings, and sees that --output_dir can be written.

    Args:
      argv: what is left of the command line.
      **more: by names of gin's settings of `train`, flags that say the same.

    Raises:
      ConfigError: a setting is wrong.
      DataError: the folder cannot be written, or is full of something else.
    """
    gin_configuration.read(
        argv, OVERLAPS | {f"train.{name}": flag for name, flag in more.items()}
    )
    check_folder(OUTPUT.value, "--output_dir", FILES)


class Given:
    """A source of examples that are held already."""

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
    """Returns how many steps --num_train_epochs are, and in how many of them the rate
    climbs.
    """
    steps = max(int(examples * EPOCHS.value / TRAIN_BATCH.value), 1)
    return steps, int(steps * WARMUP.value)


def trainer(model: Model, steps: int, warmup: int) -> Trainer:
    """Returns what takes steps: the rate climbs in a line, and falls in one to 0 at the
    last step; gradients are clipped to a norm of 1; biases and norms do not decay. Gin
    may say otherwise.

    Raises:
      ConfigError: a flag is given that the optimizer does not take, or a setting has no
        effect.
    """
    gin_configuration.of_train(
        **_LOOP
    )  # that they are heeded is known before they are needed
    own = gin_configuration.of_train(
        clip_norm=1.0, microbatches=1, skip_nonfinite_steps=False
    )
    found = Trainer(
        model,
        optimizer_of(steps, warmup),
        seed=program_flags.SEED.value,
        jit=JIT.value,
        **own,
    )
    found.record = {f"train.{name}": value for name, value in own.items()} | {
        "steps": steps,
        "steps of the climb": warmup,
        "--learning_rate": RATE.value,
        "--train_batch_size": TRAIN_BATCH.value,
    }
    return found


def optimizer_of(steps: int, warmup: int) -> Callable[..., mtf.optimizers.Optimizer]:
    """Returns what makes the optimizer of the flags, with what gin binds of it."""
    rate = mtf.optimizers.product(
        RATE.value,
        mtf.optimizers.linear_warmup(warmup),
        mtf.optimizers.linear_decay(steps, steps - warmup),
    )
    kind = gin_configuration.configured(
        mtf.optimizers.AdamW if OPTIMIZER.value == "adamw" else mtf.optimizers.LAMB
    )
    if gin_configuration.is_bound("train.optimizer"):
        if gin_configuration.given(OPTIMIZER):
            gin_configuration.overruled("train.optimizer", OPTIMIZER)
        else:
            kind = gin_configuration.of_train(optimizer=None)["optimizer"]
    name = kind.__name__
    settled = {}
    for parameter, value, flag in (
        ("learning_rate", rate, RATE),
        ("weight_decay", DECAY.value, DECAY),
        ("epsilon", 1e-6, None),
        ("decay_mask", mtf.optimizers.exclude_names(program_flags.SMALL), None),
    ):
        given = flag is not None and gin_configuration.given(flag)
        if parameter not in gin_configuration.takes(name):
            if given:
                raise command_line.ConfigError(
                    f"--{flag.name}={flag.value}: {name} takes no {parameter}.\n"
                    "  Leave it out, or take another optimizer."
                )
        elif not gin_configuration.is_bound(f"{name}.{parameter}"):
            settled[parameter] = value
        elif given:
            gin_configuration.overruled(f"{name}.{parameter}", flag)
            settled[parameter] = value
    return functools.partial(kind, **settled)


def introduce(model: Model, examples: object) -> None:
    """Prints what is about to learn from what, and where, and what gin says in vain.

    Raises:
      ConfigError: --gin_param has a setting without effect.
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
    trainer: Trainer, rows: data.TaskData | None, steps: int, part: str = "bert/"
) -> None:
    """Starts from a checkpoint, and learns if --do_train says so: see `start`.

    Raises:
      CheckpointError: another process trains in --output_dir; and as `start`.
    """
    with contextlib.ExitStack() as stack:
        # A folder that is not there has nothing to read, and is made when learning
        # begins: what is wrong is told before.
        is_there = Path(OUTPUT.value).is_dir()
        if TRAIN.value and is_there:
            stack.enter_context(mtf.checkpoints.only_run(OUTPUT.value))
        start(trainer, rows, steps, part)
        if not TRAIN.value:
            return
        if not is_there:
            stack.enter_context(mtf.checkpoints.only_run(OUTPUT.value))
        learn(trainer, rows, steps)


def start(
    trainer: Trainer,
    rows: data.TaskData | None = None,
    steps: int = 0,
    part: str = "bert/",
) -> None:
    """Goes on from the last checkpoint in --output_dir; without one, reads
    --init_checkpoint.

    Args:
      trainer: whose model begins so.
      rows: what is learned from; None: it is not told, nor is its vocabulary compared.
      steps: how many there are to be in all.
      part: how the names of the variables begin that --init_checkpoint must have: those
        of the encoder have one path in all models. The others are drawn.

    Raises:
      CheckpointError: a checkpoint is of another model or vocabulary.
      DataError: --init_checkpoint is not there; or neither is, and nothing is to be
        learned.
    """
    if rows is not None:
        learned = f"{rows.task.name}, {len(rows.task.source.train()):,} examples to learn from"
        trainer.record = run_record.of_run(
            trainer, rows, {"data": learned, **trainer.record}
        )
    if trainer.restore(OUTPUT.value):
        _going_on(trainer, rows, steps)
    elif INIT.value:
        found = mtf.checkpoints.latest(INIT.value)
        path = found[1] if found else INIT.value
        if not Path(path).is_dir():
            raise data.DataError(
                f"--init_checkpoint={path}: there is no such checkpoint."
            )
        if rows is not None:
            extra = mtf.checkpoints.Manifest.read(path).extra
            run_record.check_vocabulary(
                extra, rows.vocabulary, f"--init_checkpoint={path}"
            )
        shared = {v.name: v for v in trainer.model.variables if v.name.startswith(part)}
        mtf.checkpoints.restore(path, shared, partly=True)
        print(
            f"beginning with {len(shared)} of {len(trainer.model.variables)} "
            f"variables, of {path}",
            flush=True,
        )
    elif not TRAIN.value:
        raise data.DataError(
            f"there is no checkpoint in {OUTPUT.value}, and nothing was learned: a "
            "model of random numbers is not worth measuring.\n  Give --do_train, or "
            "--init_checkpoint."
        )


def _going_on(trainer: Trainer, rows: data.TaskData | None, steps: int) -> None:
    """Prints what was found in --output_dir, and which settings are others now."""
    done = trainer.steps_done
    changed = []
    if rows is not None:
        run_record.check_vocabulary(
            trainer.restored, rows.vocabulary, f"the run in {OUTPUT.value}"
        )
        changed = run_record.differences(trainer.restored, trainer.record)
    if not TRAIN.value:
        print(f"the model is that of step {done} in {OUTPUT.value}", flush=True)
        return
    for line in changed:
        print(f"changed  {line}", flush=True)
    print(
        run_report.finished(done, steps, bool(changed), "output_dir")
        if done >= steps > 0
        else f"continuing from step {done} in {OUTPUT.value}",
        flush=True,
    )


@contextlib.contextmanager
def exit_on_user_errors() -> Iterator[None]:
    """Ends the program with a message, and no traceback, for what is the user's to mend
    or wish.
    """
    try:
        with command_line.exit_on_user_errors():
            yield
    except KeyboardInterrupt:
        command_line.exit_with_message(
            "\nInterrupted. The same command goes on from what is saved in "
            f"{OUTPUT.value}."
        )


def learn(trainer: Trainer, examples: data.Data, steps: int) -> None:
    """Takes steps until so many are done in all; saves at the end, now and then, and at
    Ctrl-C.

    Raises:
      KeyboardInterrupt: Ctrl-C was pressed; the step was finished, and saved.
      NumericsError: a loss is no finite number.
    """
    own = gin_configuration.of_train(**_LOOP)
    loop = Loop(
        trainer,
        examples,
        steps,
        TRAIN_BATCH.value,
        report_every=REPORT_EVERY.value,
        save_every=SAVE_EVERY.value,
        **own,
    )
    with Metrics(OUTPUT.value, trainer.steps_done, print_line=lambda line: None) as log:
        loop.run(OUTPUT.value, log)


def report(rows: Mapping[str, tuple[str, str]], numbers: Mapping[str, float]) -> None:
    """Prints what was measured beside its baseline, and writes eval_results.txt.

    Args:
      rows: by what it is, the model's number and the baseline's, as text.
      numbers: by name, what is written.
    """
    wide = max(map(len, rows))
    print(f"\n{'held-out examples':<{wide}}  {'model':>8}  baseline")
    for name, (ours, baseline) in rows.items():
        print(f"{name:<{wide}}  {ours:>8}  {baseline}")
    write_text(
        "eval_results.txt",
        "".join(f"{k} = {v:.6g}\n" for k, v in sorted(numbers.items())),
    )


def write_text(name: str, text: str) -> None:
    """Writes a file in --output_dir, whole or not at all."""
    with atomic_file(Path(OUTPUT.value, name)) as path:
        path.write_text(text, encoding="utf-8")
