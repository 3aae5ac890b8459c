"""Time of Keras' own steps on one device, and of the same steps on a mesh of one position.

    python -m benchmarks.keras_fit                        # a transformer and a ResNet-50: minutes
    python -m benchmarks.keras_fit --only=transformer --rounds=20

Both models are alive in one process and take steps in turn, so that other load affects both.
Each step ends with reading its logs. Printed: time to the first step (trace, import,
compilation and the step), the share of the import in the trace's time, and the median over
rounds of the ratio of steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import keras
import tensorflow as tf
from absl import app, flags

import meshtf as mtf
from benchmarks.harness.clocks import now
from benchmarks.keras_fit.models import MODELS

FLAGS = flags.FLAGS
flags.DEFINE_list("only", list(MODELS), "Which models.")
flags.DEFINE_integer("rounds", 10, "How many steps of each are timed.")


class Run:
    """A compiled model that takes steps on one batch.

    Args:
      name: the model's name.
      mesh: a mesh, or None to run it as Keras does.

    Attributes:
      batch: inputs and labels.
      first_step: the time of the first step.
      distributed: the model on the mesh.
    """

    def __init__(self, name: str, mesh: mtf.Mesh | None):
        keras.utils.set_random_seed(0)
        self.model, x, y = MODELS[name]()
        self.model.compile(
            keras.optimizers.AdamW(1e-4),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=False,
        )
        self.distributed = mesh and mtf.keras.distribute(self.model, mesh)
        self.batch = (tf.constant(x), tf.constant(y))
        start = now()
        self.model.make_train_function()
        self.step()
        self.first_step = now().since(start)
        self.step()

    def step(self) -> float:
        """Takes a step, and returns its loss."""
        logs = self.model.train_function(iter([self.batch]))
        return float(logs["loss"])


def main(argv: list[str]) -> None:
    """Measures and prints."""
    del argv
    mtf.configure_process()
    print("| model | first step | import / trace | step, wall | step, processor |")
    print("|---|---|---|---|---|")
    for name in FLAGS.only:
        theirs = Run(name, None)
        ours = Run(name, mtf.Mesh("data:1", ""))
        times = [(_timed(theirs.step), _timed(ours.step)) for _ in range(FLAGS.rounds)]
        wall = statistics.median(b.wall / a.wall for a, b in times)
        processor = statistics.median(b.processor / a.processor for a, b in times)
        first = ours.first_step.processor / theirs.first_step.processor
        seconds = ours.distributed.step("train_step", ours.batch).seconds
        share = seconds["import"] / seconds["trace"]
        print(f"| {name} | {first:.2f} | {share:.2f} | {wall:.2f} | {processor:.2f} |")


def _timed(step: Callable[[], float]):
    start = now()
    step()
    return now().since(start)


if __name__ == "__main__":
    app.run(main)
