"""Trains extractive question answering: SQuAD 1.1, and SQuAD 2.0, where a question may
have no answer.

    python -m examples.bert.run_squad --train_file=train-v2.0.json --predict_file=dev-v2.0.json \\
        --version_2_with_negative --bert_config_file=bert_config.json --vocab_file=vocab.txt \\
        --init_checkpoint=runs/pretrained --output_dir=runs/squad \\
        --do_train --do_predict --do_eval --max_seq_length=384 --doc_stride=128 \\
        --num_train_epochs=2 --learning_rate=3e-5

--do_predict writes predictions.json, nbest_predictions.json and, for 2.0,
null_odds.json; --do_eval scores them as SQuAD's evaluation scripts do, and compares them
with the best of `fixed_rules`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from examples.bert.shared import program_flags, training_flags
from transformer.cli.program import answer_usage, run_main

_TRAIN = flags.DEFINE_string("train_file", None, "Questions for training, as JSON.")
_PREDICT = flags.DEFINE_string("predict_file", None, "Questions to answer.")
_DOC_STRIDE = flags.DEFINE_integer(
    "doc_stride",
    128,
    "Tokens between the starts of two windows of a long context.",
    lower_bound=1,
)
_MAX_QUERY_LENGTH = flags.DEFINE_integer(
    "max_query_length", 64, "Maximum number of tokens of a question.", lower_bound=1
)
_NUM_BEST = flags.DEFINE_integer(
    "n_best_size", 20, "Answers in nbest_predictions.json.", lower_bound=1
)
_MAX_ANSWER_LENGTH = flags.DEFINE_integer(
    "max_answer_length", 30, "Maximum number of tokens of an answer.", lower_bound=1
)
_WITH_NEGATIVE = flags.DEFINE_bool(
    "version_2_with_negative", False, "Whether there are questions without an answer."
)
_THRESHOLD = flags.DEFINE_float(
    "null_score_diff_threshold",
    0.0,
    "Threshold on the score of no answer minus that of the best answer.",
)
flags.adopt_module_key_flags(program_flags)
flags.adopt_module_key_flags(training_flags)

if __name__ == "__main__":
    flags.mark_flags_as_required(["vocab_file", "output_dir"])
    answer_usage()  # before the imports below take seconds for TensorFlow

import numpy as np

import meshtf as mtf
from examples.bert.datasets import squad_json
from examples.bert.datasets.squad_json import Question
from examples.bert.datasets.squad_windows import Shape, Window, windows
from examples.bert.evaluation.best_spans import Prediction, answer
from examples.bert.evaluation.rule_baseline import best_rule
from examples.bert.evaluation.squad_metrics import (
    best_threshold,
    exact_match,
    f1,
    score,
)
from examples.bert.shared import fine_tuning, model_setup
from transformer import data
from transformer.data.batching.features import Arrays
from transformer.data.sources import Example
from transformer.models.base import Batch
from transformer.models.bert import SpanExtractor


@dataclasses.dataclass(frozen=True)
class SpanFeatures:
    """Features of an example: tokens and token types, padded by 0 to [length], and the
    indices `start` and `end` of the first and the last token of the answer.

    Attributes:
      length: the number of tokens of an input.
    """

    length: int

    def shapes(self) -> dict[str, list[int]]:
        return {
            "tokens": [self.length],
            "token_types": [self.length],
            "start": [],
            "end": [],
        }

    def __call__(self, example: Example) -> Arrays:
        padding = (0, self.length - len(example["tokens"]))
        features = dict(example)
        for name in ("tokens", "token_types"):
            features[name] = np.pad(example[name], padding)
        return features


class QuestionSet:
    """Questions, and the windows of their contexts.

    Args:
      questions: the questions.
      vocabulary: the vocabulary of the model.
    """

    def __init__(
        self, questions: Sequence[Question], vocabulary: data.WordPieceVocabulary
    ) -> None:
        shape = Shape(
            length=program_flags.LENGTH.value,
            question=_MAX_QUERY_LENGTH.value,
            stride=_DOC_STRIDE.value,
        )
        self.questions = questions
        self.windows: list[Window] = []
        for index, question in enumerate(questions):
            self.windows += windows(index, question, vocabulary, shape)

    def __str__(self) -> str:
        return f"{len(self.questions):,} questions in {len(self.windows):,} windows"

    def examples(self) -> list[Example]:
        """Returns the features of all windows, with the first answer of each question."""
        results = []
        for window in self.windows:
            answers = self.questions[window.question].answers
            first_answer = answers[0] if answers else None
            results.append(window.features(first_answer))
        return results


def read(path: str | None, needed: bool, answered: bool) -> list[Question]:
    """Returns the questions of a file.

    Args:
      path: the path of the file, or None if its flag is not given.
      needed: whether the flags need these questions; if not, there are none.
      answered: whether to read the answers.

    Raises:
      DataError: the questions are needed and `path` is None, or the file is malformed.
    """
    if needed and path is None:
        raise data.DataError(
            "--train_file and --predict_file name the questions; one is missing."
        )
    if not needed:
        return []
    return squad_json.read(
        path,
        negative=_WITH_NEGATIVE.value,
        on_bad=training_flags.ON_BAD.value,
        answered=answered,
    )


def predict(
    model: SpanExtractor, examples: data.TaskData, question_set: QuestionSet
) -> dict[str, Prediction]:
    """Returns the model's prediction for each question, by the question's id.

    Args:
      model: the model.
      examples: batches whose held-out examples are the windows of the question set.
      question_set: the questions to answer.
    """

    @mtf.function(mesh=model.mesh, jit=training_flags.JIT.value, batch=model.features)
    def logits(batch: Batch) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Returns the logits of starts and of ends of answers, [batch, length] each."""
        start_logits, end_logits, _ = model(batch)
        return start_logits, end_logits

    batches = examples.held_out(training_flags.EVAL_BATCH.value)
    outputs = [logits(dict(batch)) for batch in batches]
    # [windows, length]; the last batch may be filled with further examples.
    start_logits = np.concatenate([start.numpy() for start, _ in outputs])
    end_logits = np.concatenate([end.numpy() for _, end in outputs])
    predictions = {}
    # Windows are in the order of their questions, so those of a question are contiguous.
    question_indices = np.array([window.question for window in question_set.windows])
    for k, question in enumerate(question_set.questions):
        begin, end = np.searchsorted(question_indices, [k, k + 1]).tolist()
        predictions[question.id] = answer(
            question,
            question_set.windows[begin:end],
            start_logits[begin:end],
            end_logits[begin:end],
            num_best=_NUM_BEST.value,
            max_length=_MAX_ANSWER_LENGTH.value,
        )
    return predictions


def write(predictions: dict[str, Prediction]) -> dict[str, str]:
    """Writes the files of predictions, and returns the answers by question id."""
    with_negative = _WITH_NEGATIVE.value
    threshold = _THRESHOLD.value if with_negative else None
    answers = {}
    nbest = {}
    odds = {}
    for question_id, prediction in predictions.items():
        answers[question_id] = prediction.text(threshold)
        nbest[question_id] = prediction.nbest(
            _NUM_BEST.value, include_null=with_negative
        )
        odds[question_id] = prediction.null_odds
    files: dict[str, Any] = {"predictions": answers, "nbest_predictions": nbest}
    if with_negative:
        files["null_odds"] = odds
    for name, contents in files.items():
        text = json.dumps(contents, indent=1, ensure_ascii=False) + "\n"
        fine_tuning.write_text(f"{name}.json", text)
    return answers


def evaluate(
    train_questions: Sequence[Question],
    questions: Sequence[Question],
    predictions: dict[str, Prediction],
    answers: dict[str, str],
    step: int,
) -> None:
    """Prints and writes exact match and F1, and prints the scores of the best fixed rule.

    Args:
      train_questions: the training questions, from which rules are learned.
      questions: the questions that the model answered.
      predictions: the model's predictions, by question id.
      answers: the texts in predictions.json, by question id.
      step: the number of training steps done.
    """
    scores = score(questions, answers)
    rule, baseline = best_rule(train_questions, questions)
    table = {}
    for name in ("exact", "f1"):
        table[f"{name} in percent"] = (
            f"{scores[name]:.1f}",
            f"{baseline[name]:.1f} with {rule}",
        )
    if _WITH_NEGATIVE.value:
        best_texts = {}
        odds = {}
        for question_id, prediction in predictions.items():
            best_texts[question_id] = prediction.text(threshold=None)
            odds[question_id] = prediction.null_odds
        for name, metric in (("exact", exact_match), ("f1", f1)):
            best, threshold = best_threshold(questions, best_texts, odds, metric)
            scores[f"best_{name}"] = best
            scores[f"best_{name}_thresh"] = threshold
            table[f"{name} with the best threshold"] = (
                f"{best:.1f}",
                f"(threshold {threshold:.3f})",
            )
    fine_tuning.report(table, {**scores, "global_step": step})


def main(argv: Sequence[str]) -> None:
    """Trains, predicts, and evaluates, as the flags say."""
    with fine_tuning.exit_on_user_errors():
        fine_tuning.prepare(argv)
        vocabulary = model_setup.vocabulary()
        config = model_setup.config(vocabulary)
        needs_train = training_flags.TRAIN.value or _TRAIN.value is not None
        needs_predictions = training_flags.PREDICT.value or training_flags.EVAL.value
        train_questions = read(_TRAIN.value, needed=needs_train, answered=True)
        questions = read(
            _PREDICT.value,
            needed=needs_predictions,
            answered=training_flags.EVAL.value,
        )
        train_set = QuestionSet(train_questions, vocabulary)
        question_set = QuestionSet(questions, vocabulary)
        task = data.Task(
            "questions",
            fine_tuning.InMemorySource(train_set.examples(), question_set.examples()),
            vocabulary,
            SpanFeatures(program_flags.LENGTH.value),
        )
        examples = data.TaskData(task, seed=program_flags.SEED.value)
        model = model_setup.build(SpanExtractor, config)
        steps, warmup = fine_tuning.steps_of(len(train_set.windows))
        trainer = fine_tuning.trainer(model, steps, warmup)
        fine_tuning.print_setup(
            model, f"{train_set} for training, {question_set} to answer"
        )
        fine_tuning.train(trainer, examples, steps)
        if needs_predictions:
            predictions = predict(model, examples, question_set)
            answers = write(predictions)
            if training_flags.EVAL.value:
                evaluate(
                    train_questions,
                    questions,
                    predictions=predictions,
                    answers=answers,
                    step=trainer.steps_done,
                )


if __name__ == "__main__":
    run_main(main)
