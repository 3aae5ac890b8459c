"""The warning that a function is traced too often. It names the argument that changes.

A trace is a program that a `mtf.function` recorded and compiled for one call. Its key lists
the properties of the call that the program depends on, such as shapes: see `KeyEntry`.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from meshtf.errors import TraceWarning, explain_error
from meshtf.function.arguments import ByIdentity, KeyEntry

MANY_TRACES = 20  # the number of traces of one function that causes the warning

# For each kind of `KeyEntry` that changes from call to call: how to avoid the traces.
_WAYS_OUT = {
    "value": "A Python value is a constant of the program. Pass it as an array with named "
    'dimensions, such as a scalar: @mtf.function({argument}="").',
    "shape": "Each shape has its program. Give it few shapes: pad it, or drop the last, "
    "incomplete batch.",
    "structure": "Each structure has its program. Pass one tensor, such as the result of "
    "mtf.stack, or use mtf.scan inside.",
    "region": "Each layout has its program. Write `with mtf.layout(...)` inside.",
    "stage": "Each stage has its program. Write `with mtf.stage(...)` inside.",
    "path": "Its random numbers depend on the module that calls it. Draw them outside.",
    "mesh": "Each mesh has its program.",
}


def warn_of_many_traces(name: str, keys: Collection[Sequence[KeyEntry]]) -> None:
    """Warns that a function was traced very often, and names the argument that changes
    most.

    Args:
      name: the name of the function.
      keys: the keys of all traces of the function.
    """
    # The argument "" is the context of the call, such as the layout.
    variants = _variants_by_argument(keys)
    argument = max(variants, key=lambda candidate: len(variants[candidate]))
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
        stacklevel=6,  # the line that calls the function, above `Function.__call__`
    )


def keys_of_object(
    keys: Iterable[tuple[KeyEntry, ...]], key: tuple[KeyEntry, ...]
) -> list[tuple[KeyEntry, ...]]:
    """Returns the keys of calls of a method on the same object as in `key`; all keys for a
    function that is not a method.
    """
    first_entry = key[0]
    if first_entry.argument != "self":
        return list(keys)
    return [candidate for candidate in keys if candidate[:1] == (first_entry,)]


def _variants_by_argument(
    keys: Iterable[Sequence[KeyEntry]],
) -> dict[str, list[tuple[KeyEntry, ...]]]:
    """Returns for each argument its distinct variants. A variant is the tuple of entries
    that describe the argument in a key.
    """
    # The inner dicts are used as ordered sets.
    variants: dict[str, dict[tuple[KeyEntry, ...], None]] = defaultdict(dict)
    for key in keys:
        entries_of_key: dict[str, list[KeyEntry]] = defaultdict(list)
        for entry in key:
            entries_of_key[entry.argument].append(entry)
        for argument, entries in entries_of_key.items():
            variants[argument][tuple(entries)] = None
    return {argument: list(distinct) for argument, distinct in variants.items()}


def _difference(variants: Sequence[Sequence[KeyEntry]]) -> tuple[str, list[str]]:
    """Returns the kind of entry in which the variants of an argument differ most, and
    three examples as text.
    """
    lengths = {len(entries) for entries in variants}
    if len(lengths) > 1 or not variants[0]:
        # One entry is the structure itself, each other one is a leaf.
        examples = [f"{len(entries) - 1} leaves" for entries in variants[:3]]
        return "structure", examples
    most_varied_entries: list[KeyEntry] = []
    for corresponding_entries in zip(*variants):
        distinct_entries = list(dict.fromkeys(corresponding_entries))
        if len(distinct_entries) > len(most_varied_entries):
            most_varied_entries = distinct_entries
    examples = [_entry_text(entry) for entry in most_varied_entries[:3]]
    return most_varied_entries[0].kind, examples


def _entry_text(entry: KeyEntry) -> str:
    """Returns an entry as users know it: a value, a shape, a layout."""
    fact = entry.facts[0]
    if isinstance(fact, ByIdentity):
        return repr(fact.value)
    return repr(fact)
