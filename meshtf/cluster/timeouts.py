"""The flags of those who watch: how long is waited for what.

Example:

    --timeout=60 --start=600 --wait=300 --restarts=3
"""

from __future__ import annotations

from absl import flags

from meshtf.cluster.supervisor import Limits

_DEFAULT = Limits()
_RESTARTS = flags.DEFINE_integer(
    "restarts",
    _DEFAULT.restarts,
    "How many faults are survived: the command is started again, and goes on from its "
    "last checkpoint.",
    lower_bound=0,
)
_TIMEOUT = flags.DEFINE_float(
    "timeout",
    _DEFAULT.timeout,
    "Seconds after which a worker that does not answer is lost, and a call of a "
    "function that does not end, or a stop that was asked for, is stuck.",
    lower_bound=0.1,
)
_START = flags.DEFINE_float(
    "start",
    _DEFAULT.start,
    "The same for the start of the command, and for the first call of each function, "
    "which is traced and compiled.",
    lower_bound=0.1,
)
_WAIT = flags.DEFINE_float(
    "wait",
    _DEFAULT.wait,
    "Seconds that are waited for workers to be there.",
    lower_bound=0.1,
)


def limits() -> Limits:
    """Returns what the flags say."""
    return Limits(_TIMEOUT.value, _START.value, _WAIT.value, _RESTARTS.value)
