"""One of several processes that jax finds out about: prints its index and a sum over all."""

from __future__ import annotations

import numpy as np

import meshtf as mtf

if __name__ == "__main__":
    group = mtf.cluster.join_processes(detect=True)
    mesh = mtf.Mesh(f"data:{group.count}", "batch:data", devices="spmd:cpu")
    total = mtf.function(lambda x: mtf.reduce_sum(x), mesh=mesh, x="batch")
    result = float(total(np.arange(4.0)))
    print(f"process {group.index} of {group.count}: {result}", flush=True)
