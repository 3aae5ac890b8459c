"""Tokens that are written in a second: `Decoder` beside the same by hand.

    python -m benchmarks.decoding                          # about a minute on two cores
    python -m benchmarks.decoding --sizes=small --batches=1 --rounds=21 --json=decoding.json
    python -m benchmarks.decoding --threads=1              # what each has to do, one core for both

By hand prompts are read in one pass, too; then a `tf.while_loop` writes to caches of
fixed length, in plain TensorFlow on one device. Prompts of a batch have different
lengths. Ids and their log-probabilities are what both return, and are compared first.
Both run in one process in turn; what is told are medians of the ratios of neighbours,
of wall time and of processor time.
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


class ByHand:
    """Greedy decoding in plain TensorFlow; weights by their path in `LanguageModel`.

    Args:
      a: rotary positions, RMS norm, gelu, no biases.
      weights: arrays by name.
      number: how many ids are written.
    """

    def __init__(
        self, a: Architecture, weights: dict[str, np.ndarray], number: int
    ) -> None:
        self.a = a
        self.number = number
        self.weights = {
            name: tf.Variable(value.reshape(_matrix(name, value)))
            for name, value in weights.items()
        }

    @tf.function(autograph=False, reduce_retracing=False)
    def write(
        self, prompts: tf.Tensor, lengths: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns ids [batch, number] after prompts [batch, length], and the sum of
        log-probabilities.
        """
        batch, length = prompts.shape
        a = self.a
        weights = {name: w.read_value() for name, w in self.weights.items()}
        rows = length + self.number - 1
        cos, sin = hand_written_kernels.angles(rows, a.d_kv)
        first = tf.reshape(tf.range(batch * a.heads) * rows, [batch, a.heads])
        logits, caches = self.read(weights, prompts, lengths, rows)
        ids, score = _likeliest(logits)
        written = tf.TensorArray(tf.int32, self.number, element_shape=[batch]).write(
            0, ids
        )

        def step(at: Any, ids: Any, written: Any, total: Any, *caches: Any) -> Any:
            place = lengths + at
            seen = tf.where(tf.range(rows) <= place[:, None], 0.0, -1e9)[:, None, None]
            turn = (tf.gather(x, place)[:, None] for x in (cos, sin))
            logits, caches = self.follow(
                weights,
                ids,
                caches,
                tf.reshape(first + place[:, None], [-1, 1]),
                seen,
                *turn,
            )
            ids, score = _likeliest(logits)
            return at + 1, ids, written.write(at + 1, ids), total + score, *caches

        start = [tf.constant(0), ids, written, score, *caches]
        _, _, written, total, *_ = tf.while_loop(
            lambda at, *_: at < self.number - 1, step, start
        )
        return tf.transpose(written.stack()), total

    def read(
        self, w: dict[str, tf.Tensor], prompts: tf.Tensor, lengths: tf.Tensor, rows: int
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns logits of what follows prompts, and caches of so many rows."""
        a, (batch, length), caches = self.a, prompts.shape, []
        turn = hand_written_kernels.angles(length, a.d_kv)
        mask = hand_written_kernels.causal_mask(length)
        x = tf.gather(w["embedding/table"], tf.reshape(prompts, [-1]))
        for i in range(a.blocks):
            own = _of_block(w, i)
            q, k, v = (
                tf.transpose(
                    tf.reshape(x, [batch, length, a.heads, a.d_kv]), [0, 2, 1, 3]
                )
                for x in self.project(own, x)
            )
            q = self.turned(q, *turn)
            k = self.turned(k, *turn)
            caches += [
                tf.reshape(
                    tf.pad(x, [[0, 0], [0, 0], [0, rows - length], [0, 0]]),
                    [-1, a.d_kv],
                )
                for x in (k, v)
            ]
            x = self.finish(
                own, x, tf.transpose(self.look(q, k, v, mask), [0, 2, 1, 3])
            )
        x = tf.gather(tf.reshape(x, [batch, length, -1]), lengths - 1, batch_dims=1)
        return self.predict(w, x), caches

    def follow(
        self,
        w: dict[str, tf.Tensor],
        ids: tf.Tensor,
        caches: Sequence[tf.Tensor],
        places: tf.Tensor,
        seen: tf.Tensor,
        cos: tf.Tensor,
        sin: tf.Tensor,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns logits of what follows ids [batch], and the caches."""
        a = self.a
        new = []
        x = tf.gather(w["embedding/table"], ids)
        for i in range(a.blocks):
            own = _of_block(w, i)
            q, k, v = (
                tf.reshape(x, [-1, a.heads, a.d_kv]) for x in self.project(own, x)
            )
            q = self.turned(q, cos, sin)
            k = self.turned(k, cos, sin)
            keys, values = (
                tf.tensor_scatter_nd_update(cache, places, tf.reshape(x, [-1, a.d_kv]))
                for cache, x in zip(caches[2 * i : 2 * i + 2], (k, v), strict=True)
            )
            new += [keys, values]
            keys, values = (
                tf.reshape(x, [ids.shape[0], a.heads, -1, a.d_kv])
                for x in (keys, values)
            )
            x = self.finish(own, x, self.look(q[:, :, None], keys, values, seen))
        return self.predict(w, x), new

    def project(self, own: dict[str, tf.Tensor], x: tf.Tensor) -> list[tf.Tensor]:
        """Returns queries, keys and values [rows, heads * d_kv]."""
        h = hand_written_kernels.rms_norm(x, own["attention_norm/scale"])
        return [
            tf.matmul(h, own[f"attention/{part}/kernel"])
            for part in ("query", "key", "value")
        ]

    def turned(self, x: tf.Tensor, cos: tf.Tensor, sin: tf.Tensor) -> tf.Tensor:
        """Returns x [..., d_kv] turned by rotary positions."""
        return x * cos + tf.roll(x, self.a.d_kv // 2, -1) * sin

    def look(
        self, q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, mask: tf.Tensor
    ) -> tf.Tensor:
        """Returns attention [batch, heads, length, d_kv]."""
        scores = tf.matmul(q * self.a.d_kv**-0.5, k, transpose_b=True)
        return tf.matmul(tf.nn.softmax(scores + mask), v)

    def finish(
        self, own: dict[str, tf.Tensor], x: tf.Tensor, y: tf.Tensor
    ) -> tf.Tensor:
        """Returns the stream [rows, d_model] after a block, with what its attention
        found.
        """
        x += tf.matmul(tf.reshape(y, [x.shape[0], -1]), own["attention/output/kernel"])
        h = hand_written_kernels.rms_norm(x, own["feed_forward_norm/scale"])
        return x + tf.matmul(
            hand_written_kernels.gelu(tf.matmul(h, own["feed_forward/wi/kernel"])),
            own["feed_forward/wo/kernel"],
        )

    def predict(self, w: dict[str, tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        """Returns logits [batch, vocab]."""
        return tf.matmul(
            hand_written_kernels.rms_norm(x, w["decoder/norm/scale"]),
            w["logits/kernel"],
        )


def _likeliest(logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns ids and their log-probabilities: [batch] for logits [batch, vocab]."""
    return (
        tf.argmax(logits, -1, tf.int32),
        tf.reduce_max(logits, -1) - tf.reduce_logsumexp(logits, -1),
    )


def _of_block(weights: dict[str, tf.Tensor], number: int) -> dict[str, tf.Tensor]:
    """Returns a block's weights by their path in it."""
    path = f"decoder/block_{number}/"
    return {
        name[len(path) :]: w for name, w in weights.items() if name.startswith(path)
    }


def _matrix(name: str, value: np.ndarray) -> tuple[int, ...]:
    """Returns the shape of a variable with heads and the size of a head as one."""
    if value.ndim < 3:
        return value.shape
    return (-1, value.shape[-1]) if "output" in name else (value.shape[0], -1)


@dataclasses.dataclass(frozen=True)
class Result:
    """What was measured of one size and batch."""

    size: str
    batch: int
    tokens: int  # that are written in a run
    by_hand: list[tuple[float, float]]  # wall and processor seconds of runs, in turn
    meshtf: list[tuple[float, float]]

    def ratio(self, kind: int) -> float:
        """Returns the median of the ratios of neighbours: of wall time, 0, or processor
        time, 1.
        """
        return statistics.median(
            x[kind] / y[kind] for x, y in zip(self.meshtf, self.by_hand, strict=True)
        )

    def line(self) -> str:
        """Returns a line of the table."""
        rates = [
            self.tokens / statistics.median(t[0] for t in times)
            for times in (self.by_hand, self.meshtf)
        ]
        return (
            f"{self.size:10}{self.batch:>6}{rates[0]:12,.0f}{rates[1]:12,.0f}"
            f"{self.ratio(0):8.2f}{self.ratio(1):11.2f}"
        )


HEAD = "model      batch     by hand      meshtf   ratio  processor    (tokens/s; ratios of times)"


def prompts_of(a: Architecture, batch: int, length: int) -> list[list[int]]:
    """Returns prompts of different lengths, up to `length`."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, a.vocab, max(length - i, 1)).tolist() for i in range(batch)]


def of_hand(
    plain: ByHand, prompts: Sequence[Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids and scores by hand."""
    given = np.zeros((len(prompts), max(map(len, prompts))), np.int32)
    for row, ids in zip(given, prompts):
        row[: len(ids)] = ids
    ids, scores = plain.write(given, np.array([*map(len, prompts)], np.int32))
    return ids.numpy(), scores.numpy()


def in_turn(
    runs: Sequence[Callable[[], Any]], rounds: int
) -> list[list[tuple[float, float]]]:
    """Returns wall and processor seconds of each call, of all in turn."""

    def seconds(run: Callable[[], Any]) -> tuple[float, float]:
        wall = time.perf_counter()
        busy = time.process_time()
        run()
        return time.perf_counter() - wall, time.process_time() - busy

    return [
        list(times)
        for times in zip(*([seconds(run) for run in runs] for _ in range(rounds)))
    ]


def measure(size: str, batch: int, length: int, number: int, rounds: int) -> Result:
    """Returns times of both, after their results were compared."""
    a = SIZES[size]
    model = LanguageModel(mtf.Mesh(""), a)
    weights = {v.name.partition("/")[2]: v.numpy() for v in model.variables}
    prompts = prompts_of(a, batch, length)
    plain = ByHand(a, weights, number)
    decoder = Decoder(model, number, length, batch)
    ids, scores = of_hand(plain, prompts)
    for _ in range(2):  # the second time all is traced
        written = decoder(prompts)
        np.testing.assert_array_equal([w.ids for w in written], ids)
        np.testing.assert_allclose(
            [w.score for w in written], scores, rtol=1e-3, atol=1e-3
        )
        of_hand(plain, prompts)
    times = in_turn([lambda: of_hand(plain, prompts), lambda: decoder(prompts)], rounds)
    return Result(size, batch, number * batch, *times)


def main(argv: Sequence[str]) -> None:
    """Measures every size with every batch."""
    del argv
    if FLAGS.threads:
        tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
        tf.config.threading.set_inter_op_parallelism_threads(FLAGS.threads)
    results = []
    print(HEAD)
    for size in FLAGS.sizes:
        for batch in map(int, FLAGS.batches):
            results.append(
                measure(size, batch, FLAGS.prompt, FLAGS.number, FLAGS.rounds)
            )
            print(results[-1].line(), flush=True)
    if FLAGS.json:
        with open(FLAGS.json, "w", encoding="utf-8") as file:
            json.dump(
                [
                    dataclasses.asdict(r)
                    | {"ratio": r.ratio(0), "processor_ratio": r.ratio(1)}
                    for r in results
                ],
                file,
                indent=1,
            )


if __name__ == "__main__":
    flags.DEFINE_list("sizes", ["small", "medium"], "Of models.")
    flags.DEFINE_list("batches", ["1", "8"], "Texts that are written at a time.")
    flags.DEFINE_integer("prompt", 96, "Ids of the longest prompt.")
    flags.DEFINE_integer("number", 32, "Ids that are written after each prompt.")
    flags.DEFINE_integer("rounds", 11, "How often each is timed.")
    flags.DEFINE_integer("threads", None, "Of TensorFlow; None: one for each core.")
    flags.DEFINE_string("json", None, "A file for all numbers.")
    run_main(main)
