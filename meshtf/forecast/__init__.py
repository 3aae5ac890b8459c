"""Forecasts: what a program will do on a mesh and what it will cost, before it runs.

Contents:

    forecast        what a forecast says, prints and saves
    analysis        a planned program -> a forecast
    report_data     the data
    totals          sums, and equal stretches of ops
    communication   for which op each reshard is, and in which phase
    peak_memory     what is alive when
    step_phases     forward, backward, update
    text_report     as text, and as JSON
    html_report     as one HTML page
    svg             what pictures share
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

__all__ = ["Done", "Forecast", "Held", "Memory", "Moved", "Placed", "Stage", "forecast"]
