"""Errors for what the SPMD runtime does not support: running on TensorFlow devices, and
effects outside of tensors.

Example:

    raise refusal(mesh)
    refuse_effects(program)
"""

from __future__ import annotations

import tensorflow as tf

from meshtf.errors import PlanError, explain_error
from meshtf.mesh import Mesh
from meshtf.partition import Program, WriteStep
from meshtf.runtime.devices.resolve import devices_of

_WHY = {
    "CPU": "TensorFlow compiles XLA's collectives on CPUs, but cannot run them.",
    "GPU": "Running XLA's collectives from TensorFlow has not been tried on GPUs.",
    "TPU": "Running XLA's collectives from TensorFlow has not been tried on TPUs.",
}


def refusal(mesh: Mesh) -> PlanError:
    """Returns the error for a call with runtime="spmd" on the devices of a mesh."""
    devices = devices_of(mesh)
    kinds = dict.fromkeys(tf.DeviceSpec.from_string(d).device_type for d in devices)
    return PlanError(
        explain_error(
            'runtime="spmd" does not run on TensorFlow devices. '
            + " ".join(_WHY.get(k, "") for k in kinds).strip(),
            mesh=str(mesh),
            devices=", ".join(dict.fromkeys(devices)),
            way_out='Take runtime="placed", which runs on all of these, or make the mesh '
            'with devices="spmd", or hand the program to another host: mtf.export(fn, '
            "...).save(folder).",
        )
    )


def refuse_effects(program: Program) -> None:
    """Checks that a program neither prints nor writes summaries, which a StableHLO module
    cannot. Raises PlanError.
    """
    for step in program.steps:
        if isinstance(step, WriteStep) and not step.variables:
            raise PlanError(
                explain_error(
                    f"{step.op.display_name} has an effect on the host, which an exported "
                    "program cannot have.",
                    tensors=" ".join(repr(x.shape) for x in step.node.inputs),
                    **{"from": step.node.source},
                    way_out="Return the value instead, or run the mtf.function without "
                    "exporting it.",
                )
            )
