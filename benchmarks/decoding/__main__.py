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
from benchmarks.ops import hand_written_kernels
from transformer.cli.program import run_main
from transformer.inference.decoder import Decoder
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel

FLAGS = flags.FLAGS
SIZES = {
    "small": Architecture(vocab=256, d_model=128, d_ff=512, heads=4, d_kv=32, blocks=3),
    "medium": Architecture(
        vocab=8192, d_model=512, d_ff=2048, heads=8, d_kv=64, blocks=6
    ),
}


class HandWrittenDecoder:
    """Greedy decoding in plain TensorFlow, of a model with rotary positions, RMS norms,
    gelu and no biases.

    Weights are named by their path in `LanguageModel`. Dimensions heads and d_kv are one,
    so all weights are matrices.

    Args:
      architecture: the sizes of the model.
      weights: arrays by name.
      new_tokens: how many ids are generated.
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: dict[str, np.ndarray],
        new_tokens: int,
    ) -> None:
        self.architecture = architecture
        self.new_tokens = new_tokens
        self.weights = {
            name: tf.Variable(value.reshape(_matrix_shape(name, value)))
            for name, value in weights.items()
        }

    @tf.function(autograph=False, reduce_retracing=False)
    def generate(
        self, prompts: tf.Tensor, lengths: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Generates ids after prompts.

        Args:
          prompts: int32 [batch, length], padded.
          lengths: int32 [batch]: the lengths of the prompts.

        Returns:
          Ids [batch, new_tokens], and the sums of their log-probabilities [batch].
        """
        batch, length = prompts.shape
        heads = self.architecture.heads
        weights = {name: w.read_value() for name, w in self.weights.items()}
        num_slots = length + self.new_tokens - 1
        cos, sin = hand_written_kernels.angles(num_slots, self.architecture.d_kv)
        # Caches are [batch * heads * num_slots, d_kv]; the first row of each head:
        first_rows = tf.reshape(tf.range(batch * heads) * num_slots, [batch, heads])
        logits, caches = self.read_prompts(weights, prompts, lengths, num_slots)
        ids, score = _greedy(logits)
        outputs = tf.TensorArray(tf.int32, self.new_tokens, element_shape=[batch])

        def step(i: Any, ids: Any, outputs: Any, total: Any, *caches: Any) -> Any:
            slots = lengths + i
            is_visible = tf.range(num_slots) <= slots[:, None]
            mask = tf.where(is_visible, 0.0, -1e9)[:, None, None]
            logits, caches = self.step(
                weights,
                ids,
                caches,
                tf.reshape(first_rows + slots[:, None], [-1, 1]),
                mask,
                tf.gather(cos, slots)[:, None],
                tf.gather(sin, slots)[:, None],
            )
            ids, score = _greedy(logits)
            return i + 1, ids, outputs.write(i + 1, ids), total + score, *caches

        initial = [tf.constant(0), ids, outputs.write(0, ids), score, *caches]
        _, _, outputs, total, *_ = tf.while_loop(
            lambda i, *_: i < self.new_tokens - 1, step, initial
        )
        return tf.transpose(outputs.stack()), total

    def read_prompts(
        self,
        weights: dict[str, tf.Tensor],
        prompts: tf.Tensor,
        lengths: tf.Tensor,
        num_slots: int,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns logits [batch, vocab] after the prompts, and the keys and values of each
        block in caches with `num_slots` slots.
        """
        a = self.architecture
        batch, length = prompts.shape
        cos, sin = hand_written_kernels.angles(length, a.d_kv)
        mask = hand_written_kernels.causal_mask(length)
        padding = [[0, 0], [0, 0], [0, num_slots - length], [0, 0]]
        caches: list[tf.Tensor] = []

        def split_heads(x: tf.Tensor) -> tf.Tensor:
            x = tf.reshape(x, [batch, length, a.heads, a.d_kv])
            return tf.transpose(x, [0, 2, 1, 3])

        x = tf.gather(weights["embedding/table"], tf.reshape(prompts, [-1]))
        for i in range(a.blocks):
            block = _weights_of_block(weights, i)
            q, k, v = map(split_heads, self.project(block, x))
            q = self.rotate(q, cos, sin)
            k = self.rotate(k, cos, sin)
            for y in (k, v):
                caches.append(tf.reshape(tf.pad(y, padding), [-1, a.d_kv]))
            y = tf.transpose(self.attend(q, k, v, mask), [0, 2, 1, 3])
            x = self.add_sublayers(block, x, y)
        x = tf.reshape(x, [batch, length, -1])
        x = tf.gather(x, lengths - 1, batch_dims=1)
        return self.logits(weights, x), caches

    def step(
        self,
        weights: dict[str, tf.Tensor],
        ids: tf.Tensor,
        caches: Sequence[tf.Tensor],
        cache_rows: tf.Tensor,
        mask: tf.Tensor,
        cos: tf.Tensor,
        sin: tf.Tensor,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns logits [batch, vocab] after ids [batch], and the caches.

        Args:
          weights: all weights.
          ids: the last ids.
          caches: keys and values of each block.
          cache_rows: [batch * heads, 1]: the rows of the caches to write.
          mask: [batch, 1, 1, num_slots]: 0 for visible slots, -1e9 for all others.
          cos: [batch, 1, d_kv], of the rotary positions.
          sin: [batch, 1, d_kv], signed.
        """
        a = self.architecture
        new_caches: list[tf.Tensor] = []

        def update(cache: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
            rows = tf.reshape(x, [-1, a.d_kv])
            new_caches.append(tf.tensor_scatter_nd_update(cache, cache_rows, rows))
            return tf.reshape(new_caches[-1], [ids.shape[0], a.heads, -1, a.d_kv])

        x = tf.gather(weights["embedding/table"], ids)
        for i in range(a.blocks):
            block = _weights_of_block(weights, i)
            q, k, v = (
                tf.reshape(y, [-1, a.heads, a.d_kv]) for y in self.project(block, x)
            )
            q = self.rotate(q, cos, sin)
            keys = update(caches[2 * i], self.rotate(k, cos, sin))
            values = update(caches[2 * i + 1], v)
            y = self.attend(q[:, :, None], keys, values, mask)
            x = self.add_sublayers(block, x, y)
        return self.logits(weights, x), new_caches

    def project(self, block: dict[str, tf.Tensor], x: tf.Tensor) -> list[tf.Tensor]:
        """Returns queries, keys and values [tokens, heads * d_kv] of x [tokens, d_model]."""
        h = hand_written_kernels.rms_norm(x, block["attention_norm/scale"])
        return [
            tf.matmul(h, block["attention/query/kernel"]),
            tf.matmul(h, block["attention/key/kernel"]),
            tf.matmul(h, block["attention/value/kernel"]),
        ]

    def rotate(self, x: tf.Tensor, cos: tf.Tensor, sin: tf.Tensor) -> tf.Tensor:
        """Returns x [..., d_kv] with rotary positions."""
        return x * cos + tf.roll(x, self.architecture.d_kv // 2, -1) * sin

    def attend(
        self, q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, mask: tf.Tensor
    ) -> tf.Tensor:
        """Returns attention [batch, heads, length, d_kv]."""
        scale = self.architecture.d_kv**-0.5
        scores = tf.matmul(q * scale, k, transpose_b=True)
        return tf.matmul(tf.nn.softmax(scores + mask), v)

    def add_sublayers(
        self, block: dict[str, tf.Tensor], x: tf.Tensor, y: tf.Tensor
    ) -> tf.Tensor:
        """Returns the output [tokens, d_model] of a block: x, plus the output projection of
        attention y, plus the feed-forward layer.
        """
        y = tf.reshape(y, [x.shape[0], -1])
        x += tf.matmul(y, block["attention/output/kernel"])
        h = hand_written_kernels.rms_norm(x, block["feed_forward_norm/scale"])
        h = hand_written_kernels.gelu(tf.matmul(h, block["feed_forward/wi/kernel"]))
        return x + tf.matmul(h, block["feed_forward/wo/kernel"])

    def logits(self, weights: dict[str, tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        """Returns logits [batch, vocab]."""
        x = hand_written_kernels.rms_norm(x, weights["decoder/norm/scale"])
        return tf.matmul(x, weights["logits/kernel"])


def _greedy(logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the likeliest ids and their log-probabilities, [batch] each."""
    ids = tf.argmax(logits, -1, tf.int32)
    return ids, tf.reduce_max(logits, -1) - tf.reduce_logsumexp(logits, -1)


def _weights_of_block(
    weights: dict[str, tf.Tensor], index: int
) -> dict[str, tf.Tensor]:
    """Returns the weights of a block, by their path within it."""
    prefix = f"decoder/block_{index}/"
    return {
        name.removeprefix(prefix): w
        for name, w in weights.items()
        if name.startswith(prefix)
    }


def _matrix_shape(name: str, value: np.ndarray) -> tuple[int, ...]:
    """Returns the shape of a weight with heads and d_kv as one dimension."""
    if value.ndim < 3:
        return value.shape
    if "output" in name:
        return -1, value.shape[-1]
    return value.shape[0], -1


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


def make_prompts(a: Architecture, batch: int, length: int) -> list[list[int]]:
    """Returns random prompts of different lengths, up to `length`."""
    rng = np.random.default_rng(0)
    lengths = [max(length - i, 1) for i in range(batch)]
    return [rng.integers(0, a.vocab, n).tolist() for n in lengths]


def run_hand_written(
    decoder: HandWrittenDecoder, prompts: Sequence[Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids [batch, new_tokens] and scores [batch] of the hand-written decoder."""
    lengths = np.array([len(ids) for ids in prompts], np.int32)
    padded = np.zeros((len(prompts), lengths.max()), np.int32)
    for row, ids in zip(padded, prompts):
        row[: len(ids)] = ids
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


def measure(size: str, batch: int, length: int, new_tokens: int, rounds: int) -> Result:
    """Compares the results of both decoders, then measures their times."""
    architecture = SIZES[size]
    model = LanguageModel(mtf.Mesh(""), architecture)
    weights = {v.name.partition("/")[2]: v.numpy() for v in model.variables}
    prompts = make_prompts(architecture, batch, length)
    hand_written = HandWrittenDecoder(architecture, weights, new_tokens)
    decoder = Decoder(model, new_tokens, length, batch)
    ids, scores = run_hand_written(hand_written, prompts)
    for _ in range(2):  # the first call of each traces
        completions = decoder(prompts)
        np.testing.assert_array_equal([c.ids for c in completions], ids)
        np.testing.assert_allclose(
            [c.score for c in completions], scores, rtol=1e-3, atol=1e-3
        )
        run_hand_written(hand_written, prompts)
    hand_written_times, meshtf_times = time_in_turn(
        [lambda: run_hand_written(hand_written, prompts), lambda: decoder(prompts)],
        rounds,
    )
    return Result(size, batch, new_tokens * batch, hand_written_times, meshtf_times)


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
            result = measure(size, batch, FLAGS.prompt, FLAGS.new_tokens, FLAGS.rounds)
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
