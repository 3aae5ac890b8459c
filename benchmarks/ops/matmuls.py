"""Speed of matmuls in GFLOP/s: TensorFlow's, and those that meshtf chooses.

    python -m benchmarks.ops.matmuls              # one thread, as for positions on shared cores
    python -m benchmarks.ops.matmuls --threads=2

Both are called in turn; the fastest of the rounds counts. meshtf chooses TensorFlow's
kernel for a matrix with 1,040 columns, whose rows are not 4 KiB apart, and for most
matrices if TensorFlow uses oneDNN for all matmuls, as on many CPUs with AVX-512.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import tensorflow as tf
from absl import flags

from meshtf.ops.linear.matmul_kernels import fast_matmul
from meshtf.runtime.devices.matmul_choice import matmul_kernels
from transformer.cli.program import run_main

FLAGS = flags.FLAGS
_CALLS = 8  # of a matmul in a round
_LENGTH = 128
_KEY = 32


class Form(NamedTuple):
    """A matmul [m, k] x [k, n], and which of its inputs is stored transposed."""

    title: str
    m: int
    k: int
    n: int
    transpose_a: bool = False
    transpose_b: bool = False
    count: int | None = None  # of matrices in a batch; None: no batch

    @property
    def operations(self) -> int:
        return 2 * (self.count or 1) * self.m * self.k * self.n

    def inputs(self) -> list[Any]:
        """Returns both inputs as they are stored."""
        batch = [] if self.count is None else [self.count]
        sides = (self.m, self.k, self.transpose_a), (self.k, self.n, self.transpose_b)
        return [
            tf.random.normal([*batch, *((y, x) if flip else (x, y))])
            for x, y, flip in sides
        ]


def forms(tokens: int) -> list[Form]:
    """Returns the matmuls of a model's layer for a number of tokens, and one for which meshtf
    chooses TensorFlow's kernel.
    """
    heads = 8 * tokens // _LENGTH
    return [
        Form("forward, 1,040 columns", tokens, 256, 1040),
        Form("forward", tokens, 256, 1024),
        Form("forward, logits", tokens, 256, 4096),
        Form("gradient of the input", tokens, 1024, 256, transpose_b=True),
        Form("gradient of the input, logits", tokens, 4096, 256, transpose_b=True),
        Form("gradient of the weights", 256, tokens, 1024, transpose_a=True),
        Form("gradient of the weights", 1024, tokens, 256, transpose_a=True),
        Form("gradient of the weights, logits", 256, tokens, 4096, transpose_a=True),
        Form(
            "attention, scores", _LENGTH, _KEY, _LENGTH, transpose_b=True, count=heads
        ),
        Form("attention, values", _LENGTH, _LENGTH, _KEY, count=heads),
        Form(
            "gradient of values and keys",
            _LENGTH,
            _LENGTH,
            _KEY,
            transpose_a=True,
            count=heads,
        ),
    ]


def speeds(form: Form, rounds: int) -> list[float]:
    """Returns GFLOP/s of TensorFlow's kernel and of meshtf's choice."""
    a, b = form.inputs()
    contexts = None, SimpleNamespace(matmul_kernels=matmul_kernels(["/device:CPU:0"]))
    programs = [
        _program(form, context).get_concrete_function(a, b) for context in contexts
    ]
    best = [float("inf")] * len(programs)
    for _ in range(rounds + 1):
        for i, program in enumerate(programs):
            best[i] = min(best[i], _seconds(lambda program=program: program(a, b)))
    return [form.operations * _CALLS / seconds / 1e9 for seconds in best]


def _program(form: Form, context: Any) -> Any:
    """Returns a function that computes a matmul several times, one after the other."""
    multiply = functools.partial(
        fast_matmul,
        transpose_a=form.transpose_a,
        transpose_b=form.transpose_b,
        context=context,
    )

    @tf.function(autograph=False)
    def several(a: Any, b: Any) -> Any:
        y = multiply(a, b)
        for _ in range(_CALLS - 1):
            with tf.control_dependencies([y]):
                y = multiply(a, b)
        return y

    return several


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(argv: list[str]) -> None:
    """Measures and prints a table."""
    del argv
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": True}
    )  # it merges calls
    print(
        f"{FLAGS.threads} thread(s)".ljust(32)
        + "    m     k     n  matrices   TensorFlow   meshtf   ratio"
    )
    for form in forms(FLAGS.tokens or 256 * FLAGS.threads**3):
        tensorflow_speed, ours = speeds(form, FLAGS.rounds)
        print(
            f"{form.what:32}{form.m:5}{form.k:6}{form.n:6}{form.count or 1:10}"
            f"{tensorflow_speed:13.1f}{ours:9.1f}{ours / tensorflow_speed:8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    flags.DEFINE_integer("threads", 1, "How many threads a matmul may use.")
    flags.DEFINE_integer(
        "tokens", 0, "How many tokens; 0: 256 for one thread, 2,048 for two."
    )
    flags.DEFINE_integer("rounds", 20, "How often each matmul is timed.")
    run_main(main)
