"""Greedy decoding speed in tokens/s: `Decoder` against hand-written TensorFlow.

    python -m benchmarks.decoding                          # about a minute on two cores
    python -m benchmarks.decoding --sizes=small --batches=1 --rounds=21 --json=decoding.json
    python -m benchmarks.decoding --threads=1              # both on one core

The hand-written version also reads prompts in one pass; then a `tf.while_loop` writes to
key/value caches of fixed length, on one device. The prompts of a batch have different
lengths. Both return ids and their log-probabilities, which are compared first. Both run in
one process in turn. The ratios are medians over rounds of meshtf / hand-written, of wall
time and of processor time.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

import meshtf as mtf
from benchmarks.decoding.hand_written_decoder import HandWrittenDecoder
from transformer.cli.program import run_main
from transformer.inference.decoder import Decoder
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel

FLAGS = flags.FLAGS
SIZES = {
    "small": Architecture(
        vocab=256,
        d_model=128,
        d_ff=512,
        heads=4,
        d_kv=32,
        blocks=3,
    ),
    "medium": Architecture(
        vocab=8192,
        d_model=512,
        d_ff=2048,
        heads=8,
        d_kv=64,
        blocks=6,
    ),
}


@dataclasses.dataclass(frozen=True)
class Result:
    """Measurements of one model size and batch size.

    Attributes:
      size: the name of the model size.
      batch: the number of prompts.
      tokens: tokens generated in a run.
      hand_written: (wall, processor) seconds of each round.
      meshtf: (wall, processor) seconds of each round.
    """

    size: str
    batch: int
    tokens: int
    hand_written: list[tuple[float, float]]
    meshtf: list[tuple[float, float]]

    def ratio(self, kind: int) -> float:
        """Returns the median over rounds of meshtf / hand-written: of wall time if `kind`
        is 0, of processor time if it is 1.
        """
        rounds = zip(self.meshtf, self.hand_written, strict=True)
        return statistics.median(x[kind] / y[kind] for x, y in rounds)

    def line(self) -> str:
        """Returns a line of the table."""
        rates = [
            self.tokens / statistics.median(wall for wall, _ in times)
            for times in (self.hand_written, self.meshtf)
        ]
        return (
            f"{self.size:10}{self.batch:>6}{rates[0]:14,.0f}{rates[1]:12,.0f}"
            f"{self.ratio(0):8.2f}{self.ratio(1):11.2f}"
        )


HEAD = (
    "model      batch  hand-written      meshtf   ratio  processor"
    "    (tokens/s; ratios of times)"
)


def make_prompts(vocab: int, batch: int, length: int) -> list[list[int]]:
    """Returns `batch` random prompts of different lengths, up to `length`."""
    rng = np.random.default_rng(0)
    lengths = [max(length - i, 1) for i in range(batch)]
    return [rng.integers(0, vocab, n).tolist() for n in lengths]


def run_hand_written(
    decoder: HandWrittenDecoder, prompts: Sequence[Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids [batch, new_tokens] and scores [batch] of the hand-written decoder."""
    lengths = np.array([len(ids) for ids in prompts], np.int32)
    padded = np.zeros((len(prompts), lengths.max()), np.int32)
    for i, ids in enumerate(prompts):
        padded[i, : len(ids)] = ids
    ids, scores = decoder.generate(padded, lengths)
    return ids.numpy(), scores.numpy()


def time_in_turn(
    runs: Sequence[Callable[[], Any]], rounds: int
) -> list[list[tuple[float, float]]]:
    """Returns, for each run, the (wall, processor) seconds of each round. In a round, all
    runs are called one after the other.
    """
    times: list[list[tuple[float, float]]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, times_of_run in zip(runs, times):
            wall_start = time.perf_counter()
            processor_start = time.process_time()
            run()
            wall = time.perf_counter() - wall_start
            processor = time.process_time() - processor_start
            times_of_run.append((wall, processor))
    return times


def measure(
    size: str,
    batch: int,
    length: int,
    new_tokens: int,
    rounds: int,
) -> Result:
    """Compares the results of both decoders, then measures their times.

    Args:
      size: the name of the model size.
      batch: the number of prompts.
      length: the length of the longest prompt.
      new_tokens: the number of tokens that are generated after each prompt.
      rounds: the number of runs of each decoder that are timed.
    """
    architecture = SIZES[size]
    model = LanguageModel(mtf.Mesh(""), architecture)
    # By their path within the model.
    weights = {v.name.partition("/")[2]: v.numpy() for v in model.variables}
    prompts = make_prompts(architecture.vocab, batch, length)
    hand_written = HandWrittenDecoder(architecture, weights, new_tokens)
    decoder = Decoder(model, new_tokens, length, batch)
    ids, scores = run_hand_written(hand_written, prompts)
    for _ in range(2):  # the first call of each traces
        completions = decoder(prompts)
        np.testing.assert_array_equal([c.ids for c in completions], ids)
        np.testing.assert_allclose(
            [c.score for c in completions],
            scores,
            rtol=1e-3,
            atol=1e-3,
        )
        run_hand_written(hand_written, prompts)
    hand_written_times, meshtf_times = time_in_turn(
        [lambda: run_hand_written(hand_written, prompts), lambda: decoder(prompts)],
        rounds,
    )
    return Result(
        size=size,
        batch=batch,
        tokens=new_tokens * batch,
        hand_written=hand_written_times,
        meshtf=meshtf_times,
    )


def main(argv: Sequence[str]) -> None:
    """Measures all sizes with all batch sizes."""
    del argv
    if FLAGS.threads:
        tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
        tf.config.threading.set_inter_op_parallelism_threads(FLAGS.threads)
    results = []
    print(HEAD)
    for size in FLAGS.sizes:
        for batch in map(int, FLAGS.batches):
            result = measure(
                size,
                batch=batch,
                length=FLAGS.prompt,
                new_tokens=FLAGS.new_tokens,
                rounds=FLAGS.rounds,
            )
            print(result.line(), flush=True)
            ratios = {"ratio": result.ratio(0), "processor_ratio": result.ratio(1)}
            results.append(dataclasses.asdict(result) | ratios)
    if FLAGS.json:
        with open(FLAGS.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    flags.DEFINE_list("sizes", ["small", "medium"], "Model sizes.")
    flags.DEFINE_list("batches", ["1", "8"], "Batch sizes.")
    flags.DEFINE_integer("prompt", 96, "Length of the longest prompt in tokens.")
    flags.DEFINE_integer("new_tokens", 32, "Tokens generated after each prompt.")
    flags.DEFINE_integer("rounds", 11, "How often each is timed.")
    flags.DEFINE_integer("threads", None, "TensorFlow's threads; None: all cores.")
    flags.DEFINE_string("json", None, "A file for all measurements.")
    run_main(main)
