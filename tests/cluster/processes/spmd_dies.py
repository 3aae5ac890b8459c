"""Training in several processes, of which the last is killed, or stands still, in mid-run,
unless a run before it has left checkpoints.

    python -m meshtf launch --spmd --workers=2 --restarts=1 -- \\
        python -m tests.cluster.processes.spmd_dies FOLDER SIGKILL data    # prints the last loss
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

import meshtf as mtf

MESHES = {
    "data": ("data:2;model:2", "batch:data;d_ff:model"),
    "pipeline": ("stage:2;model:2", "layers:stage;d_ff:model"),
}
STEPS = 8
_LAST_SAVED = 4


def main() -> None:
    """Trains, saves each second step, and prints the last loss."""
    folder, signal_name, name = sys.argv[1:]
    group = mtf.cluster.join_processes()
    axes, layout = MESHES[name]
    mesh = mtf.Mesh(axes, layout, devices="spmd:cpu")
    w = mtf.Variable(mesh, "layers:4;d:4;d_ff:8", "normal", "w")
    optimizer = mtf.optimizers.Adam([w], 0.1)

    @mtf.function(x="batch;d", step="")
    def train(x: mtf.Tensor, step: mtf.Tensor) -> mtf.Tensor:
        def layer(x: mtf.Tensor, w: mtf.Tensor) -> tuple[mtf.Tensor, None]:
            batch, d = x.shape
            h = mtf.einsum([x, w], mtf.Shape([batch, w.shape.dim("d_ff")]))
            h = mtf.dropout(mtf.tanh(h), 0.1)
            return x + mtf.einsum([h, w], mtf.Shape([batch, d])), None

        with mtf.seed(1, step):
            h, _ = mtf.scan(layer, x, w, "layers")
        loss = mtf.reduce_mean(mtf.square(h - 1.0))
        optimizer.apply_gradients(mtf.gradients([loss], [w]), [w], step)
        return loss

    variables = {v.name: v for v in (w, *optimizer.variables)}
    latest = mtf.checkpoints.restore_latest(folder, variables)
    start = 0 if latest is None else latest.step
    x = np.random.default_rng(0).normal(size=(STEPS, 4, 4)).astype("float32")
    with mtf.checkpoints.Saver(folder) as saver:
        for step in range(start, STEPS):
            loss = float(train(x[step], np.int32(step)))
            if (step + 1) % 2 == 0:
                saver.save(step + 1, variables)
            is_last = group.index == group.count - 1
            if (
                is_last
                and latest is None
                and step == _LAST_SAVED
                and signal_name != "0"
            ):
                os.kill(os.getpid(), getattr(signal, signal_name))
    if group.is_first:
        print(f"{STEPS} steps, loss {loss.hex()}", flush=True)


if __name__ == "__main__":
    main()
