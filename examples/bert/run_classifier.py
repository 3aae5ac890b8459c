"""Learns to tell classes of texts, or of pairs of texts, in tab-separated files.

    python -m examples.bert.run_classifier --data_dir=data/MRPC --task_name=mrpc \\
        --bert_config_file=bert_config.json --vocab_file=vocab.txt \\
        --init_checkpoint=runs/pretrained --output_dir=runs/mrpc \\
        --do_train --do_eval --do_predict --num_train_epochs=3 --learning_rate=2e-5

Reads train.tsv, dev.tsv and test.tsv. `tables.TASKS` has what --task_name says of
columns; --label_column and its like say another. --do_predict writes test_results.tsv:
a line for each text, with a probability for each class. Baselines: the most frequent
class, and naive Bayes.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
import meshtf as mtf
from examples.bert.datasets import tsv
from examples.bert.evaluation.bag_of_words import BagOfWords
from examples.bert.shared import fine_tuning, program_flags
from transformer import data
from transformer.cli.program import run_main
from transformer.data.batching.seeds import Seed
from transformer.data.preprocessors import label, pair
from transformer.data.sources import Example, Examples
from transformer.models.base import Batch
from transformer.models.bert import Classifier
from transformer.training.evaluation import Evaluation

_DATA = flags.DEFINE_string("data_dir", None, "The folder of the .tsv files.")
_TASK = flags.DEFINE_enum(
    "task_name", "tsv", list(tsv.TASKS), "Whose columns the files have."
)
_LABEL = flags.DEFINE_string(
    "label_column", None, "The name or number of the classes' column."
)
_TEXT_A = flags.DEFINE_string(
    "text_a_column", None, "That of the text, or the first of two."
)
_TEXT_B = flags.DEFINE_string("text_b_column", None, "That of the second one.")
_HEADER = flags.DEFINE_bool(
    "header", None, "Whether the first line of a file names the columns."
)
_LABELS = flags.DEFINE_list(
    "labels", None, "All classes; by default those in train.tsv, sorted."
)
flags.adopt_module_key_flags(program_flags)
flags.adopt_module_key_flags(fine_tuning)


@dataclasses.dataclass(frozen=True)
class Files:
    """What there is to learn from, to measure on, and to tell."""

    columns: tsv.Columns
    classes: tuple[str, ...]
    train: Examples
    dev: Examples
    test: Examples


def read() -> Files:
    """Returns what the flags name; reads train.tsv, and of the others those that are
    needed.
    """
    given = {
        "label": _LABEL.value,
        "text_a": _TEXT_A.value,
        "text_b": _TEXT_B.value,
        "header": _HEADER.value,
    }
    columns = dataclasses.replace(
        tsv.TASKS[_TASK.value], **{k: v for k, v in given.items() if v is not None}
    )
    folder = Path(_DATA.value)
    bad = fine_tuning.ON_BAD.value
    classes = tuple(_LABELS.value or ())
    train = tsv.read(folder / "train.tsv", columns, bad, classes)
    classes = classes or tsv.labels_of(train, columns)
    dev = (
        tsv.read(folder / f"{columns.dev}.tsv", columns, bad, classes)
        if fine_tuning.EVAL.value
        else ()
    )
    test = (
        tsv.read(folder / "test.tsv", columns, bad, labelled=False)
        if fine_tuning.PREDICT.value
        else ()
    )
    return Files(columns, classes, train, dev, test)


def _unlabelled(example: Example, seed: Seed) -> Example:
    return {**example, "labels": np.int32(0)}


def examples(
    train: Examples,
    held_out: Examples,
    files: Files,
    vocabulary: data.WordPieceVocabulary,
    labelled: bool = True,
) -> data.TaskData:
    """Returns rows of tokens in batches."""
    columns = files.columns
    length = program_flags.LENGTH.value
    number = functools.partial(label, classes=files.classes, field=columns.label)
    tokens = functools.partial(
        pair,
        vocabulary=vocabulary,
        bos_id=vocabulary.bos_id,
        first_field=columns.text_a,
        second_field=columns.text_b,
        length=length,
    )
    task = data.Task(
        "classes",
        fine_tuning.InMemorySource(train, held_out),
        vocabulary,
        data.ClassifierFeatures(length),
        preprocessors=[number if labelled else _unlabelled, tokens],
    )
    return data.TaskData(task, seed=program_flags.SEED.value)


def evaluate(model: Classifier, rows: data.TaskData, files: Files, step: int) -> None:
    """Prints and writes how many classes of dev.tsv are told right."""
    found = Evaluation(model, rows, fine_tuning.EVAL_BATCH.value, None)()
    task = rows.task
    bag = BagOfWords(
        (task.arrays(row, (0,)) for row in files.train),
        len(files.classes),
        rows.vocabulary.size,
    )
    usual = int(bag.frequent.argmax())
    right = np.zeros(2)
    for row in files.dev:
        arrays = task.arrays(row, (0,))
        right += np.array([usual, bag(arrays)]) == arrays["labels"]
    frequent, naive = right / len(files.dev)
    ours = f"{found['accuracy']:.1%}"
    fine_tuning.report(
        {
            "classes told right": (
                ours,
                f"{frequent:.1%} with {files.classes[usual]!r} for all, {naive:.1%} by "
                "naive Bayes",
            ),
            "nats": (
                f"{found['loss']:.3f}",
                f"{np.log(len(files.classes)):.3f} at random",
            ),
        },
        {
            "eval_accuracy": found["accuracy"],
            "eval_loss": found["loss"],
            "global_step": step,
        },
    )


def predict(model: Classifier, rows: data.TaskData, files: Files) -> None:
    """Writes the probabilities of all classes for each line of test.tsv."""

    @mtf.function(mesh=model.mesh, jit=fine_tuning.JIT.value, batch=model.features)
    def probabilities(batch: Batch) -> mtf.Tensor:
        return mtf.softmax(model(batch)[0], "classes")

    lines = []
    for batch in rows.held_out(fine_tuning.EVAL_BATCH.value):
        found = probabilities(dict(batch)).numpy()[batch["counts"].numpy() > 0]
        lines += ["\t".join(f"{p:.6f}" for p in row) for row in found]
    fine_tuning.write_text("test_results.tsv", "".join(f"{line}\n" for line in lines))
    print(
        f"probabilities of {', '.join(files.classes)} for {len(lines):,} texts are in "
        f"{fine_tuning.OUTPUT.value}/test_results.tsv"
    )


def main(argv: Sequence[str]) -> None:
    """Trains, measures, and tells."""
    with fine_tuning.exit_on_user_errors():
        fine_tuning.prepare(argv)
        vocabulary = program_flags.vocabulary()
        config = program_flags.config(vocabulary)
        files = read()
        rows = examples(files.train, files.dev, files, vocabulary)
        model = program_flags.build(Classifier, config, labels=len(files.classes))
        steps, warmup = fine_tuning.steps_of(len(files.train))
        trainer = fine_tuning.trainer(model, steps, warmup)
        fine_tuning.introduce(
            model,
            f"{len(files.train):,} to learn from, {len(files.dev):,} held out; classes "
            f"{', '.join(files.classes)}",
        )
        fine_tuning.train(trainer, rows, steps)
        if fine_tuning.EVAL.value:
            evaluate(model, rows, files, trainer.steps_done)
        if fine_tuning.PREDICT.value:
            predict(
                model,
                examples(files.train, files.test, files, vocabulary, labelled=False),
                files,
            )


if __name__ == "__main__":
    flags.mark_flags_as_required(["data_dir", "vocab_file", "output_dir"])
    run_main(main)
