"""What kernels TensorFlow has for the processor at hand.

    product_threads(devices_of(mesh))      # 2 on a laptop of two cores
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from meshtf.runtime.devices import only_cpus
from meshtf.runtime.tf_private import onednn_rewrites
from meshtf.runtime.threads import threads_there

_CPUINFO = Path("/proc/cpuinfo")       # Linux alone has it


def product_threads(devices: Sequence[str]) -> int:
  """Returns how many threads share a product of matrices on CPUs without AVX-512; elsewhere 0.

  With AVX-512 TensorFlow's kernel copies matrices into blocks first, and where TensorFlow has
  oneDNN compute products, another kernel does: then it is 0, too.
  """
  if not _without_avx512() or onednn_rewrites() or not only_cpus(devices):
    return 0
  return threads_there()


@functools.cache
def _without_avx512() -> bool:
  """Whether this is a processor with AVX but without AVX-512; where nobody tells, it is not."""
  told = _CPUINFO.read_text(encoding="utf-8") if _CPUINFO.is_file() else ""
  flags = next((line.split() for line in told.splitlines() if line.startswith("flags")), [])
  return "avx" in flags and "avx512f" not in flags
