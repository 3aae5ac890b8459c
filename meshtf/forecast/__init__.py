"""Forecasts: what a program computes, communicates and stores on a mesh, before it runs.

A tensor is live from the step that computes it to the last step that reads it.

Contents:

    forecast        the class `Forecast`: prints and saves
    analysis        a planned program -> a forecast
    outline         a planned program -> the totals of its forecast, faster
    report_data     the data of a forecast
    placed_tensors  global shape, states and local shape of a tensor
    communication   the op that needs each collective, and the phase
    op_costs        what one device computes when it runs an op
    parameter_gradients  which values are gradients of parameters
    memory/         the peak of live bytes, and what is live at it
    memory_advice   whether it fits into a device, and what would save memory
    step_phases     forward, backward, update
    layout_notes    layout rules and mesh axes that match nothing
    reports/        as text, JSON and HTML
"""

from meshtf.forecast.analysis import forecast
from meshtf.forecast.forecast import Forecast
from meshtf.forecast.report_data import (
    Collective,
    Computation,
    LiveTensors,
    Memory,
    PlacedTensor,
    Stage,
    StoredTensor,
)

__all__ = [
    "Collective",
    "Computation",
    "Forecast",
    "LiveTensors",
    "Memory",
    "PlacedTensor",
    "Stage",
    "StoredTensor",
    "forecast",
]
