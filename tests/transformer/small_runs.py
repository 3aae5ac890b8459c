"""Small training runs for tests: a few seconds each, on text that a test writes."""

from __future__ import annotations

import gin
from absl import flags
from absl.testing import flagsaver

from transformer import train
from transformer.cli import command_line

WORDS = ["def ", "return ", "self.", "x = y + 1\n", "for i in range(10):\n"]
SMALL = [
    "steps = 2",
    "Architecture.d_model = 16",
    "Architecture.d_ff = 32",
    "Architecture.heads = 2",
    "Architecture.d_kv = 8",
    "Architecture.blocks = 2",
    "ByteText.length = 16",
    "ByteText.corpus = @data.text_files",
    "train.batch_size = 4",
    "train.report_every = 1",
    "Evaluation.num_examples = 4",
    "sample.max_new_tokens = 3",
    "warmup_cosine.warmup_steps = 1",
]


def small(folder, *params):
    """Writes a text to a folder; returns settings of gin that learn from it, and some
    more.
    """
    for k in range(4):
        text = "".join(WORDS[(k * i + i // 3) % 5] for i in range(150))
        (folder / f"{k}.txt").write_text(text, encoding="utf-8")
    return [*SMALL, f"data.text_files.pattern = '{folder}/*.txt'", *params]


def run_train(capsys, model_dir, params, files=("lm_stdlib.gin",)):
    """Runs `python -m transformer.train` in this process; returns exit code, stdout and
    stderr.
    """
    gin.clear_config()
    flags.FLAGS(["train"])
    code = 0
    with flagsaver.flagsaver(
        gin_file=list(files), gin_param=list(params), model_dir=str(model_dir)
    ):
        try:
            train.main(["train"])
        except SystemExit as left:
            code = left.code
        finally:
            gin.clear_config()
    return (code, *capsys.readouterr())


def configured(model_dir):
    """Gives gin the settings that a run left."""
    gin.clear_config()
    command_line.configure([f"{model_dir}/config.gin"], [])
