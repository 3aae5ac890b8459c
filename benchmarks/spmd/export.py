"""Cost of exporting a step for 8 and for 2,048 replicas: time, size, ops.

    python -m benchmarks.spmd.export
    python -m benchmarks.spmd.export --replicas=8,64,512,4096

The exported module (StableHLO) is the program of one replica, which is one device of the
mesh, so it has the same ops for any number of replicas.
Only the tables of replica groups grow: eight bytes for each replica and each mesh axis
with collectives. The mesh is abstract; the batch grows with it, so that shards keep their
sizes.
"""

from __future__ import annotations

import dataclasses
import gc
import time

from absl import flags

import meshtf as mtf
from benchmarks.step.layouts import SMALL, Case
from transformer.cli.program import run_main

_REPLICAS = flags.DEFINE_list("replicas", ["8", "2048"], "Numbers of replicas.")
_TENSOR_PARALLEL = "heads:model; d_ff:model; vocab:model"
# In the axes, {0} is the number of replicas, {1} a quarter and {2} an eighth of it.
CASES = {
    "data": Case(axes="data:{0}", layout="batch:data"),
    "data and tensor": Case(
        axes="data:{1}; model:4", layout=f"batch:data;{_TENSOR_PARALLEL}"
    ),
    "FSDP over 8": Case(
        axes="data:{2}; shard:8",
        layout="batch:data",
        variable_layout="d_model:shard",
    ),
}


@dataclasses.dataclass(frozen=True)
class Cost:
    """The costs of exporting a module.

    Attributes:
      replicas: the number of replicas.
      forecast_s: the seconds of `mtf.explain`, which traces and plans the step.
      export_s: the seconds of `mtf.export`, which traces, plans and lowers it.
      module: the size of the module in bytes.
      ops: the number of ops of the plan.
    """

    replicas: int
    forecast_s: float
    export_s: float
    module: int
    ops: int


def cost(name: str, replicas: int) -> Cost:
    """Exports a step of the language model on an abstract mesh (one without devices), and
    returns the costs.

    Args:
      name: the name of one of `CASES`.
      replicas: the number of replicas.
    """
    case = CASES[name]
    axes = case.axes.format(replicas, replicas // 4, replicas // 8)
    case = dataclasses.replace(case, axes=axes)
    size = dataclasses.replace(SMALL, batch=2 * replicas)
    step, args = case.build(size, devices="abstract")
    gc.collect()
    start = time.perf_counter()
    forecast = mtf.explain(step, *args)
    after_forecast = time.perf_counter()
    exported = mtf.export(step, *args)
    after_export = time.perf_counter()
    return Cost(
        replicas=replicas,
        forecast_s=after_forecast - start,
        export_s=after_export - after_forecast,
        module=len(exported.module),
        ops=len(forecast.ops),
    )


def main(argv: list[str]) -> None:
    """Prints a row for each layout and number of replicas."""
    del argv
    # Not printed: it includes the start of TensorFlow and XLA.
    cost("data", replicas=4)
    print(
        f"{'':18}{'replicas':>9}{'ops':>6}{'explain':>10}{'export':>10}{'module':>12}"
    )
    for name in CASES:
        for replicas in map(int, _REPLICAS.value):
            row = cost(name, replicas)
            print(
                f"{name:18}{replicas:9,}{row.ops:6}{row.forecast_s:8.2f} s"
                f"{row.export_s:8.2f} s{row.module / 1024:8.1f} KiB",
                flush=True,
            )


if __name__ == "__main__":
    run_main(main)
