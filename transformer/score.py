"""What a trained model thinks of texts: a line each, from a file or standard input.

    echo 'def f(x): return x' | python -m transformer.score --model_dir=runs/lm_stdlib
    python -m transformer.score --model_dir=runs/lm_stdlib --input=texts.txt --output=scores.tsv

It prints, for each line, the mean of -ln p over its tokens, their number, and the line.
Lines for an encoder-decoder are an input, a tab, and a target. It takes config.gin from
the folder, or the gin files and settings of `python -m transformer.train`. Exit code:
0, or 1 if there is an error; then nothing is written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer.cli import command_line
from transformer.cli.program import run_main
from transformer.data import DataError
from transformer.data.atomic_files import check_writable, whole_file
from transformer.inference.scoring import Scorer, Text
from transformer.training.load_trained import Trained


def define_flags() -> None:
    """Defines the flags of the command; other modules have some of the same names."""
    flags.DEFINE_string("model_dir", None, "The folder of the run.", required=True)
    flags.DEFINE_string(
        "input", None, "A file of texts, a line each; without one, standard input."
    )
    flags.DEFINE_string(
        "output", None, "The file to write; without one, standard output."
    )
    flags.DEFINE_integer(
        "length", None, "The most tokens of a text; default: the data's."
    )
    flags.DEFINE_integer("batch_size", 8, "Texts at a time.", lower_bound=1)
    flags.adopt_module_key_flags(command_line)  # so that --help shows them


def main(argv: Sequence[str]) -> None:
    """Reads flags, configuration and texts, and tells scores."""
    asked = flags.FLAGS
    with command_line.leaving_plainly():
        command_line.configure_by_flags(argv, model_dir=asked.model_dir)
        if asked.output:
            check_writable(asked.output, "--output")
        command_line.connect_by_flags()
        lines = _lines(asked.input)
        trained = Trained.of(asked.model_dir)
        length = asked.length or trained.data.features(1)["tokens"].shape[1]
        scorer = Scorer(
            trained.model, trained.data.vocabulary, length, asked.batch_size
        )
        found = "".join(_scored(scorer, lines))
        if asked.output:
            _write(asked.output, found)
    if not asked.output:
        print(found, end="", flush=True)


def _scored(scorer: Scorer, lines: Sequence[str]) -> list[str]:
    texts = (
        [_pair(number, line) for number, line in enumerate(lines, 1)]
        if scorer.pairs
        else lines
    )
    return [
        f"{-score.log_prob / score.tokens:.4f}\t{score.tokens}\t{line}\n"
        for score, line in zip(scorer(texts), lines)
    ]


def _lines(path: str | None) -> list[str]:
    try:
        text = Path(path).read_text("utf-8") if path else sys.stdin.read()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from None
    lines = [line for line in text.split("\n") if line]
    if not lines:
        raise DataError("there are no texts: give a line for each.")
    return lines


def _write(path: str, text: str) -> None:
    try:
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise command_line.ConfigError(
            f"cannot write {path}: {error.strerror}."
        ) from None


def _pair(number: int, line: str) -> Text:
    parts = line.split("\t")
    if len(parts) != 2:
        raise DataError(f"line {number} is no input, a tab and a target: {line!r}.")
    return parts[0], parts[1]


if __name__ == "__main__":
    define_flags()
    run_main(main)
