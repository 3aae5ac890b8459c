"""Learns to find answers in texts: SQuAD 1.1, and 2.0 where there may be none.

    python -m examples.bert.run_squad --train_file=train-v2.0.json --predict_file=dev-v2.0.json \\
        --version_2_with_negative --bert_config_file=bert_config.json --vocab_file=vocab.txt \\
        --init_checkpoint=runs/pretrained --output_dir=runs/squad \\
        --do_train --do_predict --do_eval --max_seq_length=384 --doc_stride=128 \\
        --num_train_epochs=2 --learning_rate=3e-5

--do_predict writes predictions.json, nbest_predictions.json and, for 2.0,
null_odds.json; --do_eval scores them as SQuAD's own programs do, beside the best of
`fixed_rules`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence

import numpy as np
from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
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
from examples.bert.shared import fine_tuning, program_flags
from transformer import data
from transformer.cli.program import run_main
from transformer.data.batching.features import Arrays
from transformer.data.sources import Example
from transformer.models.base import Batch
from transformer.models.bert import SpanExtractor

_TRAIN = flags.DEFINE_string("train_file", None, "Questions to learn from, as JSON.")
_PREDICT = flags.DEFINE_string("predict_file", None, "Questions to answer.")
_STRIDE = flags.DEFINE_integer(
    "doc_stride", 128, "Tokens from window to window of a long context.", lower_bound=1
)
_QUERY = flags.DEFINE_integer(
    "max_query_length", 64, "The most tokens of a question.", lower_bound=1
)
_BEST = flags.DEFINE_integer(
    "n_best_size", 20, "Answers in nbest_predictions.json.", lower_bound=1
)
_ANSWER = flags.DEFINE_integer(
    "max_answer_length", 30, "The most tokens of an answer.", lower_bound=1
)
_NEGATIVE = flags.DEFINE_bool(
    "version_2_with_negative", False, "Whether there are questions without an answer."
)
_THRESHOLD = flags.DEFINE_float(
    "null_score_diff_threshold", 0.0, "How much higher the score of no answer must be."
)
flags.adopt_module_key_flags(program_flags)
flags.adopt_module_key_flags(fine_tuning)


@dataclasses.dataclass(frozen=True)
class SpanFeatures:
    """The first and the last token of an answer are told."""

    length: int

    def shapes(self) -> dict[str, list[int]]:
        return {
            "tokens": [self.length],
            "token_types": [self.length],
            "start": [],
            "end": [],
        }

    def __call__(self, example: Example) -> Arrays:
        empty = self.length - len(example["tokens"])
        return {
            **example,
            **{
                name: np.pad(example[name], (0, empty))
                for name in ("tokens", "token_types")
            },
        }


class QuestionSet:
    """Questions, and their windows.

    Args:
      questions: as they were read.
      vocabulary: makes tokens.
    """

    def __init__(
        self, questions: Sequence[Question], vocabulary: data.WordPieceVocabulary
    ) -> None:
        shape = Shape(program_flags.LENGTH.value, _QUERY.value, _STRIDE.value)
        self.questions = questions
        self.windows: list[Window] = [
            window
            for k, question in enumerate(questions)
            for window in windows(k, question, vocabulary, shape)
        ]

    def __str__(self) -> str:
        return f"{len(self.questions):,} questions in {len(self.windows):,} windows"

    def rows(self) -> list[Example]:
        """Returns what the model is given; with the first answer of each question."""
        return [
            window.row(next(iter(self.questions[window.question].answers), None))
            for window in self.windows
        ]


def read(path: str | None, needed: bool, answered: bool) -> list[Question]:
    """Returns the questions of a file; none, if it is not needed."""
    if needed and path is None:
        raise data.DataError(
            "--train_file and --predict_file name the questions; one is missing."
        )
    return (
        squad_json.read(path, _NEGATIVE.value, fine_tuning.ON_BAD.value, answered)
        if needed
        else []
    )


def find(model: SpanExtractor, rows: data.TaskData, asked: QuestionSet) -> dict[str, Prediction]:
    """Returns what the model tells of each question, by its id."""

    @mtf.function(mesh=model.mesh, jit=fine_tuning.JIT.value, batch=model.features)
    def logits(batch: Batch) -> tuple[mtf.Tensor, mtf.Tensor]:
        return model(batch)[:2]

    made = [
        logits(dict(batch)) for batch in rows.held_out(fine_tuning.EVAL_BATCH.value)
    ]
    start, end = (
        np.concatenate([one[side].numpy() for one in made]) for side in (0, 1)
    )
    found = {}
    numbers = np.array([window.question for window in asked.windows])
    for k, question in enumerate(asked.questions):
        mine = slice(*np.searchsorted(numbers, [k, k + 1]).tolist())
        found[question.id] = answer(
            question,
            asked.windows[mine],
            start[mine],
            end[mine],
            _BEST.value,
            _ANSWER.value,
        )
    return found


def write(found: dict[str, Prediction]) -> dict[str, str]:
    """Writes the files of predictions; returns what is told."""
    negative = _NEGATIVE.value
    told = {
        id_: one.text(_THRESHOLD.value if negative else None)
        for id_, one in found.items()
    }
    files = {
        "predictions": told,
        "nbest_predictions": {
            id_: one.nbest(_BEST.value, negative) for id_, one in found.items()
        },
    }
    if negative:
        files["null_odds"] = {id_: one.null_odds for id_, one in found.items()}
    for name, values in files.items():
        fine_tuning.write_text(
            f"{name}.json", json.dumps(values, indent=1, ensure_ascii=False) + "\n"
        )
    return told


def evaluate(
    learned: Sequence[Question],
    questions: Sequence[Question],
    found: dict[str, Prediction],
    told: dict[str, str],
    step: int,
) -> None:
    """Prints and writes exact matches and F1, beside those of the best fixed rule."""
    numbers = score(questions, told)
    rule, baseline = best_rule(learned, questions)
    rows = {
        f"{name} in percent": (
            f"{numbers[name]:.1f}",
            f"{baseline[name]:.1f} with {rule}",
        )
        for name in ("exact", "f1")
    }
    if _NEGATIVE.value:
        best = {id_: one.best[0].text for id_, one in found.items()}
        odds = {id_: one.null_odds for id_, one in found.items()}
        for name, metric in (("exact", exact_match), ("f1", f1)):
            numbers[f"best_{name}"], numbers[f"best_{name}_thresh"] = best_threshold(
                questions, best, odds, metric
            )
            rows[f"{name} with the best threshold"] = (
                f"{numbers[f'best_{name}']:.1f}",
                f"(threshold {numbers[f'best_{name}_thresh']:.3f})",
            )
    fine_tuning.report(rows, {**numbers, "global_step": step})


def main(argv: Sequence[str]) -> None:
    """Trains, answers, and scores."""
    with fine_tuning.exit_on_user_errors():
        fine_tuning.prepare(argv)
        vocabulary = program_flags.vocabulary()
        config = program_flags.config(vocabulary)
        answering = fine_tuning.PREDICT.value or fine_tuning.EVAL.value
        learned = QuestionSet(
            read(
                _TRAIN.value, fine_tuning.TRAIN.value or _TRAIN.value is not None, True
            ),
            vocabulary,
        )
        asked = QuestionSet(
            read(_PREDICT.value, answering, fine_tuning.EVAL.value), vocabulary
        )
        source = fine_tuning.InMemorySource(learned.rows(), asked.rows())
        rows = data.TaskData(
            data.Task(
                "questions",
                source,
                vocabulary,
                SpanFeatures(program_flags.LENGTH.value),
            ),
            seed=program_flags.SEED.value,
        )
        model = program_flags.build(SpanExtractor, config)
        steps, warmup = fine_tuning.steps_of(len(learned.windows))
        trainer = fine_tuning.trainer(model, steps, warmup)
        fine_tuning.introduce(model, f"{learned} to learn from, {asked} to answer")
        fine_tuning.train(trainer, rows, steps)
        if answering:
            found = find(model, rows, asked)
            told = write(found)
            if fine_tuning.EVAL.value:
                evaluate(
                    learned.questions, asked.questions, found, told, trainer.steps_done
                )


if __name__ == "__main__":
    flags.mark_flags_as_required(["vocab_file", "output_dir"])
    run_main(main)
