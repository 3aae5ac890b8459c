"""Memory of CPUs that is kept when it is freed, since the next step asks for as much
again.

The system's allocator gives large pieces back, and a training step then waits for the
system to clear them anew, up to a tenth of its time. TensorFlow has an allocator that
keeps them, the one of GPUs and of oneDNN, and asks at its start whether CPUs are to
have it. meshtf says so when it is imported.

    TF_CPU_ALLOCATOR_USE_BFC=0 python mine.py      # the system's
"""

from __future__ import annotations

import os


def keep_freed_memory() -> None:
    """Asks TensorFlow for its own allocator on CPUs, for as much memory as the machine
    has.

    Nothing happens where the user said which it is to be, or where TensorFlow has
    started.
    """
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        os.environ.setdefault("TF_CPU_BFC_MEM_LIMIT_IN_MB", str(there >> 20))


keep_freed_memory()
