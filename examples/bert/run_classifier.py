"""Trains a classifier of texts, or of pairs of texts, in tab-separated files.

    python -m examples.bert.run_classifier --data_dir=data/MRPC --task_name=mrpc \\
        --bert_config_file=bert_config.json --vocab_file=vocab.txt \\
        --init_checkpoint=runs/pretrained --output_dir=runs/mrpc \\
        --do_train --do_eval --do_predict --num_train_epochs=3 --learning_rate=2e-5

Reads train.tsv, dev.tsv and test.tsv. `task_columns.TASKS` has the columns of each --task_name;
--label_column, --text_a_column and --text_b_column override them. --do_predict writes
test_results.tsv: a line for each text, with a probability for each class. Baselines: the
most frequent class, and naive Bayes.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from examples.bert.datasets.task_columns import TASKS, Columns
from examples.bert.shared import program_flags, training_flags
from transformer.cli.program import answer_usage, run_main

_DATA_DIR = flags.DEFINE_string("data_dir", None, "The folder of the .tsv files.")
_TASK = flags.DEFINE_enum(
    "task_name", "tsv", list(TASKS), "The task whose columns the files have."
)
_LABEL = flags.DEFINE_string(
    "label_column", None, "The name or index of the column of classes."
)
_TEXT_A = flags.DEFINE_string(
    "text_a_column", None, "The column of the text, or of the first text of a pair."
)
_TEXT_B = flags.DEFINE_string("text_b_column", None, "The column of the second text.")
_HEADER = flags.DEFINE_bool(
    "header", None, "Whether the first line of a file names the columns."
)
_LABELS = flags.DEFINE_list(
    "labels", None, "All classes; by default those in train.tsv, sorted."
)
flags.adopt_module_key_flags(program_flags)
flags.adopt_module_key_flags(training_flags)

if __name__ == "__main__":
    flags.mark_flags_as_required(["data_dir", "vocab_file", "output_dir"])
    answer_usage()  # before the imports below take seconds for TensorFlow

import numpy as np

import meshtf as mtf
from examples.bert.datasets import tsv
from examples.bert.evaluation.bag_of_words import BagOfWords
from examples.bert.shared import fine_tuning, model_setup
from transformer import data
from transformer.data.batching.seeds import Seed
from transformer.data.preprocessors import label, pair
from transformer.data.sources import Example, Examples
from transformer.models.base import Batch
from transformer.models.bert import Classifier
from transformer.training.evaluation import Evaluation


@dataclasses.dataclass(frozen=True)
class Files:
    """The examples of the files for training, evaluation (dev) and prediction (test).

    Attributes:
      columns: the columns of the files.
      classes: the labels, in the order of the model's logits.
      train: the examples of train.tsv.
      dev: the examples of dev.tsv; () if they are not needed.
      test: the examples of test.tsv, which may have no labels; () if they are not needed.
    """

    columns: Columns
    classes: tuple[str, ...]
    train: Examples
    dev: Examples
    test: Examples


def read() -> Files:
    """Reads train.tsv, and dev.tsv and test.tsv if the flags need them."""
    overrides = {
        "label": _LABEL.value,
        "text_a": _TEXT_A.value,
        "text_b": _TEXT_B.value,
        "header": _HEADER.value,
    }
    columns = dataclasses.replace(
        TASKS[_TASK.value],
        **{name: value for name, value in overrides.items() if value is not None},
    )
    folder = Path(_DATA_DIR.value)
    on_bad = training_flags.ON_BAD.value
    classes = tuple(_LABELS.value or ())
    train = tsv.read(folder / "train.tsv", columns, on_bad=on_bad, classes=classes)
    if not classes:
        classes = tsv.labels_of(train, columns)
    dev: Examples = ()
    if training_flags.EVAL.value:
        dev_path = folder / f"{columns.dev}.tsv"
        dev = tsv.read(dev_path, columns, on_bad=on_bad, classes=classes)
    test: Examples = ()
    if training_flags.PREDICT.value:
        test = tsv.read(folder / "test.tsv", columns, on_bad=on_bad, labelled=False)
    return Files(columns=columns, classes=classes, train=train, dev=dev, test=test)


def _add_dummy_label(example: Example, seed: Seed) -> Example:
    """Returns an example with label 0, for prediction."""
    return {**example, "labels": np.int32(0)}


def examples(
    train: Examples,
    held_out: Examples,
    files: Files,
    vocabulary: data.WordPieceVocabulary,
    labelled: bool = True,
) -> data.TaskData:
    """Returns training and held-out examples as batches of tokens.

    Args:
      train: the training examples.
      held_out: the examples for evaluation or prediction.
      files: the columns and classes of the examples.
      vocabulary: the vocabulary of the texts.
      labelled: whether the examples have labels; otherwise all get label 0.
    """
    columns = files.columns
    length = program_flags.LENGTH.value
    add_label = functools.partial(label, classes=files.classes, field=columns.label)
    tokenize = functools.partial(
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
        preprocessors=[add_label if labelled else _add_dummy_label, tokenize],
    )
    return data.TaskData(task, seed=program_flags.SEED.value)


def evaluate(
    model: Classifier,
    examples: data.TaskData,
    files: Files,
    step: int,
) -> None:
    """Prints and writes the model's accuracy on dev.tsv, and prints the accuracy of the
    baselines.

    Args:
      model: the classifier.
      examples: batches of the examples of train.tsv and dev.tsv.
      files: the examples as they were read.
      step: the number of training steps done.
    """
    evaluation = Evaluation(
        model, examples, training_flags.EVAL_BATCH.value, num_examples=None
    )
    metrics = evaluation()
    task = examples.task
    # The preprocessors draw nothing at random, so any seed will do.
    naive_bayes = BagOfWords(
        (task.arrays(example, seed=(0,)) for example in files.train),
        classes=len(files.classes),
        vocab=examples.vocabulary.size,
    )
    most_frequent = int(naive_bayes.class_counts.argmax())
    num_right_by_frequency = 0
    num_right_by_bayes = 0
    for example in files.dev:
        arrays = task.arrays(example, seed=(0,))
        num_right_by_frequency += int(arrays["labels"] == most_frequent)
        num_right_by_bayes += int(arrays["labels"] == naive_bayes(arrays))
    frequency_accuracy = num_right_by_frequency / len(files.dev)
    bayes_accuracy = num_right_by_bayes / len(files.dev)
    fine_tuning.report(
        table={
            "accuracy": (
                f"{metrics['accuracy']:.1%}",
                f"{frequency_accuracy:.1%} with {files.classes[most_frequent]!r} for "
                f"all, {bayes_accuracy:.1%} by naive Bayes",
            ),
            "loss in nats": (
                f"{metrics['loss']:.3f}",
                f"{np.log(len(files.classes)):.3f} at random",
            ),
        },
        metrics={
            "eval_accuracy": metrics["accuracy"],
            "eval_loss": metrics["loss"],
            "global_step": step,
        },
    )


def predict(model: Classifier, examples: data.TaskData, files: Files) -> None:
    """Writes the probabilities of all classes for each line of test.tsv.

    Args:
      model: the classifier.
      examples: batches whose held-out examples are those of test.tsv.
      files: the examples as they were read.
    """

    @mtf.function(mesh=model.mesh, jit=training_flags.JIT.value, batch=model.features)
    def probabilities(batch: Batch) -> mtf.Tensor:
        """Returns the probability of each class for each text: [batch, classes]."""
        logits, _ = model(batch)
        return mtf.softmax(logits, "classes")

    lines = []
    for batch in examples.held_out(training_flags.EVAL_BATCH.value):
        # The last batch is filled with examples that have no text: their count is 0.
        is_real = batch["counts"].numpy() > 0
        batch_probabilities = probabilities(dict(batch)).numpy()[is_real]
        for text_probabilities in batch_probabilities:
            columns = [f"{probability:.6f}" for probability in text_probabilities]
            lines.append("\t".join(columns))
    fine_tuning.write_text("test_results.tsv", "".join(f"{line}\n" for line in lines))
    print(
        f"probabilities of {', '.join(files.classes)} for {len(lines):,} texts are in "
        f"{training_flags.OUTPUT.value}/test_results.tsv"
    )


def main(argv: Sequence[str]) -> None:
    """Trains, evaluates, and predicts, as the flags say."""
    with fine_tuning.exit_on_user_errors():
        fine_tuning.prepare(argv)
        vocabulary = model_setup.vocabulary()
        config = model_setup.config(vocabulary)
        files = read()
        batches = examples(files.train, files.dev, files, vocabulary)
        model = model_setup.build(Classifier, config, labels=len(files.classes))
        steps, warmup = fine_tuning.steps_of(len(files.train))
        trainer = fine_tuning.trainer(model, steps, warmup)
        fine_tuning.print_setup(
            model,
            f"{len(files.train):,} for training, {len(files.dev):,} held out; classes "
            f"{', '.join(files.classes)}",
        )
        fine_tuning.train(trainer, batches, steps)
        if training_flags.EVAL.value:
            evaluate(model, batches, files, trainer.steps_done)
        if training_flags.PREDICT.value:
            predict(
                model,
                examples(files.train, files.test, files, vocabulary, labelled=False),
                files,
            )


if __name__ == "__main__":
    run_main(main)
