"""Flags of the three programs that train.

This module does not import TensorFlow, so that --help and errors of usage take a fraction
of a second.
"""

from __future__ import annotations

from absl import flags

from examples.bert.shared import program_flags
from transformer.cli import command_line

OUTPUT = flags.DEFINE_string(
    "output_dir", None, "The folder for checkpoints and results."
)
INIT = flags.DEFINE_string(
    "init_checkpoint",
    None,
    "An initial checkpoint, or a folder whose last checkpoint is taken: variables that "
    "it shares with this model are read, the others are initialized randomly.",
)
TRAIN = flags.DEFINE_bool("do_train", False, "Whether to train.")
EVAL = flags.DEFINE_bool("do_eval", False, "Whether to evaluate on held-out examples.")
PREDICT = flags.DEFINE_bool("do_predict", False, "Whether to write predictions.")
TRAIN_BATCH = flags.DEFINE_integer(
    "train_batch_size", 32, "Examples of a training step.", lower_bound=1
)
EVAL_BATCH = flags.DEFINE_integer(
    "eval_batch_size", 8, "Examples of an evaluation batch.", lower_bound=1
)
RATE = flags.DEFINE_float("learning_rate", 5e-5, "The peak learning rate.")
OPTIMIZER = flags.DEFINE_enum("optimizer", "adamw", ["adamw", "lamb"], "AdamW or LAMB.")
DECAY = flags.DEFINE_float(
    "weight_decay", 0.01, "Weight decay, except of biases and norms."
)
SAVE_EVERY = flags.DEFINE_integer(
    "save_checkpoints_steps", 1000, "Steps between checkpoints.", lower_bound=1
)
REPORT_EVERY = flags.DEFINE_integer(
    "report_every", 50, "Steps between printed lines.", lower_bound=1
)
EPOCHS = flags.DEFINE_float(
    "num_train_epochs", 3.0, "Passes over the training examples."
)
WARMUP = flags.DEFINE_float(
    "warmup_proportion", 0.1, "The fraction of steps with linear warmup of the rate."
)
ON_BAD = flags.DEFINE_enum(
    "on_bad",
    "refuse",
    ["refuse", "skip"],
    "Whether a malformed example is an error, or is skipped.",
)
JIT = flags.DEFINE_bool("jit", False, "Whether XLA compiles the local work.")
for _flag in (command_line.GIN_FILE, command_line.GIN_PARAM, command_line.GIN_IMPORT):
    flags.declare_key_flag(_flag.name)  # so that --help shows it
# Gin settings with the same meaning as a flag.
OVERLAPS = program_flags.OVERLAPS | {
    "train.batch_size": TRAIN_BATCH,
    "train.init_checkpoint": INIT,
    "train.report_every": REPORT_EVERY,
    "train.save_every": SAVE_EVERY,
    "train.jit": JIT,
}
