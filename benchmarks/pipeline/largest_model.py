"""The largest Transformer that fits the stages of a pipeline, as in table 1 of GPipe.

    python -m benchmarks.pipeline.largest_model               # 1, 8, 32, 128 stages; some minutes
    python -m benchmarks.pipeline.largest_model --stages=1,8 --limit=17179869184 --schedule=1f1b

For each number of stages it searches the largest number of blocks for which `mtf.explain`
forecasts a peak within the limit on every stage, such that one more block would exceed it
on any stage. Sizes are those of the paper: a vocabulary of 32,000, 1,024 tokens, d_model
2,048, d_ff 8,192, 32 heads, a batch of 32 in 32 microbatches, float32, chunks (the layers
of a stage) recomputed in the backward pass. A weight, its gradient and its optimizer slot
(the momentum) take 12 bytes, as the paper counts.

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
from meshtf.forecast import Memory
from transformer.cli.program import run_main

# The paper's GB: 12 bytes for each of 785.8 million parameters are its 8.8 GB.
GIB = 2**30
TRIES = 4  # guesses of the largest model, before the search fails
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
        """Returns the dimension that has the name and the size of a field."""
        return mtf.Dimension(name, getattr(self, name))


class Row(NamedTuple):
    """The size of a model, and the memory that it takes.

    Attributes:
      blocks: the number of blocks.
      parameters: the number of parameters.
      parameter_bytes: the bytes of weights, gradients and slots on all stages, 12 for each
        parameter.
      activations: the bytes of activations on all stages.
      peak: the peak of bytes on the stage where it is highest; 0: not known.
    """

    blocks: int
    parameters: float
    parameter_bytes: float
    activations: float
    peak: float = 0.0


# The largest models in table 1 of the paper, by the number of stages.
PAPER = {
    1: Row(
        blocks=13,
        parameters=785.8e6,
        parameter_bytes=8.8 * GIB,
        activations=6.4 * GIB,
    ),
    8: Row(
        blocks=103,
        parameters=5.3e9,
        parameter_bytes=59.5 * GIB,
        activations=50.9 * GIB,
    ),
    32: Row(
        blocks=415,
        parameters=21.0e9,
        parameter_bytes=235.1 * GIB,
        activations=199.9 * GIB,
    ),
    128: Row(
        blocks=1663,
        parameters=83.9e9,
        parameter_bytes=937.9 * GIB,
        activations=796.1 * GIB,
    ),
}
# A function from the number of blocks on each stage to the peak of bytes on each stage.
Peaks: TypeAlias = Callable[[Sequence[int]], Sequence[float]]


class Block(mtf.Module):
    """A pre-norm block: residual attention and a residual feed-forward layer.
    x[batch, length, d_model] -> [batch, length, d_model].
    """

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


def forecast_step(
    sizes: Sizes, blocks: Sequence[int], schedule: str = "gpipe"
) -> mtf.Forecast:
    """Returns the forecast of a training step.

    Args:
      sizes: the sizes of the model and of its batch.
      blocks: the number of blocks on each stage.
      schedule: the schedule of the pipeline: "gpipe" or "1f1b".
    """
    stages = len(blocks)
    mesh = mtf.Mesh(f"stage:{stages}" if stages > 1 else "", devices="abstract")
    vocab = sizes.dim("vocab")
    d_model = sizes.dim("d_model")
    layers = [
        mtf.layers.Embedding(mesh, vocab, d_model),
        *(Block(mesh, sizes, f"block_{i}") for i in range(sum(blocks))),
        mtf.layers.Dense(mesh, d_model, vocab, use_bias=False, name="logits"),
    ]
    # GPipe assigns all layers to stages: blocks, the embedding and the logits.
    layers_of_stages = list(blocks)
    layers_of_stages[0] += 1  # the embedding
    layers_of_stages[-1] += 1  # the logits
    pipe = mtf.pipeline.GPipe(
        layers,
        stages=stages,
        microbatches=sizes.microbatches,
        schedule=schedule,
        partition=layers_of_stages,
        recompute=True,
    )
    variables = pipe.trainable_variables
    optimizer = mtf.optimizers.SGD(variables, learning_rate=0.01, momentum=0.9)

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

    ids = tf.TensorSpec([sizes.batch, sizes.length], tf.int32)
    step_index = tf.TensorSpec([], tf.int32)
    return mtf.explain(train_step, tokens=ids, targets=ids, step=step_index)


def _memory_of_stages(forecast: mtf.Forecast) -> Sequence[Memory]:
    """Returns the forecast of the memory of each stage."""
    return forecast.stages or [forecast.memory]


def row(forecast: mtf.Forecast, blocks: int) -> Row:
    """Returns the totals over all stages of a forecast of a model with `blocks` blocks."""
    stages = _memory_of_stages(forecast)
    weight_bytes = sum(stage.parameters for stage in stages)
    return Row(
        blocks=blocks,
        parameters=weight_bytes / 4,
        parameter_bytes=3 * weight_bytes,
        activations=sum(stage.activations for stage in stages),
        peak=max(stage.peak for stage in stages),
    )


def largest(
    peaks: Peaks,
    stages: int,
    limit: float,
    few: int,
    many: int,
) -> tuple[int, ...]:
    """Returns the largest number of blocks on each stage whose peak is within the limit.

    The peak of a stage is nearly linear in the number of its blocks, and all stages except
    the first and the last are similar. So two pipelines of at most three stages predict, by
    a line through their peaks, how many blocks are within the limit. The prediction is
    right if these blocks are within the limit on all stages, and one more block on each
    stage exceeds it on all stages. Otherwise the peaks of these two models give the next
    prediction.

    Args:
      peaks: returns the peak of each stage in bytes, given the blocks of each stage.
      stages: the number of stages.
      limit: the limit of each stage in bytes.
      few: the number of blocks on each stage of the first pipeline.
      many: the number of blocks on each stage of the second pipeline.

    Raises:
      RuntimeError: a stage has no memory for one block, or peaks are far from linear.
    """

    def for_all_stages(measured_peaks: Sequence[float]) -> list[float]:
        """Returns the peaks of all stages, given those of a pipeline of at most three."""
        if stages <= 3:
            return [*measured_peaks]
        first, middle, last = measured_peaks
        return [first, *[middle] * (stages - 2), last]

    num_measured = min(stages, 3)  # the stages of the first two pipelines
    low_peaks = for_all_stages(peaks([few] * num_measured))
    high_peaks = for_all_stages(peaks([many] * num_measured))
    # The blocks on each stage of the two models: `low` has fewer than `high`.
    low = [few] * stages
    high = [many] * stages
    for _ in range(TRIES):
        prediction = []
        for low_blocks, high_blocks, low_peak, high_peak in zip(
            low, high, low_peaks, high_peaks, strict=True
        ):
            bytes_per_block = (high_peak - low_peak) / (high_blocks - low_blocks)
            further_blocks = (limit - high_peak) // bytes_per_block
            prediction.append(int(high_blocks + further_blocks))
        if min(prediction) < 1:
            raise RuntimeError(
                f"one block is more than a stage holds in {limit:,.0f} bytes."
            )
        low = prediction
        high = [n + 1 for n in prediction]
        low_peaks = [*peaks(low)]
        high_peaks = [*peaks(high)]
        if max(low_peaks) <= limit < min(high_peaks):
            return tuple(low)
    raise RuntimeError(
        "the peaks of stages are far from linear in their blocks: "
        f"{low_peaks}, {high_peaks}."
    )


def search(
    sizes: Sizes,
    stages: int,
    limit: float,
    schedule: str,
) -> tuple[tuple[int, ...], Row]:
    """Returns the number of blocks on each stage of the largest model, and its row.

    Args:
      sizes: the sizes of the model.
      stages: the number of stages.
      limit: the limit of each stage in bytes.
      schedule: the schedule of the pipeline.
    """
    rows: dict[tuple[int, ...], Row] = {}

    def peaks(blocks: Sequence[int]) -> Sequence[float]:
        """Forecasts a step, notes its row, and returns the peak of each stage."""
        # A forecast makes no garbage, and the collector would take as long as the forecast.
        gc.disable()
        try:
            forecast = forecast_step(sizes, blocks, schedule)
        finally:
            gc.enable()
        rows[tuple(blocks)] = row(forecast, sum(blocks))
        return [stage.peak for stage in _memory_of_stages(forecast)]

    best = largest(peaks, stages, limit, few=2, many=13)
    return best, rows[best]


def lines(
    stages: int,
    best: tuple[int, ...],
    largest_row: Row,
    seconds: float,
) -> list[str]:
    """Returns the lines of the table for a number of stages.

    Args:
      stages: the number of stages.
      best: the number of blocks on each stage of the largest model.
      largest_row: the row of the largest model; the paper's row, if there is one, comes
        before.
      seconds: the processor time of the search.
    """
    blocks_of_stages = []
    for blocks, equal_stages in itertools.groupby(best):
        count = len([*equal_stages])
        blocks_of_stages.append(f"{blocks} at {_stages_text(count)}")
    published_lines = []
    if stages in PAPER:
        published_lines.append(_line("  published", PAPER[stages]))
    return [
        _stages_text(stages),
        *published_lines,
        _line("  explained", largest_row),
        f"    {', '.join(blocks_of_stages)}; found in {seconds:.0f} s of processor time",
    ]


def _stages_text(count: int) -> str:
    """Returns "1 stage", "2 stages", ..."""
    return f"{count} stage" if count == 1 else f"{count} stages"


def _line(title: str, model: Row) -> str:
    """Returns a line of the table."""
    peak = f"{model.peak / 1e9:12.2f}" if model.peak else f"{'':12}"
    return (
        f"{title:<18}{model.blocks:6}{model.parameters / 1e6:12,.1f}"
        f"{model.parameter_bytes / 1e9:13,.1f}{model.activations / 1e9:13,.1f}{peak}"
    )


def _main(argv: list[str]) -> None:
    """Searches the largest model for each number of stages, and prints a table."""
    del argv
    print(
        f"No stage holds more than {_FLAGS.limit / 1e9:.2f} GB of 10^9 bytes; float32; "
        f"{_FLAGS.schedule}, chunks computed again;\nSGD with momentum: weight, "
        "gradient and slot are 12 bytes a parameter. Memory of all stages."
    )
    print(
        f"{'':<18}{'blocks':>6}{'million':>12}{'parameters':>13}{'activations':>13}"
        f"{'fullest':>12}\n{'':<24}{'parameters':>12}{'GB':>13}{'GB':>13}{'stage, GB':>12}"
    )
    for stages in map(int, _FLAGS.stages):
        start = time.process_time()
        best, largest_row = search(
            Sizes(),
            stages=stages,
            limit=_FLAGS.limit,
            schedule=_FLAGS.schedule,
        )
        seconds = time.process_time() - start
        print("\n".join(lines(stages, best, largest_row, seconds)), flush=True)


if __name__ == "__main__":
    flags.DEFINE_list("stages", ["1", "8", "32", "128"], "Numbers of stages.")
    flags.DEFINE_float("limit", 16e9, "The memory of a stage in bytes.")
    flags.DEFINE_enum(
        "schedule",
        "gpipe",
        ["gpipe", "1f1b"],
        "The schedule of the pipeline.",
    )
    run_main(_main)
