"""Forecasts: what a program will do on a mesh and what it will cost, before it runs.

Contents:

    facts       the data
    totals      sums, and equal stretches of ops
    table       as text, and as JSON
    page        as one HTML page
    svg         what pictures share
    forecast    the facts, which print and save themselves
    analysis    a planned program -> a forecast
    memory      what is alive when
    phases      forward, backward, update
"""

from meshtf.forecast.analysis import forecast
from meshtf.forecast.forecast import Forecast
from meshtf.forecast.report_data import Done, Held, Memory, Moved, Placed, Stage

__all__ = ["Done", "Forecast", "Held", "Memory", "Moved", "Placed", "Stage", "forecast"]
