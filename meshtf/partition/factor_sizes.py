"""The sizes of the factors of an op: the dimensions of its iteration space (see `graph.Op`).

factor_sizes(op, ins, outs)                 # {"batch": 8, "d_model": 512, "d_ff": 2048}
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.graph import Op, Spec, factor_of, window_of


def factor_sizes(op: Op, ins: Sequence[Spec], outs: Sequence[Spec]) -> dict[str, int]:
    """Returns {factor: its global size}: the size in an output or, for a factor that no
    output has, in the first input that has the factor.
    """
    sizes = {}
    for x in reversed(ins):
        for dim in x.shape:
            sizes[factor_of(op, dim.name)] = dim.size
    for y in outs:
        for dim in y.shape:
            sizes[dim.name] = dim.size
    return sizes


def sizes_of(
    factor: str, op: Op, ins: Sequence[Spec], outs: Sequence[Spec]
) -> set[int]:
    """Returns the sizes of a factor in inputs and outputs, which may differ."""
    sizes = set()
    for x in ins:
        for dim in x.shape:
            if factor_of(op, dim.name) == factor:
                sizes.add(dim.size)
    for y in outs:
        if factor in y.shape:
            sizes.add(y.shape[factor])
    return sizes


def has_window(factor: str, op: Op, ins: Sequence[Spec]) -> bool:
    """Returns whether a shard of an input reads elements of its neighbours along a factor."""
    return any(
        window_of(op, i, name) is not None
        for i, x in enumerate(ins)
        for name in x.shape.names
        if factor_of(op, name) == factor
    )
