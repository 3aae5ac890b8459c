"""The search of layouts: `mtf.search`.

Contents:

    search      `mtf.search`: what is fixed, what is tried, in which order
    space       which dimensions an axis may shard together, and how variables are stored
    grid        the sizes of axes and numbers of microbatches of a structure
    problem     the program as a function of a mesh, and the devices
    ranking     structures in the order of lower bounds: most need no plan
    bounds      lower bounds of the time and memory of a structure
    beginning   the forward pass of a recorded program, planned on any mesh
    pricing     one plan for each structure, and its time and memory for all sizes of axes
    order       candidates from the fastest on, and of equal ones the simplest
    candidates  the best layouts, planned in full, and run for a few steps
    result      the table of the best layouts
    why_not     why another layout is not among them
"""

from meshtf.layout_search.candidates import Candidate
from meshtf.layout_search.result import SearchResult
from meshtf.layout_search.search import search

__all__ = ["Candidate", "SearchResult", "search"]
