"""Which variables of an optimizer belong to which variable of a model."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any


def slots_by_variable(
    optimizer: Any, variables: Sequence[Any]
) -> Mapping[int, dict[str, Any]]:
    """Returns for each variable, by its resource, the variable ("") and its slots by the end
    of their names. Variables whose slots cannot be told by name are left out.
    """
    by_prefix: dict[str, list[Any]] = collections.defaultdict(list)
    for variable in variables:
        by_prefix[f"{optimizer.name}/{variable.path.replace('/', '_')}_"].append(
            variable
        )
    slots = {id(v.handle): {"": v} for v in variables}
    for slot in optimizer.variables:
        matching = [prefix for prefix in by_prefix if slot.path.startswith(prefix)]
        if matching:
            prefix = max(matching, key=len)
            for variable in by_prefix[prefix]:
                suffix = slot.path.removeprefix(prefix)
                if suffix in slots[id(variable.handle)]:
                    slots[id(variable.handle)]["?"] = slot
                slots[id(variable.handle)][suffix] = slot
    alone = {
        id(v.handle) for group in by_prefix.values() if len(group) == 1 for v in group
    }
    return {
        key: names for key, names in slots.items() if key in alone and "?" not in names
    }
