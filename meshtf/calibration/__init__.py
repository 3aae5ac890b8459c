"""Measures the present machine, and writes a profile of hardware from which forecasts compute
the time of a step.

    hardware = calibrate("spmd:cpu:8")
    hardware.save("my_machine.json")

All rates are those of one device while all devices of a mesh work at once. Contents:

    clock          wall time, or processor time
    repeated_work  the seconds of one repetition of some work on all positions of a mesh
    matmuls        matmuls of several shapes
    elementwise    the bandwidth of elementwise ops, and the time to start an op
    op_times       the time of an element of softmax, norms and activations
    collectives    latency and bandwidth of each kind of collective, by size of the group
    calibrate      all of these as a profile
    small_step     training steps of a small perceptron
    adjust         factors by which measured steps differ from predicted ones
    local_step     steps of one device of a large mesh, without communication
"""

from meshtf.calibration.adjust import MeasuredStep, adjust
from meshtf.calibration.calibrate import calibrate
from meshtf.calibration.local_step import measure_local_step
from meshtf.hardware import MeasuredLocalStep

__all__ = [
    "MeasuredLocalStep",
    "MeasuredStep",
    "adjust",
    "calibrate",
    "measure_local_step",
]


def __dir__() -> list[str]:
    return sorted(__all__)
