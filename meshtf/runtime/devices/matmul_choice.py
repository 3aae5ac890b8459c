"""Which matmul kernels TensorFlow has for the CPU of this process.

Example:

    matmul_kernels(devices_of(mesh))       # MatmulKernels(2, onednn_matmul, ...) on two cores
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
    """Returns the matmul kernels among which ops choose on a mesh of CPUs; None: there is
    no choice.

    All hosts are assumed to have the CPU and the TensorFlow build of this process.

    On CPUs with AVX-512 the result is None, unless TensorFlow uses oneDNN for all matmuls:
    there the default kernel of TensorFlow packs matrices into blocks before it multiplies.
    """
    rewrites = onednn_rewrites()
    if not only_cpus(devices):
        return None
    if not rewrites and not _has_avx_without_avx512():
        return None
    matmul = None
    if not rewrites and all(map(onednn_kernel, ONEDNN_MATMULS)):
        matmul = onednn_matmul
    return MatmulKernels(op_threads(), matmul, rewrites)


@functools.cache
def _has_avx_without_avx512() -> bool:
    """Returns whether the CPU has AVX but not AVX-512; False if that is unknown."""
    if not _CPUINFO.is_file():
        return False
    lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return "avx" in flags and "avx512f" not in flags
