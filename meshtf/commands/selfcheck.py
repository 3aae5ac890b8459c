"""Checks that every op and a small training compute correct values on the devices of this
machine.

    python -m meshtf selfcheck                      # some minutes on two cores
    python -m meshtf selfcheck --quick              # a minute or less
    python -m meshtf selfcheck --ops=einsum,softmax
    python -m meshtf selfcheck --logical=8          # the CPU as eight devices
    python -m meshtf selfcheck --live=spmd          # the devices that jax has; on two cores,
                                                    # some twenty minutes

For every kind of device that is present (CPU, GPU, TPU), small meshes use the devices of
that kind round-robin. Every op runs under the layouts of these meshes, and its results are
compared with those of one device of the same kind; its gradients with those of TensorFlow's
gradient tape. Then a block of a Transformer is trained for three steps. With --live, the
meshes are live: jax runs their programs. The report goes to stdout, progress to stderr.
Exit code: 0: all checks passed; 1: a check failed; 2: wrong flags; 130: interrupted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from absl import flags, logging

from meshtf.errors import MeshError

_QUICK = flags.DEFINE_bool(
    "quick",
    False,
    "Only a mesh of two positions, and no recorded programs except the training.",
)
_OPS = flags.DEFINE_list(
    "ops",
    [],
    "Ops to check, such as einsum,softmax: module, class, or both. Default: all.",
)
_LOGICAL = flags.DEFINE_integer(
    "logical",
    0,
    "The number of logical devices that the CPU is split into.",
    lower_bound=0,
)
_LIVE = flags.DEFINE_string(
    "live",
    "",
    'The devices of live meshes to check, "spmd", "spmd:cpu", "spmd:cuda" or "spmd:tpu", '
    "in place of those that TensorFlow lists.",
)
_SEED = flags.DEFINE_integer(
    "seed", 0, "Of all random values, and of the layouts that are drawn."
)


def usage_error(argv: Sequence[str]) -> str:
    """Returns what is wrong with the arguments, or "".

    `main` calls it, and `python -m meshtf` before `main`, to report the error without
    TensorFlow.
    """
    if len(argv) < 2:
        return ""
    return f"{argv[1]!r} is not a flag: all settings are flags, such as --quick."


def main(argv: Sequence[str]) -> int:
    """Reads the flags, checks, and returns the exit code."""
    import tensorflow as tf

    from meshtf.runtime.devices.resolve import logical_devices
    from meshtf.runtime.spmd.live.jax_host import ask_for_cpu_devices
    from meshtf.testing.selfcheck import choose, selfcheck

    logging.set_verbosity(logging.WARNING)
    try:
        message = usage_error(argv)
        if message:
            raise ValueError(message)
        ops = choose(_OPS.value)
        if _LOGICAL.value:
            logical_devices(_LOGICAL.value)
        if _LIVE.value and not re.fullmatch(r"spmd(:[a-zA-Z]+)?", _LIVE.value):
            raise ValueError('--live is "spmd", "spmd:cpu", "spmd:cuda" or "spmd:tpu".')
        if _LIVE.value == "spmd:cpu":
            # Before jax starts, which by default has one CPU device.
            ask_for_cpu_devices(4)
    except (ValueError, MeshError) as error:
        print(error, file=sys.stderr)
        return 2
    # With TensorFloat-32, results correctly differ by 1e-3.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        return selfcheck(ops, quick=_QUICK.value, seed=_SEED.value, live=_LIVE.value)
    except MeshError as error:  # there are no such devices for --live
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted: what is not reported was not checked.", file=sys.stderr)
        return 130
