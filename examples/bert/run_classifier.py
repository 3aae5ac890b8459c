"""Trains a classifier of texts, or of pairs of texts, in tab-separated files; for STS-B a model
that predicts a number.

    python -m examples.bert.run_classifier --data_dir=data/MRPC --task_name=mrpc \\
        --bert_config_file=bert_config.json --vocab_file=vocab.txt \\
        --init_checkpoint=runs/pretrained --output_dir=runs/mrpc \\
        --do_train --do_eval --do_predict --num_train_epochs=3 --learning_rate=2e-5

Reads train.tsv, dev.tsv and test.tsv. `task_columns.TASKS` has the files and columns of each
--task_name; --label_column, --text_a_column and --text_b_column override them. --do_predict
writes two files with a line for each line of test.tsv: test_results.tsv has a probability for
each class, test_predictions.tsv the id of the line and the likeliest class, as GLUE takes them.
MNLI has such files for matched and for mismatched texts, and for GLUE's diagnostic sentences if
AX.tsv or ../diagnostic/diagnostic.tsv is there. Baselines: the most frequent class, and naive
Bayes.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from examples.bert.datasets.task_columns import TASKS
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
from examples.bert.datasets import task_files
from examples.bert.datasets.task_files import Files
from examples.bert.datasets.tsv import Unlabelled
from examples.bert.evaluation.task_scores import TaskScores, learned_naive_bayes
from examples.bert.shared import fine_tuning, model_setup
from transformer import data
from transformer.data.batching.seeds import Seed
from transformer.data.preprocessors import label, pair
from transformer.data.sources import Example, Examples
from transformer.models.base import Batch
from transformer.models.bert import Classifier
from transformer.models.encoders.bert_variants import Regressor


def read() -> Files:
    """Reads the files that the flags need."""
    overrides = {
        "label": _LABEL.value,
        "text_a": _TEXT_A.value,
        "text_b": _TEXT_B.value,
        "header": _HEADER.value,
    }
    given = {name: value for name, value in overrides.items() if value is not None}
    columns = TASKS[_TASK.value]
    if given:
        # All files have the columns of the flags.
        columns = dataclasses.replace(columns, **given, test_text="")
    return task_files.read(
        _DATA_DIR.value,
        columns,
        on_bad=training_flags.ON_BAD.value,
        classes=tuple(_LABELS.value or ()),
        needs_dev=training_flags.EVAL.value,
        needs_test=training_flags.PREDICT.value,
    )


def _add_score(example: Example, seed: Seed, *, field: str) -> Example:
    """Returns an example with the number in a field as its score."""
    return {**example, "scores": np.float32(example[field])}


def _add_dummy_label(example: Example, seed: Seed) -> Example:
    """Returns an example with label 0 and score 0, for prediction."""
    return {**example, "labels": np.int32(0), "scores": np.float32(0)}


def examples(
    held_out: Examples,
    files: Files,
    vocabulary: data.WordPieceVocabulary,
    text_a: str | None = None,
) -> data.TaskData:
    """Returns training and held-out examples as batches of tokens.

    Args:
      held_out: the examples for evaluation or prediction.
      files: the files of the task, with the training examples.
      vocabulary: the vocabulary of the texts.
      text_a: the column of the first text of examples for prediction, which have no labels;
        None: the examples have labels.
    """
    columns = files.columns
    length = program_flags.LENGTH.value
    add_label: Callable[[Example, Seed], Example]
    if text_a is not None:
        add_label = _add_dummy_label
    elif columns.is_score:
        add_label = functools.partial(_add_score, field=columns.label)
    else:
        add_label = functools.partial(label, classes=files.classes, field=columns.label)
    tokenize = functools.partial(
        pair,
        vocabulary=vocabulary,
        bos_id=vocabulary.bos_id,
        first_field=text_a or columns.text_a,
        second_field=columns.text_b,
        length=length,
    )
    features_class: Callable[[int], Any] = data.ClassifierFeatures
    if columns.is_score:
        features_class = data.RegressorFeatures
    task = data.Task(
        "classes",
        fine_tuning.InMemorySource(files.train, held_out),
        vocabulary,
        features_class(length),
        preprocessors=[add_label, tokenize],
    )
    return data.TaskData(task, seed=program_flags.SEED.value)


def outputs(model: Classifier, examples: data.TaskData) -> np.ndarray:
    """Returns the logits of each held-out text, or its score: float32 [texts, classes].

    Args:
      model: the model.
      examples: batches of the texts.
    """

    @mtf.function(mesh=model.mesh, jit=training_flags.JIT.value, batch=model.features)
    def logits_of(batch: Batch) -> mtf.Tensor:
        """Returns the logits of each text: [batch, classes]."""
        logits, _ = model(batch)
        return mtf.transpose(logits, ["batch", "classes"])

    results = []
    for batch in examples.held_out(training_flags.EVAL_BATCH.value):
        # The last batch is filled with examples that have no text: their count is 0.
        is_real = batch["counts"].numpy() > 0
        results.append(logits_of(dict(batch)).numpy()[is_real])
    return np.concatenate(results)


def evaluate(
    model: Classifier, files: Files, vocabulary: data.WordPieceVocabulary, step: int
) -> None:
    """Prints and writes the model's scores on the files for evaluation, and prints those of the
    baselines.

    Args:
      model: the model.
      files: the files of the task.
      vocabulary: the vocabulary of the texts.
      step: the number of training steps done.
    """
    table = {}
    metrics = {"global_step": float(step)}
    naive_bayes = learned_naive_bayes(files, examples((), files, vocabulary).task)
    for name, rows in files.dev.items():
        batches = examples(rows, files, vocabulary)
        logits = outputs(model, batches)
        scores = TaskScores(files, batches.task, rows, logits, naive_bayes)
        suffix = name.removeprefix("dev").replace("_", " ")  # of MNLI: " matched"
        table |= {f"{title}{suffix}": row for title, row in scores.table().items()}
        prefix = name.replace("dev", "eval")
        metrics |= {f"{prefix}_{key}": x for key, x in scores.metrics().items()}
    fine_tuning.report(table=table, metrics=metrics)


def predict(
    model: Classifier, files: Files, vocabulary: data.WordPieceVocabulary
) -> None:
    """Writes the predictions for each line of the files for prediction.

    Args:
      model: the model.
      files: the files of the task.
      vocabulary: the vocabulary of the texts.
    """
    for name, lines in files.test.items():
        text_a, *_ = lines.examples[0]  # the first column
        batches = examples(lines.examples, files, vocabulary, text_a=text_a)
        _write_predictions(name, lines, files, outputs(model, batches))


def _write_predictions(
    name: str, lines: Unlabelled, files: Files, logits: np.ndarray
) -> None:
    """Writes the predictions for the lines of a file.

    Args:
      name: the name of the file, without .tsv.
      lines: its lines.
      files: the files of the task.
      logits: the logits of each line, or its score: [lines, classes].
    """
    values = logits.astype(np.float64)
    predictions = [f"{score:.6f}" for score in values[:, 0]]
    described = "scores"
    if files.classes:
        values = np.exp(values - values.max(1, keepdims=True))
        values /= values.sum(1, keepdims=True)
        predictions = [files.classes[index] for index in values.argmax(1)]
        described = f"probabilities of {', '.join(files.classes)}"
    rows = ["\t".join(f"{value:.6f}" for value in row) for row in values]
    fine_tuning.write_text(f"{name}_results.tsv", "".join(f"{row}\n" for row in rows))
    pairs = [("index", "prediction"), *zip(lines.ids, predictions)]
    text = "".join(f"{id_}\t{prediction}\n" for id_, prediction in pairs)
    fine_tuning.write_text(f"{name}_predictions.tsv", text)
    output = training_flags.OUTPUT.value
    print(
        f"{described} for {len(rows):,} lines are in {output}/{name}_results.tsv, the "
        f"predictions with ids in {name}_predictions.tsv"
    )
    if lines.num_bad:
        print(
            f"{lines.num_bad:,} of these lines are blank or malformed, and have been "
            "predicted from what they have"
        )


def main(argv: Sequence[str]) -> None:
    """Trains, evaluates, and predicts, as the flags say."""
    with fine_tuning.exit_on_user_errors():
        fine_tuning.prepare(argv)
        vocabulary = model_setup.vocabulary()
        config = model_setup.config(vocabulary)
        files = read()
        first_dev = next(iter(files.dev.values()), ())
        batches = examples(first_dev, files, vocabulary)
        model = _build(config, files)
        steps, warmup = fine_tuning.steps_of(len(files.train))
        trainer = fine_tuning.trainer(model, steps, warmup)
        num_dev = sum(map(len, files.dev.values()))
        description = f"classes {', '.join(files.classes)}"
        if files.columns.is_score:
            description = "numbers are predicted"
        fine_tuning.print_setup(
            model,
            f"{len(files.train):,} for training, {num_dev:,} held out; {description}",
        )
        fine_tuning.train(trainer, batches, steps)
        if training_flags.EVAL.value:
            evaluate(model, files, vocabulary, trainer.steps_done)
        if training_flags.PREDICT.value:
            predict(model, files, vocabulary)


def _build(config: model_setup.Config, files: Files) -> Classifier:
    """Returns the model of a task, with initial values."""
    if files.columns.is_score:
        return model_setup.build(Regressor, config)
    return model_setup.build(Classifier, config, labels=len(files.classes))


if __name__ == "__main__":
    run_main(main)
