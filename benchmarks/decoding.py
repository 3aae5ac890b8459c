"""Tokens that are written in a second: cached steps of meshtf beside the same by hand.

    python -m benchmarks.decoding                          # about a minute on two cores
    python -m benchmarks.decoding --sizes=small --batches=1 --rounds=21 --json=decoding.json

By hand is a `tf.while_loop` over positions with caches of fixed length, in plain TensorFlow on one
device; ids and their log-probabilities are what both return, and are compared first. Both run in
one process in turn; what is told is the median of the ratios of neighbours.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import app, flags

import meshtf as mtf
from benchmarks import kernels
from benchmarks.ops import in_turn
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel

FLAGS = flags.FLAGS
SIZES = {
    "small": Architecture(vocab=256, d_model=128, d_ff=512, heads=4, d_kv=32, blocks=3),
    "medium": Architecture(vocab=8192, d_model=512, d_ff=2048, heads=8, d_kv=64, blocks=6)}
GIVEN = 16


class ByHand:
  """Greedy decoding in plain TensorFlow; weights by their path in `LanguageModel`.

  Args:
    a: rotary positions, RMS norm, gelu, no biases.
    weights: arrays by name.
  """

  def __init__(self, a: Architecture, weights: dict[str, np.ndarray]) -> None:
    self.a = a
    self.weights = {name: tf.Variable(value.reshape(_matrix(name, value)))
                    for name, value in weights.items()}

  @tf.function(autograph=False, reduce_retracing=False)
  def write(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns ids and log-probabilities [batch, length] for texts, negative where to write."""
    batch, length = texts.shape
    a, weights = self.a, {name: w.read_value() for name, w in self.weights.items()}
    cos, sin = kernels.angles(length, a.d_kv)
    columns, rows = tf.transpose(texts), tf.range(batch * a.heads) * length
    caches = [tf.zeros([batch * a.heads * length, a.d_kv])] * (2 * a.blocks)
    written = tf.TensorArray(tf.int32, length, element_shape=[batch]).write(0, columns[0])
    scores = tf.TensorArray(tf.float32, length, element_shape=[batch]).write(0, tf.zeros([batch]))

    def step(at: Any, ids: Any, written: Any, scores: Any, *caches: Any) -> Any:
      seen = tf.where(tf.range(length) <= at, 0.0, -1e9)
      turn = tf.gather(cos, at), tf.gather(sin, at)
      logits, caches = self.follow(weights, ids, caches, (rows + at)[:, None], seen, turn)
      given = tf.gather(columns, at + 1)
      ids = tf.where(given < 0, tf.argmax(logits, -1, tf.int32), given)
      score = tf.gather(logits, ids, batch_dims=1) - tf.reduce_logsumexp(logits, -1)
      return at + 1, ids, written.write(at + 1, ids), scores.write(at + 1, score), *caches

    start = [tf.constant(0), columns[0], written, scores, *caches]
    _, _, written, scores, *_ = tf.while_loop(lambda at, *_: at < length - 1, step, start)
    return tf.transpose(written.stack()), tf.transpose(scores.stack())

  def follow(self, w: dict[str, tf.Tensor], ids: tf.Tensor, caches: Sequence[tf.Tensor],
             places: tf.Tensor, seen: tf.Tensor, turn: tuple[tf.Tensor, tf.Tensor]
             ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns logits of what follows ids [batch], and the caches."""
    a, new = self.a, []
    x = tf.gather(w["embedding/table"], ids)
    for i in range(a.blocks):
      own = {name[len(path):]: v for name, v in w.items()
             if name.startswith(path := f"decoder/block_{i}/")}
      h = kernels.rms_norm(x, own["attention_norm/scale"])
      q, k, v = (tf.reshape(tf.matmul(h, own[f"attention/{part}/kernel"]), [-1, a.d_kv])
                 for part in ("query", "key", "value"))
      q, k = (x * turn[0] + tf.roll(x, a.d_kv // 2, -1) * turn[1] for x in (q, k))
      keys, values = (tf.tensor_scatter_nd_update(cache, places, row)
                      for cache, row in zip(caches[2 * i:2 * i + 2], (k, v), strict=True))
      new += [keys, values]
      keys, values = (tf.reshape(x, [ids.shape[0] * a.heads, -1, a.d_kv]) for x in (keys, values))
      seen_by = tf.nn.softmax(tf.matmul(q[:, None] * a.d_kv ** -0.5, keys, transpose_b=True) + seen)
      y = tf.reshape(tf.matmul(seen_by, values), [ids.shape[0], -1])
      x += tf.matmul(y, own["attention/output/kernel"])
      h = kernels.rms_norm(x, own["feed_forward_norm/scale"])
      x += tf.matmul(kernels.gelu(tf.matmul(h, own["feed_forward/wi/kernel"])),
                     own["feed_forward/wo/kernel"])
    return tf.matmul(kernels.rms_norm(x, w["decoder/norm/scale"]), w["logits/kernel"]), new


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
  tokens: int                      # that are written in a run
  by_hand: list[float]             # seconds of each run, in turn with the others
  meshtf: list[float]

  @property
  def ratio(self) -> float:
    """The median of the ratios of neighbours."""
    return statistics.median(x / y for x, y in zip(self.meshtf, self.by_hand, strict=True))

  def line(self) -> str:
    """Returns a line of the table."""
    rates = [self.tokens / statistics.median(times) for times in (self.by_hand, self.meshtf)]
    return f"{self.size:10}{self.batch:>6}{rates[0]:12,.0f}{rates[1]:12,.0f}{self.ratio:8.2f}"


HEAD = "model      batch     by hand      meshtf   ratio    (tokens/s; ratio of times)"


def texts_of(a: Architecture, batch: int, number: int) -> np.ndarray:
  """Returns beginnings of different lengths, and room for `number` ids after the longest."""
  rng = np.random.default_rng(0)
  texts = rng.integers(0, a.vocab, (batch, GIVEN + number)).astype("int32")
  for i, row in enumerate(texts):
    row[max(GIVEN - i, 1):] = -1
  return texts


def of_meshtf(model: LanguageModel) -> Callable[[Any], list[mtf.Tensor]]:
  """Returns a function of texts that returns ids and log-probabilities, as `ByHand.write` does."""
  @mtf.function(mesh=model.mesh, texts="batch; length")
  def write(texts: mtf.Tensor) -> list[mtf.Tensor]:
    start = model.start(texts.shape.without("length"), texts.shape["length"])
    return list(mtf.decoding.sample(model.step, texts, start, temperature=0))
  return write


def measure(size: str, batch: int, number: int, rounds: int) -> Result:
  """Returns times of both, after their results were compared."""
  a = SIZES[size]
  model = LanguageModel(mtf.Mesh(""), a)
  weights = {v.name.partition("/")[2]: v.numpy() for v in model.variables}
  texts = texts_of(a, batch, number)
  plain, write = ByHand(a, weights), of_meshtf(model)
  given = tf.constant(texts)
  want, have = ([x.numpy() for x in f(given)] for f in (plain.write, write))
  np.testing.assert_array_equal(have[0], want[0])
  np.testing.assert_allclose(have[1], want[1], rtol=1e-3, atol=1e-3)
  times = in_turn([lambda: plain.write(given)[0].numpy(), lambda: write(given)[0].numpy()], rounds)
  return Result(size, batch, int((texts < 0).sum()), *times)


def main(argv: Sequence[str]) -> None:
  """Measures every size with every batch."""
  del argv
  results = []
  print(HEAD)
  for size in FLAGS.sizes:
    for batch in map(int, FLAGS.batches):
      results.append(measure(size, batch, FLAGS.number, FLAGS.rounds))
      print(results[-1].line(), flush=True)
  if FLAGS.json:
    with open(FLAGS.json, "w", encoding="utf-8") as file:
      json.dump([dataclasses.asdict(r) | {"ratio": r.ratio} for r in results], file, indent=1)


if __name__ == "__main__":
  flags.DEFINE_list("sizes", ["small", "medium"], "Of models.")
  flags.DEFINE_list("batches", ["1", "8"], "Texts that are written at a time.")
  flags.DEFINE_integer("number", 112, "Tokens that are written after each beginning.")
  flags.DEFINE_integer("rounds", 11, "How often each is timed.")
  flags.DEFINE_string("json", None, "A file for all numbers.")
  app.run(main)
