"""Forecasts: what a program computes, communicates and stores on a mesh, before it runs.

Contents:

    forecast        the class `Forecast`: prints and saves
    analysis        a planned program -> a forecast
    report_data     the data of a forecast
    placed_tensors  global shape, states and local shape of a tensor
    totals          sums over ops, and runs of equal ops
    communication   for which op each collective is, and in which phase
    peak_memory     the peak of live bytes
    step_phases     forward, backward, update
    layout_notes    layout rules and mesh axes that match nothing
    text_report     as text, and as JSON
    html_report     as one HTML page
    svg             frame and styles of SVG pictures
"""

from meshtf.forecast.analysis import forecast
from meshtf.forecast.forecast import Forecast
from meshtf.forecast.report_data import (
    Collective,
    Computation,
    Memory,
    PlacedTensor,
    Stage,
    StoredTensor,
)

__all__ = [
    "Collective",
    "Computation",
    "Forecast",
    "Memory",
    "PlacedTensor",
    "Stage",
    "StoredTensor",
    "forecast",
]
