"""The largest Transformer that fits the stages of a pipeline, as in table 1 of GPipe.

    python -m benchmarks.pipeline.largest_model               # 1, 8, 32, 128 stages; some minutes
    python -m benchmarks.pipeline.largest_model --stages=1,8 --limit=17179869184 --schedule=1f1b

For each number of stages it searches the largest number of blocks for which `mtf.explain`
forecasts a peak within the limit on every stage, such that one more block would exceed it
on any stage. Sizes are those of the paper: a vocabulary of 32,000, 1,024 tokens, d_model
2,048, d_ff 8,192, 32 heads, a batch of 32 in 32 microbatches, float32, chunks recomputed
in the backward pass. With one optimizer slot and the gradient, a parameter takes 12 bytes,
as the paper counts.

Nothing is executed: the mesh is abstract. (Huang et al. 2019, arXiv:1811.06965.)
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import tensorflow as tf
from absl import flags

import meshtf as mtf
from transformer.cli.program import run_main

GIB = (
    2**30
)  # what the paper calls GB: 12 bytes for each of 785.8M parameters are its 8.8
PAPER = {
    1: (13, 785.8e6, 8.8 * GIB, 6.4 * GIB),
    8: (103, 5.3e9, 59.5 * GIB, 50.9 * GIB),
    32: (415, 21.0e9, 235.1 * GIB, 199.9 * GIB),
    128: (1663, 83.9e9, 937.9 * GIB, 796.1 * GIB),
}
TRIES = 4
_FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a Transformer and of its batch."""

    vocab: int = 32000
    d_model: int = 2048
    d_ff: int = 8192
    heads: int = 32
    d_kv: int = 64
    length: int = 1024
    batch: int = 32
    microbatches: int = 32

    def dim(self, name: str) -> mtf.Dimension:
        """Returns the dimension called like one of the sizes."""
        return mtf.Dimension(name, getattr(self, name))


class Row(NamedTuple):
    """A model's size, and its bytes on all stages; a parameter takes 12 bytes."""

    blocks: int
    parameters: float
    parameter_bytes: float
    activations: float
    peak: float = 0.0  # of the fullest stage


Peaks: TypeAlias = Callable[[Sequence[int]], Sequence[float]]


class Block(mtf.Module):
    """A pre-norm block: residual attention and a residual feed-forward layer."""

    def __init__(
        self,
        mesh: mtf.Mesh,
        sizes: Sizes,
        name: str,
    ) -> None:
        super().__init__(name)
        d_model = sizes.dim("d_model")
        with self.scope():
            self.attention_norm = mtf.layers.LayerNorm(
                mesh, d_model, name="attention_norm"
            )
            self.attention = mtf.layers.MultiHeadAttention(
                mesh,
                d_model,
                sizes.dim("heads"),
                sizes.dim("d_kv"),
            )
            self.norm = mtf.layers.LayerNorm(mesh, d_model, name="norm")
            self.ff = mtf.layers.FeedForward(
                mesh,
                d_model,
                sizes.dim("d_ff"),
                activation="relu",
            )

    def __call__(self, x: mtf.Tensor) -> mtf.Tensor:
        length = x.shape.dim("length")
        bias = mtf.layers.causal_bias(x.mesh, length, f"kv_length:{length.size}")
        x = x + self.attention(self.attention_norm(x), bias=bias)
        return x + self.ff(self.norm(x))


def explained(
    sizes: Sizes, blocks: Sequence[int], schedule: str = "gpipe"
) -> mtf.Forecast:
    """Returns the forecast of a training step, given the number of blocks on each stage."""
    stages = len(blocks)
    mesh = mtf.Mesh(f"stage:{stages}" if stages > 1 else "", devices="abstract")
    vocab = sizes.dim("vocab")
    d_model = sizes.dim("d_model")
    layers = [
        mtf.layers.Embedding(mesh, vocab, d_model),
        *(Block(mesh, sizes, f"block_{i}") for i in range(sum(blocks))),
        mtf.layers.Dense(mesh, d_model, vocab, use_bias=False, name="logits"),
    ]
    chunks = [*blocks]
    chunks[0] += 1
    chunks[-1] += 1
    pipe = mtf.pipeline.GPipe(
        layers,
        stages,
        sizes.microbatches,
        schedule,
        partition=chunks,
        recompute=True,
    )
    variables = pipe.trainable_variables
    optimizer = mtf.optimizers.SGD(variables, 0.01, momentum=0.9)

    @mtf.function(
        mesh=mesh,
        tokens="batch;length",
        targets="batch;length",
        step="",
    )
    def train_step(
        tokens: mtf.Tensor, targets: mtf.Tensor, step: mtf.Tensor
    ) -> mtf.Tensor:
        loss = pipe.loss(
            lambda y, t: mtf.layers.softmax_cross_entropy(y, t, "vocab"),
            tokens,
            targets,
        )
        optimizer.apply_gradients(mtf.gradients([loss], variables), variables, step)
        return loss

    tokens = tf.TensorSpec([sizes.batch, sizes.length], tf.int32)
    return mtf.explain(
        train_step,
        tokens,
        tokens,
        tf.TensorSpec([], tf.int32),
    )


def row(forecast: mtf.Forecast, blocks: int) -> Row:
    """Returns the totals over all stages of a forecast."""
    stages = forecast.stages or [forecast.memory]
    parameters = sum(stage.parameters for stage in stages)
    return Row(
        blocks,
        parameters / 4,
        3 * parameters,
        sum(stage.activations for stage in stages),
        max(stage.peak for stage in stages),
    )


def largest(
    peaks: Peaks,
    stages: int,
    limit: float,
    few: int,
    many: int,
) -> tuple[int, ...]:
    """Returns the most blocks of each stage whose peak is no more than the limit.

    A stage's peak is nearly linear in its own blocks, and all but the first and the
    last stage are similar, so pipelines of three stages predict where the limit is.
    Then that many must fit, and one more at each stage must be too much for each; else
    these two predict anew.

    Args:
      peaks: the bytes of each stage, by its blocks.
      stages: how many there are.
      limit: of a stage, in bytes.
      few: blocks of each of the three stages.
      many: the same of another such pipeline.

    Raises:
      RuntimeError: a stage holds no block, or peaks are far from linear.
    """

    def balanced(each: Sequence[float]) -> list[float]:
        return [each[0], *[each[1]] * (stages - 2), each[2]] if stages > 2 else [*each]

    low, high = ([n] * min(stages, 3) for n in (few, many))
    lower_spread = balanced(peaks(low))
    upper_spread = balanced(peaks(high))
    low = [few] * stages
    high = [many] * stages
    for _ in range(TRIES):
        guess = [
            int(n + (limit - y) // ((y - x) / (n - m)))
            for m, n, x, y in zip(low, high, lower_spread, upper_spread, strict=True)
        ]
        if min(guess) < 1:
            raise RuntimeError(
                f"one block is more than a stage holds in {limit:,.0f} bytes."
            )
        low = guess
        high = [n + 1 for n in guess]
        lower_spread = [*peaks(low)]
        upper_spread = [*peaks(high)]
        if max(lower_spread) <= limit < min(upper_spread):
            return tuple(low)
    raise RuntimeError(
        f"the peaks of stages are far from linear in their blocks: {lower_spread}, {upper_spread}."
    )


def search(
    sizes: Sizes,
    stages: int,
    limit: float,
    schedule: str,
) -> tuple[tuple[int, ...], Row]:
    """Returns the blocks of each stage of the largest model, and its row."""
    rows: dict[tuple[int, ...], Row] = {}

    def peaks(blocks: Sequence[int]) -> Sequence[float]:
        gc.disable()  # all that is made stays: looking for garbage takes as long as it
        try:
            forecast = explained(sizes, blocks, schedule)
        finally:
            gc.enable()
        rows[tuple(blocks)] = row(forecast, sum(blocks))
        return [stage.peak for stage in forecast.stages or [forecast.memory]]

    best = largest(peaks, stages, limit, 2, 13)
    return best, rows[best]


def lines(
    stages: int,
    best: tuple[int, ...],
    ours: Row,
    seconds: float,
) -> list[str]:
    """Returns lines of the table: of the paper, if it has them, and of what
    was found.
    """

    def line(title: str, r: Row) -> str:
        peak = f"{r.peak / 1e9:12.2f}" if r.peak else f"{'':12}"
        return (
            f"{title:<18}{r.blocks:6}{r.parameters / 1e6:12,.1f}{r.parameter_bytes / 1e9:13,.1f}"
            f"{r.activations / 1e9:13,.1f}{peak}"
        )

    runs = [(n, len([*equal])) for n, equal in itertools.groupby(best)]
    each = ", ".join(f"{n} at {k} stage{'s' * (k > 1)}" for n, k in runs)
    published = [line("  published", Row(*PAPER[stages]))] if stages in PAPER else []
    return [
        f"{stages} stage{'s' * (stages > 1)}",
        *published,
        line("  explained", ours),
        f"    {each}; found in {seconds:.0f} s of processor time",
    ]


def _main(argv: list[str]) -> None:
    del argv
    print(
        f"No stage holds more than {_FLAGS.limit / 1e9:.2f} GB of 10^9 bytes; float32; "
        f"{_FLAGS.schedule}, chunks computed again;\nSGD with momentum: weight, "
        "gradient and slot "
        "are 12 bytes a parameter. Memory of all stages."
    )
    print(
        f"{'':<18}{'blocks':>6}{'million':>12}{'parameters':>13}{'activations':>13}"
        f"{'fullest':>12}\n{'':<24}{'parameters':>12}{'GB':>13}{'GB':>13}{'stage, GB':>12}"
    )
    for stages in map(int, _FLAGS.stages):
        start = time.process_time()
        best, ours = search(
            Sizes(),
            stages,
            _FLAGS.limit,
            _FLAGS.schedule,
        )
        print(
            "\n".join(
                lines(
                    stages,
                    best,
                    ours,
                    time.process_time() - start,
                )
            ),
            flush=True,
        )


if __name__ == "__main__":
    flags.DEFINE_list("stages", ["1", "8", "32", "128"], "Numbers of stages.")
    flags.DEFINE_float("limit", 16e9, "The most bytes that a stage holds.")
    flags.DEFINE_enum(
        "schedule",
        "gpipe",
        ["gpipe", "1f1b"],
        "The order of work.",
    )
    run_main(_main)
