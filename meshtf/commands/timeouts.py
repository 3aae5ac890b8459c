"""The flags of `supervise` and `launch` for timeouts, in seconds, and restarts.

    --timeout=60 --start=600 --wait=300 --restarts=3

The command is the driver; it runs on the devices that workers offer. The defaults of the flags
are those of `cluster.supervisor.Limits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from absl import flags

if TYPE_CHECKING:
    from meshtf.cluster.supervisor import Limits

_RESTARTS = flags.DEFINE_integer(
    "restarts",
    0,
    "How often the command is restarted after a fault; it continues from its last "
    "checkpoint.",
    lower_bound=0,
)
_TIMEOUT = flags.DEFINE_float(
    "timeout",
    60.0,
    "Seconds after which a worker that does not answer counts as lost, and a driver as "
    "stuck, in a call of a function or after a request to stop.",
    lower_bound=0.1,
)
_START = flags.DEFINE_float(
    "start",
    600.0,
    "The same for the start of the command, and for the first call of each function, "
    "which is traced and compiled.",
    lower_bound=0.1,
)
_WAIT = flags.DEFINE_float(
    "wait",
    300.0,
    "Seconds to wait for workers to be available.",
    lower_bound=0.1,
)


def limits() -> Limits:
    """Returns the values of the flags."""
    from meshtf.cluster.supervisor import Limits

    return Limits(
        timeout=_TIMEOUT.value,
        start=_START.value,
        wait=_WAIT.value,
        restarts=_RESTARTS.value,
    )
