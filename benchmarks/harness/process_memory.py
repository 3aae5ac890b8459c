"""The resident memory of this process, now and at its peak.

reset_peak()
before = memory("VmRSS")
...
peak = memory("VmHWM") - before      # MiB
"""

from __future__ import annotations


def memory(field: str) -> float:
    """Returns a field of this process's status, in MiB; Linux only, otherwise 0.

    Args:
      field: the name of the field, such as "VmRSS": see proc(5).
    """
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith(field))
    except OSError:
        return 0.0
    _name, kilobytes, _unit = line.split()  # such as "VmRSS:    5312 kB"
    return int(kilobytes) / 1024


def reset_peak() -> None:
    """Sets the largest resident memory so far ("VmHWM") to the present one."""
    try:
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")  # see clear_refs in proc(5)
    except OSError:
        pass  # then the peak of the imports counts too, for all cases
