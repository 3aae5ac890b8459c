"""Memory of a training step on one mesh position, against its forecast.

    python -m benchmarks.memory                 # a language model, one position and eight layouts
    python -m benchmarks.memory --only=FSDP --top=10     # and the largest tensors at the peak

A mesh position is one of the virtual devices of a mesh: it has one shard of each tensor.
Each layout runs in a separate process (`benchmarks.memory.worker`), in which TensorFlow
logs every tensor that it allocates and frees, with the requested bytes. Variables are
counted exactly, as the tf.Variables of one position. The peak is their bytes, those of the
arguments, and the maximum of bytes allocated at once during a step.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from absl import app, flags

from benchmarks.step.layouts import LAYOUTS

FLAGS = flags.FLAGS
flags.DEFINE_string("only", "", "Run only layouts with this in their name.")
flags.DEFINE_float("dropout", 0.1, "The rate of dropout.")
flags.DEFINE_integer("batch", 16, "The batch size.")
flags.DEFINE_integer(
    "top", 0, "How many kinds of tensors to list, the largest of those at the peak."
)

# TensorFlow's BFC allocator, which it uses for GPUs, logs the requested bytes.
ENVIRONMENT = {
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "TF_CPP_VMODULE": "log_memory=2",
}
# Lines of the log. The kernel is the last component of an op's name, without its number.
_ALLOCATED = re.compile(
    r'MemoryLogTensorAllocation .*?kernel_name: "(?:[^"]*/)?([^"/]*?)(?:_\d+)?"'
    r".*requested_bytes: (\d+).* allocation_id: (\d+)"
)
_FREED = re.compile(r"MemoryLogTensorDeallocation .*?allocation_id: (\d+)")


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor that TensorFlow allocated.

    Attributes:
      kernel: the name of the op that allocated the tensor.
      sizes: the shape, such as "16,128,1024".
      bytes: the requested bytes.
    """

    kernel: str
    sizes: str
    bytes: int


def peak(log: Iterable[str]) -> tuple[int, list[Tensor]]:
    """Returns the maximum of bytes allocated at once between the lines "begin" and "end" of a
    log, and the tensors allocated at that time. Tensors allocated before "begin" do not count.

    Args:
      log: the lines of TensorFlow's log, and the lines "begin" and "end" of the worker.
    """
    # The tensors that are allocated and not yet freed, by the id of the allocation.
    allocated_tensors: dict[str, Tensor] = {}
    allocated_bytes = 0
    peak_bytes = 0
    peak_tensors: list[Tensor] = []
    in_step = False
    for line in log:
        if line.startswith("begin"):
            in_step = True
        elif line.startswith("end"):
            in_step = False
        deallocation = _FREED.search(line)
        if deallocation:
            freed_id = deallocation.group(1)
            if freed_id in allocated_tensors:  # allocated within the step
                allocated_bytes -= allocated_tensors.pop(freed_id).bytes
        allocation = _ALLOCATED.search(line)
        if not allocation or not in_step:
            continue
        kernel, requested_bytes, allocation_id = allocation.groups()
        # An allocation may be logged more than once.
        if allocation_id not in allocated_tensors:
            sizes = ",".join(re.findall(r"size: (\d+)", line))
            tensor = Tensor(kernel, sizes, bytes=int(requested_bytes))
            allocated_tensors[allocation_id] = tensor
            allocated_bytes += tensor.bytes
            if allocated_bytes > peak_bytes:
                peak_bytes = allocated_bytes
                peak_tensors = list(allocated_tensors.values())
    return peak_bytes, peak_tensors


def measure(
    name: str,
    dropout: float,
    batch: int,
    **settings: Any,
) -> tuple[dict[str, float], list[Tensor]]:
    """Returns the bytes of a layout ("variables", "arguments", "peak", "forecast variables"
    and "forecast peak"), and the tensors that are allocated at the peak.

    Args:
      name: the name of the layout.
      dropout: the dropout rate.
      batch: the batch size.
      **settings: microbatches, and further fields of `Architecture`.
    """
    case = json.dumps(
        {"name": name, "dropout": dropout, "batch": batch, "settings": settings}
    )
    worker = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory.worker", case],
        text=True,
        capture_output=True,
        env=os.environ | ENVIRONMENT,
    )
    log = worker.stderr.splitlines()
    if worker.returncode:
        # The log without its lines about memory has the error.
        error_lines = [line for line in log if "__LOG_MEM" not in line]
        raise RuntimeError("\n".join(error_lines))
    num_bytes: dict[str, float] = json.loads(worker.stdout)
    step_bytes, peak_tensors = peak(log)
    if not step_bytes:
        raise RuntimeError("TensorFlow logged no allocation.")
    num_bytes["peak"] = num_bytes["variables"] + num_bytes["arguments"] + step_bytes
    return num_bytes, peak_tensors


def main(argv: list[str]) -> None:
    """Measures and prints."""
    del argv
    print(
        f"{'MB on one position':24}{'variables':>10}{'forecast':>10}{'error':>8}"
        f"{'peak':>12}{'forecast':>10}{'error':>8}{'without variables':>18}"
    )
    for name in ("one position", *LAYOUTS):
        if FLAGS.only in name:
            num_bytes, peak_tensors = measure(
                name, dropout=FLAGS.dropout, batch=FLAGS.batch
            )
            print(_line(name, num_bytes), flush=True)
            for line in _largest(peak_tensors):
                print(line)


def _line(name: str, num_bytes: dict[str, Any]) -> str:
    """Returns a line of the table.

    Args:
      name: the name of the layout.
      num_bytes: the bytes of the layout, as from `measure`.
    """
    variables = num_bytes["variables"]
    peak_bytes = num_bytes["peak"]
    forecast_variables = num_bytes["forecast variables"]
    forecast_peak = num_bytes["forecast peak"]
    # At the peak, without variables: arguments and the tensors of the step.
    temporary = peak_bytes - variables
    forecast_temporary = forecast_peak - forecast_variables
    return (
        f"{name:24}{variables / 1e6:10.2f}{forecast_variables / 1e6:10.2f}"
        f"{forecast_variables / variables - 1:8.1%}"
        f"{peak_bytes / 1e6:12.2f}{forecast_peak / 1e6:10.2f}"
        f"{forecast_peak / peak_bytes - 1:8.1%}"
        f"{forecast_temporary / temporary - 1:18.1%}"
    )


def _largest(tensors: list[Tensor]) -> list[str]:
    """Returns lines with the --top kinds of tensors that take the most memory."""
    total_bytes: collections.Counter[tuple[str, str]] = collections.Counter()
    for tensor in tensors:
        total_bytes[tensor.kernel, tensor.sizes] += tensor.bytes
    return [
        f"  {num_bytes / 1e6:10.2f}  {kernel} [{sizes}]"
        for (kernel, sizes), num_bytes in total_bytes.most_common(FLAGS.top)
    ]


if __name__ == "__main__":
    app.run(main)
