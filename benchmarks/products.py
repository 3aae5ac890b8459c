"""Products of matrices whose rows lie a multiple of 4 KiB apart, as they are and with wider rows.

    python -m benchmarks.products                    # by one thread, as where positions share cores
    python -m benchmarks.products --threads=2

It prints billions of operations in a second. Both forms take turns; the fastest of the rounds
counts. A product of 1,040 columns, whose rows lie apart, shows what the processor can do.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, NamedTuple

import tensorflow as tf
from absl import app, flags

from meshtf.ops.products import product

FLAGS = flags.FLAGS
_CALLS = 8            # of a product in a round


class Form(NamedTuple):
  """A product [m, k] [k, n], and which of its inputs is stored transposed."""

  what: str
  m: int
  k: int
  n: int
  flip_a: bool = False
  flip_b: bool = False


def forms(rows: int) -> list[Form]:
  """Returns the products of a model's layer of so many tokens, and one that needs no help."""
  return [Form("forward, 1,040 columns", rows, 256, 1040), Form("forward", rows, 256, 1024),
          Form("forward, logits", rows, 256, 4096),
          Form("gradient of the input", rows, 1024, 256, flip_b=True),
          Form("gradient of the weights", 256, rows, 1024, flip_a=True),
          Form("gradient of the weights", 1024, rows, 256, flip_a=True),
          Form("gradient of the weights, logits", 256, rows, 4096, flip_a=True)]


def speeds(form: Form, threads: int, rounds: int) -> list[float]:
  """Returns billions of operations in a second, as it is and with wider rows."""
  m, k, n = form.m, form.k, form.n
  a = tf.random.normal([k, m] if form.flip_a else [m, k])
  b = tf.random.normal([n, k] if form.flip_b else [k, n])
  best = [float("inf")] * 2
  for _ in range(rounds + 1):
    for i, at in enumerate((None, SimpleNamespace(product_threads=threads))):
      best[i] = min(best[i], _seconds(a, b, form, at))
  return [2e-9 * m * k * n / seconds for seconds in best]


def _seconds(a: Any, b: Any, form: Form, at: Any) -> float:
  start = time.perf_counter()
  for _ in range(_CALLS):
    y = product(a, b, form.flip_a, form.flip_b, at)
  del y
  return (time.perf_counter() - start) / _CALLS


def main(argv: list[str]) -> None:
  """Measures and prints."""
  del argv
  tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
  print(f"{FLAGS.threads} thread(s)".ljust(32) + "     m     k     n   as it is   wider   ratio")
  for form in forms(FLAGS.rows or 256 * FLAGS.threads ** 2):
    plain, wide = speeds(form, FLAGS.threads, FLAGS.rounds)
    print(f"{form.what:32}{form.m:6}{form.k:6}{form.n:6}{plain:11.1f}{wide:8.1f}"
          f"{wide / plain:8.2f}", flush=True)


if __name__ == "__main__":
  flags.DEFINE_integer("threads", 1, "How many threads a product may use.")
  flags.DEFINE_integer("rows", 0, "How many tokens; 0: 256 for one thread, 1,024 for two.")
  flags.DEFINE_integer("rounds", 20, "How often each product is timed.")
  app.run(main)
