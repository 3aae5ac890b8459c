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
flags.DEFINE_string("layout", "batch:data", "On a mesh of data:4.")
flags.DEFINE_string("case", "", "For the worker: how, and how many layers.")

BATCH = 512
D_MODEL = 128
D_FF = 512


class Block(mtf.Module):
    """A residual feed-forward layer."""

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
    """Layers of their own."""

    def __init__(self, mesh: mtf.Mesh, layers: int) -> None:
        super().__init__("net")
        with self.scope():
            self.blocks = [Block(mesh, f"layer_{i}") for i in range(layers)]

    def __call__(self, x: mtf.Tensor) -> mtf.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def worker(how: str, layers: int) -> dict[str, Any]:
    """Returns the seconds to the first step and of a step, and the loss after all steps."""
    mesh = mtf.Mesh("data:4", layout=FLAGS.layout, seed=0)
    net = (
        OneByOne(mesh, layers)
        if how == "one by one"
        else mtf.layers.Repeat(
            lambda: Block(mesh, "layer"), f"layers:{layers}", name="net"
        )
    )
    optimizer = mtf.optimizers.AdamW(net.trainable_variables, 1e-3)

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x: mtf.Tensor) -> mtf.Tensor:
        loss = mtf.reduce_mean(mtf.square(net(x)))
        variables = net.trainable_variables
        optimizer.apply_gradients(
            mtf.gradients([loss], variables), variables, mtf.zeros(mesh, "", "int32")
        )
        return loss

    x = np.random.default_rng(0).normal(size=(BATCH, D_MODEL)).astype("float32")
    times = []
    for _ in range(FLAGS.steps + 1):
        before = time.perf_counter()
        loss = float(step(x))
        times.append(time.perf_counter() - before)
    return {"first": times[0], "step": statistics.median(times[1:]), "loss": loss}


def measure(layers: int) -> dict[str, dict[str, float]]:
    """Returns the best times of both networks; they are started in turn."""
    best: dict[str, dict[str, float]] = {}
    for _ in range(FLAGS.starts):
        for how in ("one by one", "repeated"):
            command = [
                sys.executable,
                "-m",
                "benchmarks.step.depth",
                f"--case={how}:{layers}",
                f"--steps={FLAGS.steps}",
                f"--layout={FLAGS.layout}",
            ]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(done.stderr)
            measured = json.loads(done.stdout.splitlines()[-1])
            old = best.get(how, measured)
            best[how] = {key: min(old[key], value) for key, value in measured.items()}
    return best


def main(argv: list[str]) -> None:
    """Measures and prints."""
    del argv
    if FLAGS.case:
        how, layers = FLAGS.case.split(":")
        print(json.dumps(worker(how, int(layers))))
        return
    ways = f"{'one by one':>12}{'repeated':>10}{'ratio':>6}"
    print(f"{'layers':>6}{'first step, s':>28}{'step, ms':>28}\n{'':6}{ways}{ways}")
    for layers in map(int, FLAGS.layers):
        plain, repeated = measure(layers).values()
        print(
            f"{layers:6}{plain['first']:12.2f}{repeated['first']:10.2f}"
            f"{repeated['first'] / plain['first']:6.2f}{plain['step'] * 1e3:12.1f}"
            f"{repeated['step'] * 1e3:10.1f}{repeated['step'] / plain['step']:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    run_main(main)
