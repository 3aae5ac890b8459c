"""A forecast as one self-contained HTML page: it loads no other file.

The page is the template `page.html`, filled in with a title, tables (`static_page`) and the
data as JSON. The tables need no script; the script adds a search, and a drawing of which
device has which shard. Strings of a user's program are escaped.

In the data, equal tensors, ops and collectives are stored once, so that a deep model does
not make a large page:

    tensors      each distinct `PlacedTensor`
    collectives  each distinct `Collective`, with indices into `tensors`
    kinds        each distinct `Computation` without its index and module path, with indices
                 into `tensors` and `collectives`; "direct" says whether the user called
                 the op itself, not a layer that consists of ops
    ops          for each op (index, index into `kinds`, module path)
    folded       indices into `ops`; a repeated run is a pair (times, indices of one period)

Variables and results refer to `tensors` and `collectives` by index. The other keys are those
of `text_report.as_json`; `paths` are short names of the user's files.
"""

from __future__ import annotations

import html
import importlib.resources
import json
import re
from collections.abc import Hashable
from typing import Any

from meshtf.forecast.report_data import (
    Collective,
    Computation,
    ForecastData,
    PlacedTensor,
)
from meshtf.forecast.reports.static_page import static_page
from meshtf.forecast.reports.totals import fold, is_direct_call, op_key, totals
from meshtf.forecast.reports.user_lines import short_paths


def page(forecast: ForecastData) -> str:
    """Returns a forecast as a self-contained HTML document."""
    template_file = importlib.resources.files(__package__).joinpath("page.html")
    template = template_file.read_text("utf-8")
    distinct = _Distinct()
    data = _script_text(_page_data(forecast, distinct))
    values = {
        "title": html.escape(forecast.name),
        "static": static_page(forecast, distinct.tensor_index),
        "data": data,
    }
    return re.sub(
        r"\{\{(title|static|data)\}\}", lambda match: values[match[1]], template
    )


def _script_text(fields: dict[str, Any]) -> str:
    """Returns JSON without "<", ">" and "&", so that no string in it can end the script."""
    text = json.dumps(fields, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _page_data(forecast: ForecastData, distinct: _Distinct) -> dict[str, Any]:
    """Returns the data of the page, as the docstring of this module describes them.

    Args:
      forecast: the forecast.
      distinct: stores the distinct tensors, collectives and ops of the forecast.
    """
    ops = [(op.index, distinct.op_index(op), op.path) for op in forecast.ops]
    variables = [
        vars(variable) | {"tensor": distinct.tensor_index(variable.tensor)}
        for variable in forecast.variables
    ]
    live = [
        vars(tensors) | {"tensor": distinct.tensor_index(tensors.tensor)}
        for tensors in forecast.live
    ]
    # `tensors`, `collectives` and `kinds` are complete after these fields are made.
    fields = vars(forecast) | {
        "live": live,
        "ops": ops,
        "folded": fold([kind_index for _, kind_index, _ in ops]),
        "results": [
            distinct.collective_index(collective) for collective in forecast.results
        ],
        "variables": variables,
        "memory": vars(forecast.memory),
        "pipelines": [vars(pipeline) for pipeline in forecast.pipelines],
        "stages": [vars(stage) for stage in forecast.stages],
        "time": None if forecast.time is None else vars(forecast.time),
        "timeline": (),
        "totals": totals(forecast),
        "paths": short_paths(forecast),
    }
    return fields | {
        "tensors": [vars(tensor) for tensor in distinct.tensors],
        "collectives": list(distinct.collectives.values()),
        "kinds": list(distinct.kinds.values()),
    }


class _Distinct:
    """Stores equal tensors, collectives and ops once, and gives each an index.

    Attributes:
      tensors: the index of each distinct tensor.
      collectives: the fields of each distinct collective, for the page's data.
      kinds: the fields of each distinct op, for the page's data, by `op_key`.
    """

    def __init__(self) -> None:
        self.tensors: dict[PlacedTensor, int] = {}
        self.collectives: dict[Collective, dict[str, Any]] = {}
        self.kinds: dict[Hashable, dict[str, Any]] = {}
        # The index of each key of `collectives` and `kinds`.
        self._indices: dict[Hashable, int] = {}

    def tensor_index(self, tensor: PlacedTensor) -> int:
        """Returns the index of a tensor in `tensors`."""
        return self.tensors.setdefault(tensor, len(self.tensors))

    def collective_index(self, collective: Collective) -> int:
        """Returns the index of a collective in `collectives`."""
        if collective not in self.collectives:
            self._indices[collective] = len(self.collectives)
            self.collectives[collective] = vars(collective) | {
                "tensor": self.tensor_index(collective.tensor),
                "after": self.tensor_index(collective.after),
            }
        return self._indices[collective]

    def op_index(self, op: Computation) -> int:
        """Returns the index of an op in `kinds`."""
        kind = op_key(op)
        if kind not in self.kinds:
            self._indices[kind] = len(self.kinds)
            fields = vars(op) | {
                "direct": is_direct_call(op),
                "outputs": [self.tensor_index(tensor) for tensor in op.outputs],
                "collectives": [self.collective_index(x) for x in op.collectives],
            }
            del fields["index"], fields["path"]
            self.kinds[kind] = fields
        return self._indices[kind]
