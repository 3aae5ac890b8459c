"""The warning that a function is traced too often. It names the argument that changes."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from meshtf.errors import TraceWarning, explain_error
from meshtf.function.arguments import ByIdentity, Entry

MANY_TRACES = 20

_WAYS_OUT = {
    "value": "A Python value is a constant of the program. Pass it as an array with named "
    "dimensions, "
    'such as a scalar: @mtf.function({argument}="").',
    "shape": "Each shape has its program. Give it few shapes: pad it, or drop the last, "
    "incomplete batch.",
    "structure": "Each structure has its program. Pass one tensor, such as the result of "
    "mtf.stack, or use mtf.scan inside.",
    "region": "Each layout has its program. Write `with mtf.layout(...)` inside.",
    "stage": "Each stage has its program. Write `with mtf.stage(...)` inside.",
    "path": "Its random numbers depend on the module that calls it. Draw them outside.",
    "mesh": "Each mesh has its program.",
}


def warn_of_many_traces(name: str, keys: Collection[Sequence[Entry]]) -> None:
    """Warns that a function was traced very often, and names the argument that changes
    most.

    Args:
      name: of the function.
      keys: those of all traces.
    """
    variants = _variants_by_argument(keys)
    argument = max(variants, key=lambda name: len(variants[name]))
    kind, examples = _difference(variants[argument])
    label = f"its argument {argument!r}" if argument else f"the {kind} of the context"
    warnings.warn(
        explain_error(
            f"the function {name!r} has {len(keys)} traces by now, since {label} "
            "changes: each time it is recorded, planned and compiled anew.",
            **{f"{kind}s": f"{', '.join(examples)}, ..."},
            way_out=_WAYS_OUT[kind].format(argument=argument),
        ),
        TraceWarning,
        stacklevel=5,
    )


def _variants_by_argument(
    keys: Iterable[Sequence[Entry]],
) -> dict[str, list[tuple[Entry, ...]]]:
    """Returns the distinct groups of entries that keys have for each argument."""
    variants: dict[str, list[tuple[Entry, ...]]] = defaultdict(list)
    for key in keys:
        by_argument: dict[str, list[Entry]] = defaultdict(list)
        for entry in key:
            by_argument[entry.argument].append(entry)
        for argument, entries in by_argument.items():
            variants[argument].append(tuple(entries))
    for argument in variants:
        variants[argument] = list(dict.fromkeys(variants[argument]))
    return variants


def _difference(variants: Sequence[Sequence[Entry]]) -> tuple[str, list[str]]:
    """Returns the kind of entry in which the variants of an argument differ most, and
    three examples.
    """
    lengths = {len(entries) for entries in variants}
    if len(lengths) > 1 or not variants[0]:
        examples = [f"{len(entries) - 1} leaves" for entries in variants[:3]]
        return "structure", examples
    most_varied: list[Entry] = []
    for column in zip(*variants):
        distinct_entries = list(dict.fromkeys(column))
        if len(distinct_entries) > len(most_varied):
            most_varied = distinct_entries
    examples = [_shown(entry) for entry in most_varied[:3]]
    return most_varied[0].kind, examples


def _shown(entry: Entry) -> str:
    """Returns the text of an entry for users."""
    fact = entry.facts[0]
    return repr(fact.value if isinstance(fact, ByIdentity) else fact)
