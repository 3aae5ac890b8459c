"""Pretrains BERT on rows that create_pretraining_data made: hidden tokens, and next
sentences.

    python -m examples.bert.run_pretraining --input_file=rows.tfrecord --eval_file=other.tfrecord \\
        --bert_config_file=bert_config.json --vocab_file=vocab.txt --output_dir=runs/pretrained \\
        --do_train --do_eval --train_batch_size=32 --num_train_steps=1000 --num_warmup_steps=100 \\
        --learning_rate=1e-3 --optimizer=lamb --mesh='data:4;model:2'

Baselines, of what was learnt from: always the most frequent token and the most frequent
answer.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
from collections.abc import Sequence

import numpy as np
from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from examples.bert.datasets import pretraining_records
from examples.bert.shared import fine_tuning, program_flags
from transformer import data
from transformer.cli.program import run_main
from transformer.models.bert import Bert
from transformer.training.evaluation import Evaluation

_EVAL = flags.DEFINE_string(
    "eval_file", None, "What to measure on; by default the same."
)
_STEPS = flags.DEFINE_integer(
    "num_train_steps", 100_000, "Steps in all.", lower_bound=1
)
_WARMUP = flags.DEFINE_integer(
    "num_warmup_steps", 10_000, "Those in which the rate climbs."
)
_EVAL_STEPS = flags.DEFINE_integer(
    "max_eval_steps", 100, "The most batches that are measured.", lower_bound=1
)
flags.adopt_module_key_flags(program_flags)
flags.adopt_module_key_flags(fine_tuning)
_COUNTED = 20_000  # rows of which the baselines are counted


def examples(vocabulary: data.WordPieceVocabulary, vocab: int) -> data.TaskData:
    """Returns the rows of the flags, in batches."""
    train, held_out = (
        pretraining_records.read(patterns, fine_tuning.ON_BAD.value)
        for patterns in (
            program_flags.INPUT.value,
            _EVAL.value or program_flags.INPUT.value,
        )
    )
    task = data.Task(
        "pretraining",
        fine_tuning.InMemorySource(train, held_out),
        vocabulary,
        data.BertFeatures(program_flags.LENGTH.value, program_flags.PREDICTIONS.value),
        preprocessors=[functools.partial(pretraining_records.from_record, vocab=vocab)],
    )
    return data.TaskData(task, seed=program_flags.SEED.value)


def evaluate(model: Bert, rows: data.TaskData, step: int) -> None:
    """Prints and writes how many hidden tokens and next sentences are told right."""
    batch = fine_tuning.EVAL_BATCH.value
    found = Evaluation(model, rows, batch, batch * _EVAL_STEPS.value)()
    source = rows.task.source
    tokens, follows = _counts(source.train())
    held_tokens, held_follows = _counts(source.held_out())
    usual = max(tokens, key=tokens.get)
    usual_label = max(follows, key=follows.get)
    piece = rows.vocabulary.pieces[usual]
    fine_tuning.report(
        {
            "hidden tokens, nats": (
                f"{found['loss']:.3f}",
                f"{_nats(tokens, held_tokens, model.architecture.vocab):.3f} by how "
                "frequent they are",
            ),
            "hidden tokens told right": (
                f"{found['accuracy']:.1%}",
                f"{held_tokens[usual] / held_tokens.total():.1%} with {piece!r} for "
                "all",
            ),
            "next sentences told right": (
                f"{found['next_sentence_accuracy']:.1%}",
                f"{held_follows[usual_label] / held_follows.total():.1%} with the more "
                "frequent answer",
            ),
        },
        {
            "global_step": step,
            "masked_lm_loss": found["loss"],
            "masked_lm_accuracy": found["accuracy"],
            "next_sentence_accuracy": found["next_sentence_accuracy"],
        },
    )


def _counts(
    rows: Sequence[data.sources.Example],
) -> tuple[collections.Counter[int], collections.Counter[int]]:
    """Returns how often each token was hidden, and each answer about next sentences
    right.
    """
    tokens: collections.Counter[int] = collections.Counter()
    follows: collections.Counter[int] = collections.Counter()
    for hidden, label in pretraining_records.masked_ids(
        itertools.islice(rows, _COUNTED)
    ):
        tokens.update(hidden.tolist())
        follows[label] += 1
    return tokens, follows


def _nats(
    counts: collections.Counter[int], held_out: collections.Counter[int], vocab: int
) -> float:
    """Returns the mean of -ln p where p is how frequent a token was, counted once more
    each.
    """
    ids = np.fromiter(held_out, int)
    p = (np.array([counts[i] for i in ids]) + 1.0) / (counts.total() + vocab)
    weights = np.fromiter(held_out.values(), float)
    return float(-(weights * np.log(p)).sum() / weights.sum())


def main(argv: Sequence[str]) -> None:
    """Trains, and measures."""
    with fine_tuning.exit_on_user_errors():
        fine_tuning.prepare(argv, steps=_STEPS)
        vocabulary = program_flags.vocabulary()
        config = program_flags.config(vocabulary)
        rows = examples(vocabulary, config.architecture.vocab)
        model = program_flags.build(Bert, config)
        trainer = fine_tuning.trainer(model, _STEPS.value, _WARMUP.value)
        fine_tuning.introduce(model, rows)
        fine_tuning.train(trainer, rows, _STEPS.value, part="")
        if fine_tuning.EVAL.value:
            evaluate(model, rows, trainer.steps_done)


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "vocab_file", "output_dir"])
    run_main(main)
