"""Generates text after prompts with a trained model.

    echo "def " | python -m transformer.decode --model_dir=runs/lm_stdlib --temperature=0.7
    python -m transformer.decode --model_dir=runs/translation --num_beams=4 --input=in.txt \\
        --output=out.txt

Each line of the input is a prompt. For each prompt, one line is written: the prompt with its
completion or, for an encoder-decoder, the output without the prompt. In input and output
lines, "\\n" means a new line and "\\\\" a backslash. --format=text writes texts
unescaped, with an empty line after each; --format=json writes JSON lines with prompt, text
and score.

The configuration is config.gin of the run's folder, unless --gin_file is given. Exit
code: 0, or 1 if there is an error; then no file is written.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer.cli import command_line
from transformer.cli.program import run_main

if TYPE_CHECKING:
    from transformer.inference.text_generation import TextCompletion

# Character -> its escape sequence in input and output lines.
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
# Flags that are arguments of `transformer.inference.decoder.Decoder`, by their names.
_DECODER_FLAGS = (
    "max_new_tokens",
    "batch_size",
    "temperature",
    "top_k",
    "top_p",
    "num_beams",
    "alpha",
)
_SECONDS_PER_MESSAGE = 5.0  # the minimum time between two lines of progress


def define_flags() -> None:
    """Defines the flags of the command.

    They are not defined at import: absl raises an error if a flag is defined twice, and
    other commands have flags of the same names.
    """
    flags.DEFINE_string("model_dir", None, "The folder of the run.", required=True)
    flags.DEFINE_string(
        "input", None, "A file with a prompt per line; default: standard input."
    )
    flags.DEFINE_string("output", None, "The file to write; default: standard output.")
    flags.DEFINE_enum(
        "format", "lines", ["lines", "text", "json"], "The format of the output."
    )
    flags.DEFINE_integer(
        "max_new_tokens", None, "The maximum number of tokens to generate for a prompt."
    )
    flags.DEFINE_integer("batch_size", None, "Prompts per batch.")
    flags.DEFINE_float(
        "temperature",
        None,
        "Divides logits before sampling; 0, the default, takes the likeliest token.",
    )
    flags.DEFINE_integer("top_k", None, "Sample from the k likeliest tokens.")
    flags.DEFINE_float(
        "top_p",
        None,
        "Sample from the likeliest tokens with this probability in total.",
    )
    flags.DEFINE_integer(
        "num_beams", None, "Beam search with this number of beams, instead of sampling."
    )
    flags.DEFINE_float(
        "alpha", None, "The exponent of the length penalty of beam search."
    )
    flags.DEFINE_integer("seed", 0, "The seed of sampling.")
    flags.DEFINE_multi_string(
        "stop", [], "A string before which a text ends; may be given several times."
    )
    flags.DEFINE_integer(
        "max_prompt_length",
        None,
        "Longer prompts are truncated to this many tokens; default: no limit.",
    )
    flags.adopt_module_key_flags(command_line)  # so that --help shows them


def main(argv: Sequence[str]) -> None:
    """Reads flags, configuration and prompts, and writes completions."""
    run(argv, flags.FLAGS)


def run(argv: Sequence[str], args: Any) -> None:
    """Runs the command with the given values of flags, which need not come from absl.

    Args:
      argv: the command line after the flags were parsed.
      args: an object with the values of the flags as attributes, such as `flags.FLAGS`.
    """
    # Imports of TensorFlow are in functions, so that --help is fast.
    from transformer.data.atomic_files import check_writable
    from transformer.inference.text_generation import generate_texts
    from transformer.models.encoder_decoder import EncoderDecoder
    from transformer.training.load_trained import Trained

    # Flags that are None are not passed on: gin's settings of `Decoder` count for them.
    flag_values = {name: getattr(args, name) for name in _DECODER_FLAGS}
    decoder_settings = {
        name: value for name, value in flag_values.items() if value is not None
    }
    with command_line.exit_on_user_errors():
        command_line.configure_by_flags(argv, model_dir=args.model_dir)
        if args.output:
            check_writable(args.output, name="--output")
        command_line.connect_by_flags()
        trained = Trained.of(args.model_dir)
        prompts = _read_prompts(args.input)
        has_encoder = isinstance(trained.model, EncoderDecoder)
        format_completion = _formatter(args.format, has_encoder)
        progress = _Progress(num_prompts=len(prompts), step=trained.step)
        batches = generate_texts(
            trained,
            prompts,
            stop=[_unescape(line) for line in args.stop],
            max_prompt_length=args.max_prompt_length,
            seed=args.seed,
            **decoder_settings,
        )
        with command_line.output_file(args.output) as file:
            for batch in batches:
                print(*map(format_completion, batch), sep="\n", file=file, flush=True)
                progress(len(batch))


def _read_prompts(path: str | None) -> list[str]:
    """Returns the prompts in a file, one per line.

    Args:
      path: the path of the file; None: standard input.

    Raises:
      ConfigError: the file cannot be read, or is empty.
    """
    text = command_line.read_text(path)
    if not text:
        name = path or "standard input"
        raise command_line.ConfigError(
            f"there are no prompts in {name}.\n  Give one per line."
        )
    return [_unescape(line) for line in text.removesuffix("\n").split("\n")]


def _escape(text: str) -> str:
    """Returns a text as one line: "\\n" in place of a new line, and so on."""
    return re.sub(r"[\n\r\t\\]", lambda match: _ESCAPES[match[0]], text)


def _unescape(line: str) -> str:
    """Returns the text of a line; the inverse of `_escape`."""
    characters = {escape: character for character, escape in _ESCAPES.items()}
    return re.sub(r"\\[nrt\\]", lambda match: characters[match[0]], line)


def _formatter(
    output_format: str, has_encoder: bool
) -> Callable[[TextCompletion], str]:
    """Returns the function that formats a completion.

    Args:
      output_format: the value of --format: "lines", "text" or "json".
      has_encoder: whether the model is an encoder-decoder.
    """

    def full_text(completion: TextCompletion) -> str:
        """Returns the prompt and its completion; for an encoder-decoder, the completion."""
        prompt = "" if has_encoder else completion.prompt
        return prompt + completion.text

    if output_format == "json":
        return lambda completion: json.dumps(completion._asdict(), ensure_ascii=False)
    if output_format == "text":
        return lambda completion: full_text(completion) + "\n"
    return lambda completion: _escape(full_text(completion))


class _Progress:
    """Prints the count of completed prompts to standard error, every few seconds.

    Args:
      num_prompts: the count of all prompts.
      step: the training step of the model.
    """

    def __init__(self, num_prompts: int, step: int) -> None:
        self.num_prompts = num_prompts
        self.num_done = 0
        self.start_time = time.monotonic()
        self.last_message_time = self.start_time
        self._print(f"{num_prompts:,} prompts, model of step {step:,}")

    def __call__(self, num_new: int) -> None:
        """Adds `num_new` to the count of completed prompts; prints the count if the last
        message is old enough.
        """
        from transformer.training.reporting import metrics

        self.num_done += num_new
        now = time.monotonic()
        is_due = now - self.last_message_time > _SECONDS_PER_MESSAGE
        num_remaining = self.num_prompts - self.num_done
        if is_due and num_remaining:
            seconds = (now - self.start_time) / self.num_done * num_remaining
            self._print(
                f"{self.num_done:,}/{self.num_prompts:,} prompts  "
                f"{metrics.duration(seconds)} left"
            )
            self.last_message_time = now

    def _print(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    define_flags()
    run_main(main)
