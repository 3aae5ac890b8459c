"""Writes on after prompts, a line each, with the model that a run of training left in
its folder.

    echo "def " | python -m transformer.decode --model_dir=runs/lm_stdlib --temperature=0.7
    python -m transformer.decode --model_dir=runs/translation --beams=4 --input=in.txt \\
        --output=out.txt

The run's own config.gin is read, if no --gin_file is given. A line of input is a
prompt; a line of output is the prompt and what follows, or what an encoder-decoder
answers. In both, "\\n" stands for a new line and "\\\\" for a backslash. --format=text
writes texts as they are, an empty line between them; --format=json has prompt, text and
score.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer.cli import command_line
from transformer.cli.program import run_main
from transformer.data.atomic_files import check_writable, whole_file
from transformer.inference.text_generation import Text, write
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.training.load_trained import Trained
from transformer.training.reporting import metrics

_LETTERS = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_SETTINGS = (
    "max_new_tokens",
    "batch_size",
    "temperature",
    "top_k",
    "top_p",
    "beams",
    "alpha",
)


def define_flags() -> None:
    """Defines the flags of the command; other modules have some of the same names."""
    flags.DEFINE_string("model_dir", None, "The folder of the run.", required=True)
    flags.DEFINE_string(
        "input", None, "A file of prompts; without one, standard input."
    )
    flags.DEFINE_string(
        "output", None, "The file to write; without one, standard output."
    )
    flags.DEFINE_enum("format", "lines", ["lines", "text", "json"], "What is written.")
    flags.DEFINE_integer(
        "max_new_tokens", None, "The most ids that are written after a prompt."
    )
    flags.DEFINE_integer("batch_size", None, "Prompts that are read at a time.")
    flags.DEFINE_float("temperature", None, "0, the default, takes the likeliest.")
    flags.DEFINE_integer("top_k", None, "Draw from so many of the likeliest ids.")
    flags.DEFINE_float(
        "top_p", None, "Draw from the likeliest ids of this probability in all."
    )
    flags.DEFINE_integer("beams", None, "Search with so many beams instead of drawing.")
    flags.DEFINE_float("alpha", None, "Of the length penalty of beams.")
    flags.DEFINE_integer("seed", 0, "Another seed, other draws.")
    flags.DEFINE_multi_string(
        "stop", [], "A text ends before this; there may be several."
    )
    flags.DEFINE_integer("truncate", None, "Prompts are truncated to this many ids.")
    flags.adopt_module_key_flags(command_line)  # so that --help shows them


def main(argv: Sequence[str]) -> None:
    """Reads flags, configuration and prompts, and writes."""
    run(argv, flags.FLAGS)


def run(argv: Sequence[str], asked: Any) -> None:
    """Does what flags ask for, which `asked` has as attributes."""
    settings = {
        name: x for name in _SETTINGS if (x := getattr(asked, name)) is not None
    }
    with command_line.leaving_plainly():
        command_line.configure_by_flags(argv, model_dir=asked.model_dir)
        if asked.output:
            check_writable(asked.output, "--output")
        command_line.connect_by_flags()
        trained, prompts = Trained.of(asked.model_dir), _prompts(asked.input)
        shown = _shown(asked.format, isinstance(trained.model, EncoderDecoder))
        progress = _Progress(len(prompts), trained.step)
        texts = write(
            trained,
            prompts,
            [_plain(x) for x in asked.stop],
            asked.truncate,
            asked.seed,
            **settings,
        )
        with _opened(asked.output) as file:
            for some in texts:
                print(*map(shown, some), sep="\n", file=file, flush=True)
                progress(len(some))


def _prompts(path: str | None) -> list[str]:
    """Returns the lines of a file, or of standard input. Raises ConfigError."""
    try:
        with (
            open(path, encoding="utf-8")
            if path
            else contextlib.nullcontext(sys.stdin) as file
        ):
            lines = [_plain(line.rstrip("\r\n")) for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise command_line.ConfigError(
            f"cannot read {path or 'standard input'}: {error}."
        ) from None
    if not lines:
        raise command_line.ConfigError(
            f"there are no prompts in {path or 'standard input'}.\n  Give one a line."
        )
    return lines


@contextlib.contextmanager
def _opened(path: str | None) -> Iterator[TextIO]:
    """Gives a file to write, which is there at the end as a whole or not; or standard
    output.
    """
    if path is None:
        yield sys.stdout
        return
    try:
        with whole_file(path) as partial, open(partial, "w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise command_line.ConfigError(
            f"cannot write {path}: {error.strerror}."
        ) from None


def _plain(line: str) -> str:
    """Returns a line with the letters that are meant."""
    meant = {written: letter for letter, written in _LETTERS.items()}
    return re.sub(r"\\[nrt\\]", lambda found: meant[found[0]], line)


def _shown(kind: str, answers: bool) -> Callable[[Text], str]:
    """Returns how a text is written."""

    def whole(text: Text) -> str:
        return text.text if answers else text.prompt + text.text

    return {
        "json": lambda text: json.dumps(text._asdict(), ensure_ascii=False),
        "text": lambda text: whole(text) + "\n",
        "lines": lambda text: re.sub(
            r"[\n\r\t\\]", lambda found: _LETTERS[found[0]], whole(text)
        ),
    }[kind]


class _Progress:
    """Says now and then, on standard error, how many prompts are done."""

    def __init__(self, number: int, step: int) -> None:
        self.number = number
        self.done = 0
        self.began = time.monotonic()
        self.said = self.began
        print(
            f"{number:,} prompts, model of step {step:,}", file=sys.stderr, flush=True
        )

    def __call__(self, more: int) -> None:
        self.done += more
        now = time.monotonic()
        if now - self.said > 5 and self.done < self.number:
            left = (now - self.began) / self.done * (self.number - self.done)
            print(
                f"{self.done:,}/{self.number:,} prompts  {metrics.duration(left)} left",
                file=sys.stderr,
                flush=True,
            )
            self.said = now


if __name__ == "__main__":
    define_flags()
    run_main(main)
