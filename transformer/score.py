"""Prints the loss that a trained model has on texts, one per line.

    echo 'def f(x): return x' | python -m transformer.score --model_dir=runs/lm_stdlib
    python -m transformer.score --model_dir=runs/lm_stdlib --input=texts.txt --output=scores.tsv

For each line of the input it prints the mean of -ln p over the tokens, their count, and
the line, separated by tabs. For an encoder-decoder a line is an input, a tab, and a
target.

The configuration is config.gin of the run's folder, unless --gin_file is given. Exit
code: 0, or 1 if there is an error; then nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer.cli import command_line
from transformer.cli.program import run_main

if TYPE_CHECKING:
    from transformer.inference.scoring import Scorer, Text


def define_flags() -> None:
    """Defines the flags of the command.

    They are not defined at import: absl raises an error if a flag is defined twice, and
    other commands have flags of the same names.
    """
    flags.DEFINE_string("model_dir", None, "The folder of the run.", required=True)
    flags.DEFINE_string(
        "input", None, "A file with a text per line; default: standard input."
    )
    flags.DEFINE_string("output", None, "The file to write; default: standard output.")
    flags.DEFINE_integer(
        "length",
        None,
        "The maximum count of tokens of a text; default: that of training.",
    )
    flags.DEFINE_integer("batch_size", 8, "Texts per batch.", lower_bound=1)
    flags.adopt_module_key_flags(command_line)  # so that --help shows them


def main(argv: Sequence[str]) -> None:
    """Reads flags, configuration and texts, and prints scores."""
    # Imports of TensorFlow are in functions, so that --help is fast.
    from transformer.data.atomic_files import check_writable
    from transformer.inference.scoring import Scorer
    from transformer.training.load_trained import Trained

    args = flags.FLAGS
    with command_line.exit_on_user_errors():
        command_line.configure_by_flags(argv, model_dir=args.model_dir)
        if args.output:
            check_writable(args.output, name="--output")
        command_line.connect_by_flags()
        lines = _read_lines(args.input)
        trained = Trained.of(args.model_dir)
        # Only the length of the tokens is needed, which is the same for every batch size.
        tokens_spec = trained.data.features(batch_size=1)["tokens"]
        length = args.length or tokens_spec.shape[1]
        scorer = Scorer(
            trained.model,
            trained.data.vocabulary,
            length=length,
            batch_size=args.batch_size,
        )
        table = _score_table(scorer, lines)
        with command_line.output_file(args.output) as file:
            print(table, end="", file=file, flush=True)


def _score_table(scorer: Scorer, lines: Sequence[str]) -> str:
    """Returns a line for each text, with tabs between three columns: the mean of -ln p over
    the tokens, the count of tokens, and the text.

    Args:
      scorer: scores texts by a trained model.
      lines: the texts; for an encoder-decoder, each is an input, a tab, and a target.
    """
    texts: Sequence[Text] = lines
    if scorer.has_encoder:
        texts = [_split_pair(index, line) for index, line in enumerate(lines)]
    rows = []
    for score, line in zip(scorer(texts), lines):
        loss = -score.log_prob / score.num_tokens
        rows.append(f"{loss:.4f}\t{score.num_tokens}\t{line}\n")
    return "".join(rows)


def _read_lines(path: str | None) -> list[str]:
    """Returns the non-empty lines of a file.

    Args:
      path: the path of the file; None: standard input.

    Raises:
      ConfigError: the file cannot be read.
      DataError: all lines are empty.
    """
    from transformer.data import DataError

    lines = [line for line in command_line.read_text(path).split("\n") if line]
    if not lines:
        raise DataError("there are no texts.\n  Give one per line.")
    return lines


def _split_pair(index: int, line: str) -> tuple[str, str]:
    """Returns the input and the target of a line, with a tab between them.

    Args:
      index: the index of the line, from 0, for the message.
      line: the line.

    Raises:
      DataError: the line does not have exactly one tab.
    """
    from transformer.data import DataError

    fields = line.split("\t")
    if len(fields) != 2:
        raise DataError(
            f"line {index + 1} is not an input, a tab and a target: {line!r}."
        )
    source, target = fields
    return source, target


if __name__ == "__main__":
    define_flags()
    run_main(main)
