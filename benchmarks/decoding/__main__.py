"""Greedy decoding speed in tokens/s: `Decoder` against hand-written TensorFlow.

    python -m benchmarks.decoding                          # about a minute on two cores
    python -m benchmarks.decoding --sizes=small --batches=1 --rounds=21 --json=decoding.json
    python -m benchmarks.decoding --threads=1              # both on one core

Both decoders read all prompts in one pass, then generate ids one by one with key/value
caches; the hand-written one does so in a `tf.while_loop` on one device. The prompts of a
batch have different lengths. The ids of both decoders and their log-probabilities are
compared first. Then both run in turn in one process. A ratio is the time of meshtf over that
of the hand-written decoder, the median over rounds: of wall time, and of processor time.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

import meshtf as mtf
from benchmarks.decoding.hand_written_decoder import HandWrittenDecoder
from benchmarks.harness.clocks import Seconds, now
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
      tokens: the number of tokens generated in a run.
      hand_written: the seconds of the hand-written decoder in each round.
      meshtf: the seconds of meshtf's decoder in each round.
    """

    size: str
    batch: int
    tokens: int
    hand_written: list[Seconds]
    meshtf: list[Seconds]

    def wall_ratio(self) -> float:
        """Returns the median over rounds of meshtf / hand-written, of wall time."""
        rounds = zip(self.meshtf, self.hand_written, strict=True)
        return statistics.median(
            meshtf.wall / hand_written.wall for meshtf, hand_written in rounds
        )

    def processor_ratio(self) -> float:
        """Returns the median over rounds of meshtf / hand-written, of processor time."""
        rounds = zip(self.meshtf, self.hand_written, strict=True)
        return statistics.median(
            meshtf.processor / hand_written.processor for meshtf, hand_written in rounds
        )

    def line(self) -> str:
        """Returns a line of the table, with the columns of HEAD."""
        hand_written_rate = self._tokens_per_second(self.hand_written)
        meshtf_rate = self._tokens_per_second(self.meshtf)
        return (
            f"{self.size:10}{self.batch:>6}{hand_written_rate:14,.0f}"
            f"{meshtf_rate:12,.0f}{self.wall_ratio():8.2f}{self.processor_ratio():11.2f}"
        )

    def _tokens_per_second(self, rounds: list[Seconds]) -> float:
        """Returns the tokens in a second of wall time, by the median over rounds."""
        return self.tokens / statistics.median(seconds.wall for seconds in rounds)


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


def time_in_turn(runs: Sequence[Callable[[], Any]], rounds: int) -> list[list[Seconds]]:
    """Returns, for each run, the seconds of each round. In a round, all runs are called one
    after the other.
    """
    times: list[list[Seconds]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, times_of_run in zip(runs, times):
            start = now()
            run()
            times_of_run.append(now().since(start))
    return times


def measure(
    size: str,
    batch: int,
    length: int,
    new_tokens: int,
    rounds: int,
) -> Result:
    """Compares the results of both decoders, then measures and returns their times.

    Args:
      size: the name of the model size.
      batch: the number of prompts.
      length: the length of the longest prompt.
      new_tokens: the number of tokens that are generated after each prompt.
      rounds: the number of runs of each decoder that are timed.
    """
    architecture = SIZES[size]
    model = LanguageModel(mtf.Mesh(""), architecture)
    weights = {}
    for variable in model.variables:
        # "language_model/decoder/norm/scale" -> "decoder/norm/scale"
        _, _, path_in_model = variable.name.partition("/")
        weights[path_in_model] = variable.numpy()
    prompts = make_prompts(architecture.vocab, batch, length)
    hand_written = HandWrittenDecoder(architecture, weights, new_tokens)
    decoder = Decoder(
        model,
        max_new_tokens=new_tokens,
        max_prompt_length=length,
        batch_size=batch,
    )
    ids, scores = run_hand_written(hand_written, prompts)
    # The first call of a decoder traces, so both are called before they are timed.
    for _ in range(2):
        completions = decoder(prompts)
        np.testing.assert_array_equal(
            [completion.ids for completion in completions], ids
        )
        np.testing.assert_allclose(
            [completion.score for completion in completions],
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
            ratios = {
                "ratio": result.wall_ratio(),
                "processor_ratio": result.processor_ratio(),
            }
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
