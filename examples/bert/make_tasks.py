"""Makes all that the other programs need, of the source of Python's standard library.

    python -m examples.bert.make_tasks --output_dir=runs/bert/tasks

Into the folder go texts (`train.txt`, `held_out.txt`: a line is a sentence, a file is a
document), a vocabulary, the sizes of a small model, a task of classes
(`exchanged/*.tsv`) and one of questions (`questions/*.json`); see source_tasks.py. What
is held out comes of other files of the library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from examples.bert.datasets import source_tasks
from examples.bert.shared import fine_tuning, program_flags
from transformer import data
from transformer.cli import command_line
from transformer.cli.program import run_main
from transformer.data.atomic_files import atomic_folder, check_writable
from transformer.data.vocabularies import train_word_pieces

_OUTPUT = fine_tuning.OUTPUT
for name in ("output_dir", "random_seed"):  # so that --help shows them
    flags.declare_key_flag(name)
_BYTES = flags.DEFINE_integer(
    "text_bytes", 1_500_000, "About how much text is learned from."
)
_VOCAB = flags.DEFINE_integer("vocab_size", 2048, "The most pieces of the vocabulary.")
_LINES = flags.DEFINE_integer("lines", 12_000, "Lines of the task of classes.")
_CONTEXTS = flags.DEFINE_integer(
    "contexts", 6_000, "Contexts of the task of questions."
)
_FUNCTIONS = flags.DEFINE_integer("functions", 2, "Heads of functions in a context.")
_FLIPPED = flags.DEFINE_float(
    "flipped", 0.1, "The part of the classes' labels that are wrong."
)
_IMPOSSIBLE = flags.DEFINE_float(
    "impossible", 0.2, "The part of questions without an answer."
)
_WIDTH = flags.DEFINE_integer("hidden_size", 128, "The width of the small model.")
_HELD_OUT = 0.1  # of all files


def main(argv: Sequence[str]) -> None:
    """Reads the library and writes the folder."""
    with command_line.exit_on_user_errors():
        command_line.refuse_gin(argv)
        check_writable(_OUTPUT.value, "--output_dir", folder=True)
        write()


def write() -> None:
    """Writes the folder of the flags."""
    with atomic_folder(_OUTPUT.value) as folder:
        source = data.documents(lambda: data.python_library(share=_HELD_OUT))
        train, held_out = (
            [text["text"] for text in side()]
            for side in (source.train, source.held_out)
        )
        print(
            f"{len(train)} files of the standard library to learn from, "
            f"{len(held_out)} held out",
            flush=True,
        )
        write_questions(folder / "questions", train, held_out)
        write_lines(folder / "exchanged", train, held_out)
        write_texts(
            folder, _some(train, _BYTES.value), _some(held_out, _BYTES.value // 10)
        )
        print(f"texts, vocabulary and tasks are in {_OUTPUT.value}")


def write_questions(
    folder: Path, train: Sequence[str], held_out: Sequence[str]
) -> None:
    """Writes the task of questions."""
    folder.mkdir()
    for k, (name, texts, number) in enumerate(
        (("train", train, _CONTEXTS.value), ("dev", held_out, _CONTEXTS.value // 20))
    ):
        draw = np.random.default_rng([program_flags.SEED.value, 2, k])
        asked = source_tasks.questions(
            texts, number, _FUNCTIONS.value, _IMPOSSIBLE.value, draw
        )
        text = json.dumps(asked, indent=1) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def write_texts(folder: Path, train: Sequence[str], held_out: Sequence[str]) -> None:
    """Writes texts, vocabulary and sizes."""
    _write_text(folder / "train.txt", train)
    _write_text(folder / "held_out.txt", held_out)
    pieces = train_word_pieces(train, _VOCAB.value)
    (folder / "vocab.txt").write_text(
        "".join(f"{piece}\n" for piece in pieces), encoding="utf-8"
    )
    (folder / "bert_config.json").write_text(json.dumps(_sizes(), indent=1) + "\n")


def write_lines(folder: Path, train: Sequence[str], held_out: Sequence[str]) -> None:
    """Writes the task of classes."""

    def lines(
        side: int, texts: Sequence[str], number: int, without: Iterable[str]
    ) -> list[tuple[str, str]]:
        draw = np.random.default_rng([program_flags.SEED.value, side])
        return source_tasks.exchanged(texts, number, _FLIPPED.value, draw, without)

    known = (line for text in train for line in source_tasks.sentences(text))
    held = lines(1, held_out, _LINES.value // 8, known)
    half = len(held) // 2
    folder.mkdir()
    for name, rows in (
        ("train", lines(0, train, _LINES.value, ())),
        ("dev", held[:half]),
        ("test", held[half:]),
    ):
        with open(folder / f"{name}.tsv", "w", encoding="utf-8") as file:
            file.write("label\ttext_a\n")
            file.writelines(f"{label}\t{line}\n" for label, line in rows)


def _some(texts: Sequence[str], size: int) -> list[str]:
    """Returns texts from all over, about so many letters."""
    order = np.random.default_rng(program_flags.SEED.value).permutation(len(texts))
    sizes = np.cumsum([len(texts[k]) for k in order])
    return [texts[k] for k in sorted(order[: int(np.searchsorted(sizes, size)) + 1])]


def _sizes() -> dict[str, Any]:
    width = _WIDTH.value
    return {
        "vocab_size": _VOCAB.value,
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 4 * width,
        "hidden_act": "gelu",
        "initializer_range": 0.05,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
    }


def _write_text(path: Path, texts: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for text in texts:
            file.write("\n".join(source_tasks.sentences(text)) + "\n\n")


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    run_main(main)
