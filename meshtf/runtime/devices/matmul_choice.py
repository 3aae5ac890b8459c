"""What kernels TensorFlow has for the processor at hand.

Example:

    matmul_kernels(devices_of(mesh))      # MatmulKernels(2, onednn_matmul) on a laptop's two cores
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from meshtf.graph import MatmulKernels
from meshtf.runtime.devices.names import only_cpus
from meshtf.runtime.devices.threads import threads_there
from meshtf.runtime.tf_internals.onednn_names import (
    ONEDNN_MATMULS,
    onednn_kernel,
    onednn_matmul,
    onednn_rewrites,
)

_CPUINFO = Path("/proc/cpuinfo")  # Linux alone has it


def matmul_kernels(devices: Sequence[str]) -> MatmulKernels | None:
    """Returns what multiplies matrices on CPUs; None where there is nothing to choose.

    All hosts are taken to have processors and builds of TensorFlow like this one's.

    With AVX-512 TensorFlow's own kernel copies matrices into blocks first, so that it
    is None, too, unless TensorFlow has oneDNN compute all products.
    """
    rewrites = onednn_rewrites()
    if not (rewrites or _without_avx512()) or not only_cpus(devices):
        return None
    by_name = not rewrites and all(map(onednn_kernel, ONEDNN_MATMULS))
    return MatmulKernels(threads_there(), onednn_matmul if by_name else None, rewrites)


@functools.cache
def _without_avx512() -> bool:
    """Whether this is a processor with AVX but without AVX-512; where nobody tells, it
    is not.
    """
    told = _CPUINFO.read_text(encoding="utf-8") if _CPUINFO.is_file() else ""
    flags = next(
        (line.split() for line in told.splitlines() if line.startswith("flags")), []
    )
    return "avx" in flags and "avx512f" not in flags
