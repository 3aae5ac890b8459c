"""Profiles of hardware: peak rates, bandwidths and latencies, from which a forecast computes
the time of a step.

    h100 = as_hardware("h100")             # configs/hardware/h100.json
    h100.matmul_flops["bfloat16"]

Contents:

    profile       the class `Hardware`, and its JSON files
    matmul_rates  the time of a matmul, from measured ones or from the peak rate
    local_steps   how much longer ops take than predicted, by measured steps
    links         which link a collective crosses, and how long it takes
"""

from meshtf.hardware.links import CollectiveTimes
from meshtf.hardware.matmul_rates import MatmulShape, MatmulTimes
from meshtf.hardware.profile import (
    Hardware,
    Link,
    MeasuredLocalStep,
    MeasuredMatmul,
    as_hardware,
    proportional,
)

__all__ = [
    "CollectiveTimes",
    "Hardware",
    "Link",
    "MatmulShape",
    "MatmulTimes",
    "MeasuredLocalStep",
    "MeasuredMatmul",
    "as_hardware",
    "proportional",
]
