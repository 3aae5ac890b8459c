"""Makes pretraining examples from texts: pairs of sentences with masked tokens.

    python -m examples.bert.create_pretraining_data --input_file='text/*.txt' \\
        --output_file=examples.tfrecord --vocab_file=vocab.txt --max_seq_length=128 \\
        --max_predictions_per_seq=20 --masked_lm_prob=0.15 --dupe_factor=5

A line is a sentence, and an empty line ends a document. Each of the --dupe_factor passes
over the texts draws new pairs and masks. Equal flags give equal files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from examples.bert.shared import program_flags
from transformer.cli.program import answer_usage, run_main

_OUTPUT = flags.DEFINE_string(
    "output_file", None, "TFRecord files to write in turn, separated by commas."
)
_MASKED_FRACTION = flags.DEFINE_float(
    "masked_lm_prob", 0.15, "The fraction of tokens that are masked."
)
_PASSES = flags.DEFINE_integer(
    "dupe_factor", 10, "Passes over the texts.", lower_bound=1
)
_SHORT_FRACTION = flags.DEFINE_float(
    "short_seq_prob", 0.1, "The fraction of examples that are shortened."
)
_WHOLE_WORDS = flags.DEFINE_bool(
    "do_whole_word_mask", False, "Mask all pieces of a word or none."
)
for name in (
    "input_file",
    "vocab_file",
    "do_lower_case",
    "max_seq_length",
    "max_predictions_per_seq",
    "random_seed",
):  # so that --help shows them
    flags.declare_key_flag(name)

# Random streams, each a part of the seeds of pairs or of masks.
_PAIRS_STREAM = 0
_MASKS_STREAM = 1

if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "output_file", "vocab_file"])
    answer_usage()  # before the imports below take seconds for TensorFlow

from examples.bert.datasets import pretraining_records
from examples.bert.shared import model_setup
from transformer import data
from transformer.cli import command_line
from transformer.data.atomic_files import check_writable
from transformer.data.preprocessors import SentencePairs, mask_tokens
from transformer.data.sources import Example


def examples(
    documents: Sequence[Example], vocabulary: data.WordPieceVocabulary
) -> Iterator[Example]:
    """Yields examples: `tokens`, `token_types`, the masked tokens and their positions, and
    whether the second text follows the first one.

    Args:
      documents: the documents: `text` has a sentence on each line.
      vocabulary: the vocabulary of the tokens.
    """
    seed = program_flags.SEED.value
    pairs = SentencePairs(
        vocabulary,
        length=program_flags.LENGTH.value,
        short=_SHORT_FRACTION.value,
    )
    for pass_index in range(_PASSES.value):
        pair_examples = pairs(documents, seed=(seed, pass_index, _PAIRS_STREAM))
        for k, example in enumerate(pair_examples):
            yield mask_tokens(
                example,
                seed=(seed, pass_index, _MASKS_STREAM, k),
                vocabulary=vocabulary,
                predictions=program_flags.PREDICTIONS.value,
                rate=_MASKED_FRACTION.value,
                whole_words=_WHOLE_WORDS.value,
            )


def main(argv: Sequence[str]) -> None:
    """Reads texts and writes examples."""
    with command_line.exit_on_user_errors():
        command_line.refuse_gin(argv)
        paths = model_setup.files(program_flags.INPUT.value)
        outputs = _OUTPUT.value.split(",")
        for output in outputs:
            check_writable(output, "--output_file")
        vocabulary = model_setup.vocabulary()
        documents = pretraining_records.documents(paths)
        sentences = sum(text["text"].count("\n") + 1 for text in documents)
        print(
            f"{len(documents):,} documents, {sentences:,} sentences, of "
            f"{', '.join(map(str, paths))}",
            flush=True,
        )
        features = data.BertFeatures(
            length=program_flags.LENGTH.value,
            predictions=program_flags.PREDICTIONS.value,
        )
        count = pretraining_records.write(
            outputs, examples(documents, vocabulary), features, vocabulary
        )
        print(f"{count:,} examples are in {', '.join(outputs)}", flush=True)


if __name__ == "__main__":
    run_main(main)
