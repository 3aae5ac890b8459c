"""A forecast as one HTML page that needs nothing else: no network, no files beside it.

The page is the template `page.html` with a title and the data, as JSON, filled in; its
script draws the rest. Whatever comes from a user's program is data, and is written as
text, never as HTML. A tensor, an op or a move that comes again is held once, so that
the page grows with what differs:

    tensors   each `PlacedTensor` that occurs
    moves     each `Collective`, with the numbers of its tensors
    kinds     each `Computation` but for its number, with the numbers of its tensors and moves, and
              whether its function is the op itself ("direct") or a layer made of ops
    ops       (number, kind) of each op
    folded    the places in `ops`, with equal stretches as (times, what is repeated)

and variables and results name tensors and moves by number. The other keys are those of
`table.as_json`; `places` are short names of the user's files.
"""

from __future__ import annotations

import html
import importlib.resources
import json
import re
from typing import Any

from meshtf.forecast.report_data import Collective, Computation, Facts, PlacedTensor
from meshtf.forecast.text_report import places
from meshtf.forecast.totals import direct, fold, kind, totals


def page(forecast: Facts) -> str:
    """Returns a forecast as a self-contained HTML document."""
    template = (
        importlib.resources.files(__package__).joinpath("page.html").read_text("utf-8")
    )
    data = json.dumps(packed(forecast), allow_nan=False, separators=(",", ":"))
    for sign in "<>&":  # so that no string of the data can end the script
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    filled = {"title": html.escape(forecast.name), "data": data}
    return re.sub(r"\{\{(title|data)\}\}", lambda match: filled[match[1]], template)


def packed(forecast: Facts) -> dict[str, Any]:
    """Returns the data of the page; see the top of this file."""
    once = _Once()
    ops = [(op.number, once.op(op)) for op in forecast.ops]
    fields = vars(forecast) | {
        "ops": ops,
        "folded": fold([number for _, number in ops]),
        "results": [once.move(m) for m in forecast.results],
        "variables": [
            vars(v) | {"tensor": once.tensor(v.tensor)} for v in forecast.variables
        ],
        "memory": vars(forecast.memory),
        "totals": totals(forecast),
        "places": places(forecast),
    }
    return fields | {
        "tensors": [*map(vars, once.tensors)],
        "moves": [*once.moves.values()],
        "kinds": [*once.kinds.values()],
    }


class _Once:
    """Gives equal tensors, moves and ops one number each."""

    def __init__(self) -> None:
        self.tensors: dict[PlacedTensor, int] = {}
        self.moves: dict[Collective, dict[str, Any]] = {}
        self.kinds: dict[Computation, dict[str, Any]] = {}
        self._numbers: dict[Collective | Computation, int] = {}

    def tensor(self, tensor: PlacedTensor) -> int:
        """Returns the number of a tensor."""
        return self.tensors.setdefault(tensor, len(self.tensors))

    def move(self, move: Collective) -> int:
        """Returns the number of a move."""
        if move not in self.moves:
            self._numbers[move] = len(self.moves)
            self.moves[move] = vars(move) | {
                "tensor": self.tensor(move.tensor),
                "after": self.tensor(move.after),
            }
        return self._numbers[move]

    def op(self, op: Computation) -> int:
        """Returns the number of a kind of op."""
        same = kind(op)
        if same not in self.kinds:
            self._numbers[same] = len(self.kinds)
            fields = {
                name: value for name, value in vars(op).items() if name != "number"
            }
            self.kinds[same] = fields | {
                "direct": direct(op),
                "outputs": [*map(self.tensor, op.outputs)],
                "moves": [*map(self.move, op.moves)],
            }
        return self._numbers[same]
