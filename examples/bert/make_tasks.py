"""Makes all data that the other programs need from the source of Python's standard library.

    python -m examples.bert.make_tasks --output_dir=runs/bert/tasks

Writes texts (`train.txt`, `held_out.txt`: a line is a sentence, a file is a document), a
vocabulary, the sizes of a small model, a classification task (`exchanged/*.tsv`) and a
task of questions (`questions/*.json`); see source_tasks.py. Held-out data is from other
files of the library than training data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from examples.bert.shared import program_flags, training_flags
from transformer.cli.program import answer_usage, run_main

_OUTPUT = training_flags.OUTPUT
for name in ("output_dir", "random_seed"):  # so that --help shows them
    flags.declare_key_flag(name)
_TEXT_BYTES = flags.DEFINE_integer(
    "text_bytes", 1_500_000, "Approximate size of the training text."
)
_VOCAB_SIZE = flags.DEFINE_integer(
    "vocab_size", 2048, "Maximum size of the vocabulary."
)
_LINES = flags.DEFINE_integer(
    "lines", 12_000, "Training examples of the classification task."
)
_CONTEXTS = flags.DEFINE_integer(
    "contexts", 6_000, "Training contexts of the task of questions."
)
_FUNCTIONS = flags.DEFINE_integer(
    "functions", 2, "Signatures of functions in a context."
)
_FLIPPED_FRACTION = flags.DEFINE_float(
    "flipped", 0.1, "The fraction of labels of the classification task that are wrong."
)
_IMPOSSIBLE_FRACTION = flags.DEFINE_float(
    "impossible", 0.2, "The fraction of questions without an answer."
)
_WIDTH = flags.DEFINE_integer("hidden_size", 128, "The width of the small model.")
_HELD_OUT_FRACTION = 0.1  # of the files
# Random streams, each a part of the seed of a generator.
_TRAIN_LINES_STREAM = 0
_HELD_OUT_LINES_STREAM = 1
_QUESTIONS_STREAM = 2

if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    answer_usage()  # before the imports below take seconds for TensorFlow

import numpy as np

from examples.bert.datasets import source_tasks
from transformer import data
from transformer.cli import command_line
from transformer.data.atomic_files import atomic_folder, check_writable
from transformer.data.vocabularies import train_word_pieces


def main(argv: Sequence[str]) -> None:
    """Reads the library and writes the folder."""
    with command_line.exit_on_user_errors():
        command_line.refuse_gin(argv)
        check_writable(_OUTPUT.value, "--output_dir", folder=True)
        write()


def write() -> None:
    """Writes the folder that --output_dir names."""
    with atomic_folder(_OUTPUT.value) as folder:
        source = data.documents(lambda: data.python_library(share=_HELD_OUT_FRACTION))
        train = [document["text"] for document in source.train()]
        held_out = [document["text"] for document in source.held_out()]
        print(
            f"{len(train)} files of the standard library for training, "
            f"{len(held_out)} held out",
            flush=True,
        )
        write_questions(folder / "questions", train, held_out)
        write_lines(folder / "exchanged", train, held_out)
        write_texts(
            folder,
            train=_sample(train, _TEXT_BYTES.value),
            held_out=_sample(held_out, _TEXT_BYTES.value // 10),
        )
        print(f"texts, vocabulary and tasks are in {_OUTPUT.value}")


def write_questions(
    folder: Path, train: Sequence[str], held_out: Sequence[str]
) -> None:
    """Writes the task of questions: train.json and dev.json.

    Args:
      folder: the folder to make.
      train: the source of the modules for training.
      held_out: the source of the held-out modules.
    """
    folder.mkdir()
    splits = [
        ("train", train, _CONTEXTS.value),
        ("dev", held_out, _CONTEXTS.value // 20),
    ]
    for k, (name, texts, paragraphs) in enumerate(splits):
        seed = [program_flags.SEED.value, _QUESTIONS_STREAM, k]
        task = source_tasks.questions(
            texts,
            paragraphs=paragraphs,
            functions=_FUNCTIONS.value,
            impossible_fraction=_IMPOSSIBLE_FRACTION.value,
            rng=np.random.default_rng(seed),
        )
        text = json.dumps(task, indent=1) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def write_texts(folder: Path, train: Sequence[str], held_out: Sequence[str]) -> None:
    """Writes texts, vocabulary and the sizes of the model: train.txt, held_out.txt,
    vocab.txt and bert_config.json.
    """
    _write_text(folder / "train.txt", train)
    _write_text(folder / "held_out.txt", held_out)
    word_pieces = train_word_pieces(train, _VOCAB_SIZE.value)
    (folder / "vocab.txt").write_text(
        "".join(f"{word_piece}\n" for word_piece in word_pieces), encoding="utf-8"
    )
    (folder / "bert_config.json").write_text(
        json.dumps(_model_sizes(), indent=1) + "\n"
    )


def write_lines(folder: Path, train: Sequence[str], held_out: Sequence[str]) -> None:
    """Writes the classification task: train.tsv, dev.tsv and test.tsv."""

    def examples(
        stream: int,
        texts: Sequence[str],
        count: int,
        excluded: Iterable[str],
    ) -> list[tuple[str, str]]:
        """Returns pairs (label, line), drawn from one of the random streams above."""
        return source_tasks.exchanged_assignments(
            texts,
            count=count,
            flipped_fraction=_FLIPPED_FRACTION.value,
            rng=np.random.default_rng([program_flags.SEED.value, stream]),
            excluded=excluded,
        )

    train_lines = (line for text in train for line in source_tasks.sentences(text))
    train_examples = examples(
        stream=_TRAIN_LINES_STREAM, texts=train, count=_LINES.value, excluded=()
    )
    held_out_examples = examples(
        stream=_HELD_OUT_LINES_STREAM,
        texts=held_out,
        count=_LINES.value // 8,
        excluded=train_lines,
    )
    middle = len(held_out_examples) // 2
    examples_of_files = {
        "train": train_examples,
        "dev": held_out_examples[:middle],
        "test": held_out_examples[middle:],
    }
    folder.mkdir()
    for name, pairs in examples_of_files.items():
        with open(folder / f"{name}.tsv", "w", encoding="utf-8") as file:
            file.write("label\ttext_a\n")
            file.writelines(f"{label}\t{line}\n" for label, line in pairs)


def _sample(texts: Sequence[str], num_characters: int) -> list[str]:
    """Returns randomly chosen texts with about `num_characters` characters in total, in
    their original order.
    """
    order = np.random.default_rng(program_flags.SEED.value).permutation(len(texts))
    cumulative_sizes = np.cumsum([len(texts[k]) for k in order])
    count = int(np.searchsorted(cumulative_sizes, num_characters)) + 1
    return [texts[k] for k in sorted(order[:count])]


def _model_sizes() -> dict[str, Any]:
    """Returns the contents of bert_config.json."""
    width = _WIDTH.value
    return {
        "vocab_size": _VOCAB_SIZE.value,
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
    """Writes documents: a line is a sentence, an empty line ends a document."""
    with open(path, "w", encoding="utf-8") as file:
        for text in texts:
            file.write("\n".join(source_tasks.sentences(text)) + "\n\n")


if __name__ == "__main__":
    run_main(main)
