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
_CALLS = 8  # the number of calls of a matmul in a round
# Sizes of the attention: tokens of an example, and d_kv.
_LENGTH = 128
_D_KV = 32


class Form(NamedTuple):
    """A matmul [m, k] x [k, n].

    Attributes:
      title: what the matmul computes in a model's layer.
      m: the number of rows of the result.
      k: the size that is summed over.
      n: the number of columns of the result.
      transpose_a: whether the first input is stored as [k, m].
      transpose_b: whether the second input is stored as [n, k].
      count: the number of matrices in a batch; None: there is no batch dimension.
    """

    title: str
    m: int
    k: int
    n: int
    transpose_a: bool = False
    transpose_b: bool = False
    count: int | None = None

    @property
    def operations(self) -> int:
        """The floating-point operations of the matmul."""
        return 2 * (self.count or 1) * self.m * self.k * self.n

    def inputs(self) -> list[Any]:
        """Returns both inputs as they are stored."""
        batch = [] if self.count is None else [self.count]
        shape_a = [self.k, self.m] if self.transpose_a else [self.m, self.k]
        shape_b = [self.n, self.k] if self.transpose_b else [self.k, self.n]
        return [tf.random.normal(batch + shape) for shape in (shape_a, shape_b)]


def forms(tokens: int) -> list[Form]:
    """Returns the matmuls of a model's layer for a number of tokens, and one for which meshtf
    chooses TensorFlow's kernel.
    """
    heads = 8 * tokens // _LENGTH
    return [
        Form("forward, 1,040 columns", m=tokens, k=256, n=1040),
        Form("forward", m=tokens, k=256, n=1024),
        Form("forward, logits", m=tokens, k=256, n=4096),
        Form("gradient of the input", m=tokens, k=1024, n=256, transpose_b=True),
        Form(
            "gradient of the input, logits", m=tokens, k=4096, n=256, transpose_b=True
        ),
        Form("gradient of the weights", m=256, k=tokens, n=1024, transpose_a=True),
        Form("gradient of the weights", m=1024, k=tokens, n=256, transpose_a=True),
        Form(
            "gradient of the weights, logits", m=256, k=tokens, n=4096, transpose_a=True
        ),
        Form(
            "attention, scores",
            m=_LENGTH,
            k=_D_KV,
            n=_LENGTH,
            transpose_b=True,
            count=heads,
        ),
        Form("attention, values", m=_LENGTH, k=_LENGTH, n=_D_KV, count=heads),
        Form(
            "gradient of values and keys",
            m=_LENGTH,
            k=_LENGTH,
            n=_D_KV,
            transpose_a=True,
            count=heads,
        ),
    ]


def speeds(form: Form, rounds: int) -> list[float]:
    """Returns GFLOP/s of TensorFlow's kernel and of meshtf's choice."""
    a, b = form.inputs()
    # `fast_matmul` uses TensorFlow's kernel without a context. Of a context, it reads
    # `matmul_kernels` only.
    meshtf_context = SimpleNamespace(matmul_kernels=matmul_kernels(["/device:CPU:0"]))
    programs = [
        _program(form, context).get_concrete_function(a, b)
        for context in (None, meshtf_context)
    ]
    best_seconds = [float("inf")] * len(programs)
    for _ in range(rounds + 1):  # the first round is slow, so it is never the best
        for i, program in enumerate(programs):
            seconds = _seconds(functools.partial(program, a, b))
            best_seconds[i] = min(best_seconds[i], seconds)
    return [form.operations * _CALLS / seconds / 1e9 for seconds in best_seconds]


def _program(form: Form, context: Any) -> Any:
    """Returns a function that computes a matmul `_CALLS` times, one after the other.

    Args:
      form: the matmul.
      context: the context of `fast_matmul`.
    """
    multiply = functools.partial(
        fast_matmul,
        transpose_a=form.transpose_a,
        transpose_b=form.transpose_b,
        context=context,
    )

    @tf.function(autograph=False)
    def repeated(a: Any, b: Any) -> Any:
        """Returns the product; each matmul starts when the one before has ended."""
        y = multiply(a, b)
        for _ in range(_CALLS - 1):
            with tf.control_dependencies([y]):
                y = multiply(a, b)
        return y

    return repeated


def _seconds(call: Callable[[], Any]) -> float:
    """Returns the wall time of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(argv: list[str]) -> None:
    """Measures and prints a table."""
    del argv
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    # The optimizer of graphs would merge the equal calls of `_program`.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    print(
        f"{FLAGS.threads} thread(s)".ljust(32)
        + "    m     k     n  matrices   TensorFlow   meshtf   ratio"
    )
    for form in forms(FLAGS.tokens or 256 * FLAGS.threads**3):
        tensorflow_speed, meshtf_speed = speeds(form, FLAGS.rounds)
        print(
            f"{form.title:32}{form.m:5}{form.k:6}{form.n:6}{form.count or 1:10}"
            f"{tensorflow_speed:13.1f}{meshtf_speed:9.1f}"
            f"{meshtf_speed / tensorflow_speed:8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    flags.DEFINE_integer("threads", 1, "How many threads a matmul may use.")
    flags.DEFINE_integer(
        "tokens", 0, "How many tokens; 0: 256 for one thread, 2,048 for two."
    )
    flags.DEFINE_integer("rounds", 20, "How often each matmul is timed.")
    run_main(main)
