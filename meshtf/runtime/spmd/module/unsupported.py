"""Errors of the SPMD runtime: it does not run on TensorFlow's devices, and exported programs
cannot print or write summaries.

    raise refusal(mesh)
    refuse_effects(program)            # raises PlanError
"""

from __future__ import annotations

import tensorflow as tf

from meshtf.errors import PlanError, explain_error
from meshtf.mesh import Mesh
from meshtf.partition import Program
from meshtf.runtime.devices.resolve import devices_of

# Why a call is refused, by the type of the devices.
_REASONS = {
    "CPU": "TensorFlow compiles XLA's collectives on CPUs, but cannot run them.",
    "GPU": "Running XLA's collectives from TensorFlow has not been tried on GPUs.",
    "TPU": "Running XLA's collectives from TensorFlow has not been tried on TPUs.",
}


def refusal(mesh: Mesh) -> PlanError:
    """Returns the error for a call with runtime="spmd" on the devices of a mesh."""
    devices = devices_of(mesh)
    # The distinct device types, in order.
    device_types = dict.fromkeys(
        tf.DeviceSpec.from_string(device).device_type for device in devices
    )
    reasons = " ".join(
        _REASONS[device_type] for device_type in device_types if device_type in _REASONS
    )
    return PlanError(
        explain_error(
            f'runtime="spmd" does not run on TensorFlow devices. {reasons}',
            mesh=str(mesh),
            devices=", ".join(dict.fromkeys(devices)),
            way_out='Take runtime="placed", which runs on all of these, or make the mesh '
            'with devices="spmd", or hand the program to another host: mtf.export(fn, '
            "...).save(folder).",
        )
    )


def refuse_effects(program: Program) -> None:
    """Checks that a program does not print or write summaries: a StableHLO module cannot.

    Raises:
      PlanError: it does.
    """
    for step in program.steps:
        if step.host_op is not None and step.node is not None:
            raise PlanError(
                explain_error(
                    f"{step.title} has an effect on the host, which an exported "
                    "program cannot have.",
                    tensors=" ".join(repr(x.shape) for x in step.node.inputs),
                    source=step.node.source,
                    way_out="Return the value instead, or run the mtf.function without "
                    "exporting it.",
                )
            )
