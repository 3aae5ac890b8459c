"""Which matmul kernels TensorFlow has for the CPU of this process.

Example:

    matmul_kernels(devices_of(mesh)).threads       # 2 on a CPU with two cores
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from meshtf.graph import MatmulKernels
from meshtf.runtime.devices.names import only_cpus
from meshtf.runtime.devices.threads import op_threads
from meshtf.runtime.tf_internals.onednn_names import (
    ONEDNN_MATMULS,
    onednn_kernel,
    onednn_matmul,
    onednn_rewrites,
)

_CPUINFO = Path("/proc/cpuinfo")  # exists on Linux only


def matmul_kernels(devices: Sequence[str]) -> MatmulKernels | None:
    """Returns the matmul kernels that ops can choose from on a mesh of CPUs; None: there is
    no choice.

    All hosts are assumed to have the CPU and the TensorFlow build of this process. On CPUs
    with AVX-512 the result is None, unless TensorFlow uses oneDNN for all matmuls: with
    AVX-512 the default kernel packs matrices into blocks before it multiplies.

    Args:
      devices: the names of the devices of the mesh.
    """
    all_onednn = onednn_rewrites()
    if not only_cpus(devices):
        return None
    if not all_onednn and not _has_avx_without_avx512():
        return None
    matmul = None
    if not all_onednn and all(onednn_kernel(name) for name in ONEDNN_MATMULS):
        matmul = onednn_matmul
    return MatmulKernels(threads=op_threads(), onednn=matmul, all_onednn=all_onednn)


@functools.cache
def _has_avx_without_avx512() -> bool:
    """Returns whether the CPU has AVX but not AVX-512; False if that is unknown."""
    if not _CPUINFO.is_file():
        return False
    for line in _CPUINFO.read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            flags = line.split()
            return "avx" in flags and "avx512f" not in flags
    return False
