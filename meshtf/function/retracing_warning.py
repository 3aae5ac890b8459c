"""The warning of a function that is traced again and again, which names
what changes.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence

from meshtf.errors import TraceWarning, explain_error
from meshtf.function.arguments import Entry, Itself

MANY_TRACES = 20

_WAYS_OUT = {
    "value": "A Python value is a part of the program. Pass it as an array with named "
    "dimensions, "
    'such as a scalar: @mtf.function({argument}="").',
    "shape": "Each shape is a program of its own. Give it few shapes: pad it, or leave "
    "out what does not fill a batch.",
    "structure": "Each structure is a program of its own. Pass one tensor, such as "
    "that of mtf.stack, or use mtf.scan inside.",
    "region": "Each layout is a program of its own. Write `with mtf.layout(...)` "
    "inside.",
    "stage": "Each stage has a program of its own. Write `with mtf.stage(...)` inside.",
    "path": "Its random numbers depend on the module that calls it. Draw them outside.",
    "mesh": "Each mesh has a program of its own.",
}


def warn_of_many_traces(name: str, keys: Iterable[Sequence[Entry]]) -> None:
    """Warns that a function was traced very often, and says which argument caused it.

    Args:
      name: of the function.
      keys: what each trace was made for.
    """
    found: dict[str, dict[tuple[Entry, ...], None]] = defaultdict(dict)
    number = 0
    for key in keys:
        number += 1
        by_name: dict[str, list[Entry]] = defaultdict(list)
        for entry in key:
            by_name[entry.argument].append(entry)
        for argument, entries in by_name.items():
            found[argument][tuple(entries)] = None
    argument = max(found, key=lambda name: len(found[name]))
    kind, examples = _differing(list(found[argument]))
    what = f"its argument {argument!r}" if argument else f"the {kind} in force"
    warnings.warn(
        explain_error(
            f"the function {name!r} has {number} traces by now, since {what} changes: "
            "each time it is recorded, planned and compiled anew.",
            **{f"{kind}s": f"{', '.join(examples)}, ..."},
            way_out=_WAYS_OUT[kind].format(argument=argument),
        ),
        TraceWarning,
        stacklevel=5,
    )


def _differing(found: Sequence[Sequence[Entry]]) -> tuple[str, list[str]]:
    """Returns in what an argument differs from trace to trace, and the first few
    examples.
    """
    if len({len(entries) for entries in found}) > 1 or not found[0]:
        return "structure", [f"{len(entries) - 1} leaves" for entries in found[:3]]
    columns = [list(dict.fromkeys(column)) for column in zip(*found)]
    most = max(columns, key=len)
    return most[0].kind, [_shown(entry) for entry in most[:3]]


def _shown(entry: Entry) -> str:
    value = entry.facts[0]
    return repr(value.value if isinstance(value, Itself) else value)
