"""How the time to the first step grows with the depth of a model, and the cost of its loop.

    python -m benchmarks.step.depth --layers=4,16,64

A network of residual feed-forward layers, once as separate layers and once as
`layers.Repeat`, which traces one layer. Each case is a separate process, both are started
in turn, and the best start counts; a step is a median. Seconds depend on the machine:
compare the ratios.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
from absl import flags

import meshtf as mtf
from transformer.cli.program import run_main

FLAGS = flags.FLAGS
flags.DEFINE_list("layers", ["4", "16", "64"], "Depths to try.")
flags.DEFINE_integer("starts", 2, "Processes of each case; the best counts.")
flags.DEFINE_integer("steps", 15, "Steps that are timed in each process.")
flags.DEFINE_string("layout", "batch:data", "The layout, on a mesh data:4.")
flags.DEFINE_string(
    "case",
    "",
    "Given to worker processes: the kind of network, and its number of layers.",
)

ONE_BY_ONE = "one by one"
REPEATED = "repeated"
BATCH_SIZE = 512
D_MODEL = 128
D_FF = 512


class Block(mtf.Module):
    """A pre-norm residual feed-forward layer: x[batch, d] -> [batch, d]."""

    def __init__(self, mesh: mtf.Mesh, name: str) -> None:
        super().__init__(name)
        with self.scope():
            self.norm = mtf.layers.RMSNorm(mesh, f"d:{D_MODEL}", name="norm")
            self.ff = mtf.layers.FeedForward(
                mesh,
                f"d:{D_MODEL}",
                f"f:{D_FF}",
                name="ff",
            )

    def __call__(self, x: mtf.Tensor) -> mtf.Tensor:
        return x + self.ff(self.norm(x))


class OneByOne(mtf.Module):
    """A network of separate layers."""

    def __init__(self, mesh: mtf.Mesh, layers: int) -> None:
        super().__init__("net")
        with self.scope():
            self.blocks = [Block(mesh, f"layer_{i}") for i in range(layers)]

    def __call__(self, x: mtf.Tensor) -> mtf.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def run_worker(kind: str, layers: int) -> dict[str, Any]:
    """Trains a network in this process. Returns the seconds to the first step ("first") and
    of a step ("step"), and the loss after all steps ("loss").

    Args:
      kind: the kind of the network, ONE_BY_ONE or REPEATED.
      layers: the number of layers.
    """
    mesh = mtf.Mesh("data:4", layout=FLAGS.layout, seed=0)
    if kind == ONE_BY_ONE:
        net = OneByOne(mesh, layers)
    else:
        net = mtf.layers.Repeat(
            lambda: Block(mesh, "layer"), f"layers:{layers}", name="net"
        )
    optimizer = mtf.optimizers.AdamW(net.trainable_variables, learning_rate=1e-3)

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x: mtf.Tensor) -> mtf.Tensor:
        """Updates the variables, and returns the loss, a scalar."""
        loss = mtf.reduce_mean(mtf.square(net(x)))
        variables = net.trainable_variables
        gradients = mtf.gradients([loss], variables)
        step_index = mtf.zeros(mesh, "", "int32")
        optimizer.apply_gradients(gradients, variables, step_index)
        return loss

    x = np.random.default_rng(0).normal(size=(BATCH_SIZE, D_MODEL)).astype("float32")
    times = []
    for _ in range(FLAGS.steps + 1):
        start = time.perf_counter()
        loss = float(step(x))
        times.append(time.perf_counter() - start)
    return {"first": times[0], "step": statistics.median(times[1:]), "loss": loss}


def measure(layers: int) -> dict[str, dict[str, float]]:
    """Returns the shortest times of each kind of network, which are started in turn, by the
    kind.
    """
    best: dict[str, dict[str, float]] = {}
    for _ in range(FLAGS.starts):
        for kind in (ONE_BY_ONE, REPEATED):
            command = [
                sys.executable,
                "-m",
                "benchmarks.step.depth",
                f"--case={kind}:{layers}",
                f"--steps={FLAGS.steps}",
                f"--layout={FLAGS.layout}",
            ]
            process = subprocess.run(
                command, capture_output=True, text=True, check=False
            )
            if process.returncode:
                raise RuntimeError(process.stderr)
            result = json.loads(process.stdout.splitlines()[-1])
            best_so_far = best.get(kind, result)
            best[kind] = {
                key: min(best_so_far[key], value) for key, value in result.items()
            }
    return best


def main(argv: list[str]) -> None:
    """Measures and prints."""
    del argv
    if FLAGS.case:
        kind, layers = FLAGS.case.split(":")
        print(json.dumps(run_worker(kind, int(layers))))
        return
    columns = f"{'one by one':>12}{'repeated':>10}{'ratio':>6}"
    print(f"{'layers':>6}{'first step, s':>28}{'step, ms':>28}")
    print(f"{'':6}{columns}{columns}")
    for layers in map(int, FLAGS.layers):
        best = measure(layers)
        separate = best[ONE_BY_ONE]
        repeated = best[REPEATED]
        print(
            f"{layers:6}{separate['first']:12.2f}{repeated['first']:10.2f}"
            f"{repeated['first'] / separate['first']:6.2f}{separate['step'] * 1e3:12.1f}"
            f"{repeated['step'] * 1e3:10.1f}{repeated['step'] / separate['step']:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    run_main(main)
