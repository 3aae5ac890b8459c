"""The memory of the host while a large model starts on a live mesh, whose devices jax drives.

    python -m benchmarks.spmd.start                     # 407 million parameters
    python -m benchmarks.spmd.start --blocks=24         # 1.4 billion: a minute on two cores

All devices are CPU devices here, so the host's memory has the shards as well. What the process
takes beyond them and its imports is what the start of a model costs: it should not grow with
the number of blocks.
"""

from __future__ import annotations

import time

from absl import flags

import meshtf as mtf
from benchmarks.harness.process_memory import memory
from transformer.cli.program import run_main
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel

FLAGS = flags.FLAGS
flags.DEFINE_integer("blocks", 4, "The number of transformer blocks.", lower_bound=1)

_LAYOUT = "batch:data; vocab:model; heads:model; d_ff:model"


def main(argv: list[str]) -> None:
    """Starts the model, and prints the memory."""
    del argv
    mtf.configure_process()
    mesh = mtf.Mesh(
        "data:2; model:4", _LAYOUT, devices="spmd:cpu", variable_layout="d_model:data"
    )
    architecture = Architecture(
        vocab=50304,
        d_model=2048,
        d_ff=8192,
        heads=16,
        d_kv=128,
        blocks=FLAGS.blocks,
        dropout=0.0,
    )
    before = memory("VmRSS") / 2**10  # GiB
    start = time.perf_counter()
    model = LanguageModel(mesh, architecture)
    # The devices compute all variables when the first one is used.
    _ = model.trainable_variables[-1].numpy()
    seconds = time.perf_counter() - start
    parameters = sum(v.shape.size for v in model.trainable_variables)
    shards = 4 * parameters / 2**30  # each element is float32, on one device
    peak = memory("VmHWM") / 2**10
    print(
        f"{parameters / 1e6:,.0f} million parameters in {seconds:.0f} s: "
        f"imports {before:.2f} GiB, shards {shards:.2f} GiB, "
        f"peak {peak:.2f} GiB, beyond both {peak - before - shards:.2f} GiB"
    )


if __name__ == "__main__":
    run_main(main)
