"""Pretrains BERT on the examples of create_pretraining_data: masked tokens, and next
sentences.

    python -m examples.bert.run_pretraining --input_file=train.tfrecord --eval_file=dev.tfrecord \\
        --bert_config_file=bert_config.json --vocab_file=vocab.txt --output_dir=runs/pretrained \\
        --do_train --do_eval --train_batch_size=32 --num_train_steps=1000 --num_warmup_steps=100 \\
        --learning_rate=1e-3 --optimizer=lamb --mesh='data:4;model:2'

Baselines: the most frequent token and the most frequent answer of the training examples.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from examples.bert.shared import program_flags, training_flags
from transformer.cli.program import answer_usage, run_main

_EVAL = flags.DEFINE_string(
    "eval_file", None, "Examples for evaluation; by default those of --input_file."
)
_STEPS = flags.DEFINE_integer(
    "num_train_steps", 100_000, "Total number of steps.", lower_bound=1
)
_WARMUP = flags.DEFINE_integer(
    "num_warmup_steps", 10_000, "Steps of linear warmup of the learning rate."
)
_EVAL_STEPS = flags.DEFINE_integer(
    "max_eval_steps", 100, "Maximum number of evaluation batches.", lower_bound=1
)
flags.adopt_module_key_flags(program_flags)
flags.adopt_module_key_flags(training_flags)

if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "vocab_file", "output_dir"])
    answer_usage()  # before the imports below take seconds for TensorFlow

import numpy as np

from examples.bert.datasets import pretraining_records
from examples.bert.shared import fine_tuning, model_setup
from transformer import data
from transformer.models.bert import Bert
from transformer.training.evaluation import Evaluation

_MAX_BASELINE_EXAMPLES = 20_000  # examples from which the baselines are computed


def examples(vocabulary: data.WordPieceVocabulary, vocab: int) -> data.TaskData:
    """Returns the examples of --input_file and --eval_file, in batches.

    Args:
      vocabulary: the vocabulary of the examples.
      vocab: the size of the model's vocabulary.

    Raises:
      DataError: a file cannot be read, or its records are not for this model or vocabulary.
    """
    on_bad = training_flags.ON_BAD.value
    input_files = program_flags.INPUT.value
    train = pretraining_records.read(input_files, on_bad)
    held_out = pretraining_records.read(_EVAL.value or input_files, on_bad)
    convert = functools.partial(
        pretraining_records.from_record, vocab=vocab, vocabulary=vocabulary
    )
    for split in (train, held_out):
        # The other records are converted when they are read. Errors of the first one are
        # raised here, before anything is written.
        convert(split[0], seed=(0,))
    task = data.Task(
        "pretraining",
        fine_tuning.InMemorySource(train, held_out),
        vocabulary,
        data.BertFeatures(
            length=program_flags.LENGTH.value,
            predictions=program_flags.PREDICTIONS.value,
        ),
        preprocessors=[convert],
    )
    return data.TaskData(task, seed=program_flags.SEED.value)


def evaluate(model: Bert, examples: data.TaskData, step: int) -> None:
    """Prints and writes the accuracy on masked tokens and next sentences.

    Args:
      model: the model.
      examples: the training and held-out examples.
      step: the number of training steps done.
    """
    batch_size = training_flags.EVAL_BATCH.value
    num_examples = batch_size * _EVAL_STEPS.value
    evaluation = Evaluation(model, examples, batch_size, num_examples)
    metrics = evaluation()
    source = examples.task.source
    train_counts = _count(source.train())
    held_out_counts = _count(source.held_out())
    # The baselines predict these for all held-out examples.
    most_frequent_token, _ = train_counts.tokens.most_common(1)[0]
    most_frequent_label, _ = train_counts.labels.most_common(1)[0]
    word_piece = examples.vocabulary.pieces[most_frequent_token]
    baseline_loss = _unigram_loss(
        train_counts.tokens, held_out_counts.tokens, vocab=model.architecture.vocab
    )
    token_accuracy = _frequency(most_frequent_token, held_out_counts.tokens)
    label_accuracy = _frequency(most_frequent_label, held_out_counts.labels)
    fine_tuning.report(
        table={
            "masked tokens: loss in nats": (
                f"{metrics['loss']:.3f}",
                f"{baseline_loss:.3f} by their frequencies",
            ),
            "masked tokens: accuracy": (
                f"{metrics['accuracy']:.1%}",
                f"{token_accuracy:.1%} with {word_piece!r} for all",
            ),
            "next sentences: accuracy": (
                f"{metrics['next_sentence_accuracy']:.1%}",
                f"{label_accuracy:.1%} with the more frequent answer",
            ),
        },
        metrics={
            "global_step": step,
            "masked_lm_loss": metrics["loss"],
            "masked_lm_accuracy": metrics["accuracy"],
            "next_sentence_accuracy": metrics["next_sentence_accuracy"],
        },
    )


class Counts(NamedTuple):
    """How often each masked token, and each next-sentence label, occurs in examples."""

    tokens: collections.Counter[int]
    labels: collections.Counter[int]


def _count(examples: Sequence[data.sources.Example]) -> Counts:
    """Returns the counts of the first `_MAX_BASELINE_EXAMPLES` examples."""
    counts = Counts(tokens=collections.Counter(), labels=collections.Counter())
    subset = itertools.islice(examples, _MAX_BASELINE_EXAMPLES)
    for masked_ids, label in pretraining_records.masked_ids(subset):
        counts.tokens.update(masked_ids.tolist())
        counts.labels[label] += 1
    return counts


def _frequency(key: int, counts: collections.Counter[int]) -> float:
    """Returns the fraction of occurrences that are those of a token or label."""
    return counts[key] / counts.total()


def _unigram_loss(
    train_counts: collections.Counter[int],
    held_out_counts: collections.Counter[int],
    vocab: int,
) -> float:
    """Returns the mean of -ln p over held-out tokens, where p is the frequency of a token
    in the training examples with add-one smoothing.

    Args:
      train_counts: the number of occurrences of each token in the training examples.
      held_out_counts: the number of occurrences of each token in the held-out examples.
      vocab: the size of the vocabulary.
    """
    ids = np.fromiter(held_out_counts, int)
    smoothed_counts = np.array([train_counts[i] for i in ids]) + 1.0
    p = smoothed_counts / (train_counts.total() + vocab)
    weights = np.fromiter(held_out_counts.values(), float)
    return float(-(weights * np.log(p)).sum() / weights.sum())


def main(argv: Sequence[str]) -> None:
    """Trains and evaluates, as the flags say."""
    with fine_tuning.exit_on_user_errors():
        fine_tuning.prepare(argv, steps=_STEPS)
        vocabulary = model_setup.vocabulary()
        config = model_setup.config(vocabulary)
        batches = examples(vocabulary, config.architecture.vocab)
        model = model_setup.build(Bert, config)
        trainer = fine_tuning.trainer(model, steps=_STEPS.value, warmup=_WARMUP.value)
        fine_tuning.print_setup(model, batches)
        # All variables of --init_checkpoint are read, not only those of the encoder.
        fine_tuning.train(trainer, batches, _STEPS.value, prefix="")
        if training_flags.EVAL.value:
            evaluate(model, batches, trainer.steps_done)


if __name__ == "__main__":
    run_main(main)
