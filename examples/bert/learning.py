"""What the three programs that train share: flags, how they start, learn, and measure.

    trainer = learning.trainer(model, steps, warmup)
    learning.start(trainer)                         # --output_dir, or else --init_checkpoint
    learning.learn(trainer, examples, steps)
    numbers = Evaluation(model, examples, batch=8)()

A program that is started again goes on from the last checkpoint in --output_dir.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from absl import flags

import meshtf as mtf
from examples.bert import settings
from transformer import command, data
from transformer.data.writing import whole_file
from transformer.models.base import Model
from transformer.runs.loop import Loop
from transformer.runs.metrics import Metrics
from transformer.runs.trainer import Trainer

OUTPUT = flags.DEFINE_string("output_dir", None, "Where checkpoints and results are written.")
INIT = flags.DEFINE_string("init_checkpoint", None, "A checkpoint to begin with, or a folder of "
                           "some: what this model shares with it is read, the rest is drawn.")
TRAIN = flags.DEFINE_bool("do_train", False, "Whether to train.")
EVAL = flags.DEFINE_bool("do_eval", False, "Whether to measure on held-out examples.")
PREDICT = flags.DEFINE_bool("do_predict", False, "Whether to tell what is not known.")
TRAIN_BATCH = flags.DEFINE_integer("train_batch_size", 32, "Rows of a step.", lower_bound=1)
EVAL_BATCH = flags.DEFINE_integer("eval_batch_size", 8, "Rows that are measured at a time.",
                                  lower_bound=1)
RATE = flags.DEFINE_float("learning_rate", 5e-5, "The highest one.")
OPTIMIZER = flags.DEFINE_enum("optimizer", "adamw", ["adamw", "lamb"], "AdamW or LAMB.")
DECAY = flags.DEFINE_float("weight_decay", 0.01, "Of all but biases and norms.")
SAVE_EVERY = flags.DEFINE_integer("save_checkpoints_steps", 1000, "Steps between checkpoints.",
                                  lower_bound=1)
REPORT_EVERY = flags.DEFINE_integer("report_every", 50, "Steps between lines of progress.",
                                    lower_bound=1)
EPOCHS = flags.DEFINE_float("num_train_epochs", 3.0, "How often each example is learnt from.")
WARMUP = flags.DEFINE_float("warmup_proportion", 0.1, "The part of all steps in which the rate "
                            "climbs.")
ON_BAD = flags.DEFINE_enum("on_bad", "refuse", ["refuse", "skip"], "What becomes of examples that "
                           "are malformed.")
JIT = flags.DEFINE_bool("jit", False, "Whether XLA compiles the local work.")


class Given:
  """A source of examples that are held already."""

  def __init__(self, train: Sequence[data.sources.Example],
               held_out: Sequence[data.sources.Example] = ()) -> None:
    self._train, self._held_out = train, held_out

  def train(self) -> Sequence[data.sources.Example]:
    return self._train

  def held_out(self) -> Sequence[data.sources.Example]:
    return self._held_out


def steps_of(examples: int) -> tuple[int, int]:
  """Returns how many steps --num_train_epochs are, and in how many of them the rate climbs."""
  steps = max(int(examples * EPOCHS.value / TRAIN_BATCH.value), 1)
  return steps, int(steps * WARMUP.value)


def trainer(model: Model, steps: int, warmup: int) -> Trainer:
  """Returns what takes steps: the rate climbs in a line, and falls in one to 0 at the last step;
  gradients are clipped to a norm of 1; biases and norms do not decay."""
  rate = mtf.optimizers.product(RATE.value, mtf.optimizers.linear_warmup(warmup),
                                mtf.optimizers.linear_decay(steps, steps - warmup))
  decays = mtf.optimizers.unless_named(settings.SMALL)

  def optimizer(variables: Sequence[mtf.Variable]) -> mtf.optimizers.Optimizer:
    kind = mtf.optimizers.AdamW if OPTIMIZER.value == "adamw" else mtf.optimizers.LAMB
    return kind(variables, rate, weight_decay=DECAY.value, epsilon=1e-6, decays=decays)

  return Trainer(model, optimizer, seed=settings.SEED.value, clip_norm=1.0, jit=JIT.value)


def introduce(model: Model, examples: object) -> None:
  """Prints what is about to learn from what, and where."""
  parameters = sum(math.prod(v.shape.sizes) for v in model.variables)
  print(f"examples {examples}\nmodel    {parameters:,} parameters; {model.architecture}\n"
        f"mesh     {model.mesh!r}, layout {model.mesh.layout!r}", flush=True)


def start(trainer: Trainer, part: str = "bert/") -> None:
  """Goes on from the last checkpoint in --output_dir; without one, reads --init_checkpoint.

  Args:
    trainer: whose model begins so.
    part: how the names of the variables begin that --init_checkpoint must have: those of the
      encoder have one path in all models. The others are drawn.

  Raises:
    CheckpointError: a checkpoint is of another model.
    DataError: --init_checkpoint is not there; or neither is, and nothing is to be learned.
  """
  if trainer.restore(OUTPUT.value):
    print(f"going on from step {trainer.steps_done} in {OUTPUT.value}", flush=True)
  elif INIT.value:
    found = mtf.latest_checkpoint(INIT.value)
    path = found[1] if found else INIT.value
    if not Path(path).is_dir():
      raise data.DataError(f"--init_checkpoint={path}: there is no such checkpoint.")
    shared = {v.name: v for v in trainer.model.variables if v.name.startswith(part)}
    mtf.restore_checkpoint(path, shared, partly=True)
    print(f"beginning with {len(shared)} of {len(trainer.model.variables)} variables, of {path}",
          flush=True)
  elif not TRAIN.value:
    raise data.DataError(f"there is no checkpoint in {OUTPUT.value}, and nothing was learned: a "
                         "model of random numbers is not worth measuring.\n  Give --do_train, or "
                         "--init_checkpoint.")


@contextlib.contextmanager
def leaving_plainly() -> Iterator[None]:
  """Ends the program with a message, and no traceback, for what is the user's to mend or wish."""
  try:
    with command.leaving_plainly():
      yield
  except KeyboardInterrupt:
    command.leave(f"\nInterrupted. The same command goes on from what is saved in {OUTPUT.value}.")


def learn(trainer: Trainer, examples: data.Data, steps: int) -> None:
  """Takes steps until so many are done in all; saves at the end, now and then, and at Ctrl-C.

  Raises:
    KeyboardInterrupt: Ctrl-C was pressed; the step was finished, and saved.
    NumericsError: a loss is no finite number.
  """
  loop = Loop(trainer, examples, steps, TRAIN_BATCH.value, report_every=REPORT_EVERY.value,
              save_every=SAVE_EVERY.value)
  with Metrics(OUTPUT.value, trainer.steps_done, say=lambda line: None) as log:
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
  write_text("eval_results.txt", "".join(f"{k} = {v:.6g}\n" for k, v in sorted(numbers.items())))


def write_text(name: str, text: str) -> None:
  """Writes a file in --output_dir, whole or not at all."""
  with whole_file(Path(OUTPUT.value, name)) as path:
    path.write_text(text, encoding="utf-8")
