"""Steps of BERT whose 30,522 word pieces an axis of four positions does not divide, beside steps
with 30,524, which it divides.

    python -m benchmarks.padding                          # the placed runtime
    python -m benchmarks.padding --padding_devices=spmd:cpu       # a live mesh

Both models train in one process, a step each in turn, so that a slow moment of the machine
meets both. Sizes are those of BERT-base with fewer blocks (--bert_blocks), in batches of 8 texts of
128 tokens.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from absl import flags

import meshtf as mtf
from transformer.cli.program import run_main
from transformer.models.bert import Bert, bert_architecture
from transformer.training.trainer import Trainer

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "padding_devices", "", 'The devices, such as "spmd:cpu"; "": those of TensorFlow.'
)
flags.DEFINE_integer(
    "bert_blocks", 2, "The number of transformer blocks.", lower_bound=1
)
flags.DEFINE_integer(
    "timed_steps", 12, "The number of timed steps of each model.", lower_bound=1
)

_SIZES = 30_522, 30_524  # word pieces: not a multiple of 4, and one
_BATCH, _LENGTH, _MASKED = 8, 128, 20


def main(argv: list[str]) -> None:
    """Prints the time of a step with both sizes, and their ratio."""
    del argv
    mtf.configure_process()
    pairs = measure(
        _SIZES,
        FLAGS.timed_steps,
        FLAGS.padding_devices or None,
        blocks=FLAGS.bert_blocks,
    )
    uneven, even = (statistics.median(seconds) for seconds in zip(*pairs))
    ratio = statistics.median(a / b for a, b in pairs)
    print(
        f"{_SIZES[0]:,} word pieces {uneven:.3f} s a step, {_SIZES[1]:,} {even:.3f} s; "
        f"median ratio of neighbours {ratio:.3f}"
    )


def measure(
    vocabs: Sequence[int], num_steps: int, devices: str | None, **sizes: int
) -> list[list[float]]:
    """Returns for each timed step the seconds that it takes with each of `vocabs`.

    Args:
      vocabs: the numbers of word pieces.
      num_steps: the number of timed steps.
      devices: the devices of the mesh, as `mtf.Mesh` takes them.
      **sizes: settings of the architecture in place of BERT-base's.
    """
    steps = [_training_step(vocab, devices, sizes) for vocab in vocabs]
    seconds = []
    for _ in range(num_steps):
        seconds_of_sizes = []
        for step in steps:
            start = time.perf_counter()
            step()
            seconds_of_sizes.append(time.perf_counter() - start)
        seconds.append(seconds_of_sizes)
    return seconds


def _training_step(
    vocab: int, devices: str | None, sizes: Mapping[str, int]
) -> Callable[[], float]:
    """Returns a function that trains BERT for a step, and returns the loss; it has run twice.

    The arguments are those of `measure`.
    """
    mesh = mtf.Mesh("model:4", "heads:model; d_ff:model; vocab:model", devices=devices)
    architecture = bert_architecture(
        vocab=vocab, dropout=0.0, max_length=_LENGTH, **sizes
    )
    trainer = Trainer(Bert(mesh, architecture))
    random = np.random.default_rng(0)
    shape = (_BATCH, _LENGTH)
    batch = {
        "tokens": random.integers(4, vocab, shape).astype("int32"),
        "token_types": (np.arange(_LENGTH) >= _LENGTH // 2) * np.ones(shape, "int32"),
        "masked_positions": random.integers(1, _LENGTH, (_BATCH, _MASKED)),
        "masked_ids": random.integers(4, vocab, (_BATCH, _MASKED)),
        "masked_weights": np.ones((_BATCH, _MASKED), "float32"),
        "next_sentence_labels": random.integers(0, 2, _BATCH),
    }
    arrays = {
        name: x if x.dtype == "float32" else x.astype("int32")
        for name, x in batch.items()
    }

    def step() -> float:
        """Trains for one step."""
        loss, _norm = trainer.step(arrays)
        return float(loss)

    for _ in range(2):
        step()
    return step


if __name__ == "__main__":
    run_main(main)
