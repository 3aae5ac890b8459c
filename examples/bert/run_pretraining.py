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

_COUNTED = 20_000  # examples from which the baselines are computed


def examples(vocabulary: data.WordPieceVocabulary, vocab: int) -> data.TaskData:
    """Returns the examples of --input_file and --eval_file, in batches.

    Args:
      vocabulary: the vocabulary of the examples.
      vocab: the size of the model's vocabulary.
    """
    on_bad = training_flags.ON_BAD.value
    input_files = program_flags.INPUT.value
    train = pretraining_records.read(input_files, on_bad)
    held_out = pretraining_records.read(_EVAL.value or input_files, on_bad)
    task = data.Task(
        "pretraining",
        fine_tuning.InMemorySource(train, held_out),
        vocabulary,
        data.BertFeatures(program_flags.LENGTH.value, program_flags.PREDICTIONS.value),
        preprocessors=[functools.partial(pretraining_records.from_record, vocab=vocab)],
    )
    return data.TaskData(task, seed=program_flags.SEED.value)


def evaluate(model: Bert, examples: data.TaskData, step: int) -> None:
    """Prints and writes the accuracy on masked tokens and next sentences."""
    batch_size = training_flags.EVAL_BATCH.value
    num_examples = batch_size * _EVAL_STEPS.value
    metrics = Evaluation(model, examples, batch_size, num_examples)()
    source = examples.task.source
    tokens, labels = _counts(source.train())
    held_out_tokens, held_out_labels = _counts(source.held_out())
    # The baselines predict these for all held-out examples.
    most_frequent_token = max(tokens, key=tokens.get)
    most_frequent_label = max(labels, key=labels.get)
    word_piece = examples.vocabulary.pieces[most_frequent_token]
    baseline_loss = _unigram_loss(tokens, held_out_tokens, model.architecture.vocab)
    token_accuracy = held_out_tokens[most_frequent_token] / held_out_tokens.total()
    label_accuracy = held_out_labels[most_frequent_label] / held_out_labels.total()
    fine_tuning.report(
        {
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
        {
            "global_step": step,
            "masked_lm_loss": metrics["loss"],
            "masked_lm_accuracy": metrics["accuracy"],
            "next_sentence_accuracy": metrics["next_sentence_accuracy"],
        },
    )


def _counts(
    examples: Sequence[data.sources.Example],
) -> tuple[collections.Counter[int], collections.Counter[int]]:
    """Returns how often each masked token and each next-sentence label occurs in the first
    examples.
    """
    tokens: collections.Counter[int] = collections.Counter()
    labels: collections.Counter[int] = collections.Counter()
    subset = itertools.islice(examples, _COUNTED)
    for masked_ids, label in pretraining_records.masked_ids(subset):
        tokens.update(masked_ids.tolist())
        labels[label] += 1
    return tokens, labels


def _unigram_loss(
    counts: collections.Counter[int], held_out: collections.Counter[int], vocab: int
) -> float:
    """Returns the mean of -ln p over held-out tokens, where p is the frequency of a token
    in the training examples with add-one smoothing.

    Args:
      counts: the number of occurrences of each token in the training examples.
      held_out: the number of occurrences of each token in the held-out examples.
      vocab: the size of the vocabulary.
    """
    ids = np.fromiter(held_out, int)
    p = (np.array([counts[i] for i in ids]) + 1.0) / (counts.total() + vocab)
    weights = np.fromiter(held_out.values(), float)
    return float(-(weights * np.log(p)).sum() / weights.sum())


def main(argv: Sequence[str]) -> None:
    """Trains and evaluates, as the flags say."""
    with fine_tuning.exit_on_user_errors():
        fine_tuning.prepare(argv, steps=_STEPS)
        vocabulary = model_setup.vocabulary()
        config = model_setup.config(vocabulary)
        batches = examples(vocabulary, config.architecture.vocab)
        model = model_setup.build(Bert, config)
        trainer = fine_tuning.trainer(model, _STEPS.value, _WARMUP.value)
        fine_tuning.introduce(model, batches)
        fine_tuning.train(trainer, batches, _STEPS.value, prefix="")
        if training_flags.EVAL.value:
            evaluate(model, batches, trainer.steps_done)


if __name__ == "__main__":
    run_main(main)
