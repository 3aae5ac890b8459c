"""Bytes that cross between devices in a call, counted in TensorFlow's graphs, against the
forecast.

    python -m benchmarks.spmd.device_traffic        # a language model under eight layouts

TensorFlow partitions a program by device: where a tensor crosses, it adds a `_Send` to one
graph and a `_Recv` to the other. These ops are counted, with the shapes that TensorFlow
inferred, independently of the planner and its formulas. Collectives are distinguished from
the loading of arguments by the name scopes of their ops ("move/all_reduce/data/").
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from benchmarks.step.layouts import LAYOUTS, SMALL
from meshtf.forecast import Forecast
from meshtf.runtime.tf_internals.run_records import graph_of, recorded_graphs
from transformer.cli.program import run_main

_LOAD = ("load", "")


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A tensor that is sent from one device to another."""

    kind: str  # of a move: "all_reduce", "gather_statistics", ...; else "load", of arguments
    axis: str  # of a move: "data"; "data+model" where it goes along two; else ""
    source: str
    target: str
    bytes: int

    @property
    def moved(self) -> bool:
        """Whether it is part of a move of the program."""
        return (self.kind, self.axis) != _LOAD


def crossings(fn: Any, *args: Any) -> list[Crossing]:
    """Calls a mtf.function for the first time with these arguments, and returns all tensors
    that cross between devices.

    Args:
      fn: the function, on a mesh whose devices are "separate:n" or have their own memories.
      *args: its arguments.

    Raises:
      ValueError: the function has been called with such arguments: TensorFlow partitions a
        program only once.
    """
    compiled = fn.lower(*args)
    if compiled.function is not None:
        raise ValueError(
            f"{fn.__name__} has run with these arguments already: make it anew."
        )
    with recorded_graphs() as functions:
        fn(*args)
    programs = [graphs for graphs in functions if _is_program(graphs)]
    graph = graph_of(compiled.definition)
    shapes = {op.name: op for op in graph.get_operations()}
    results = []
    for graphs in programs:
        sends = {
            _key(n): n.input[0]
            for device_graph in graphs
            for n in device_graph.node
            if n.op in ("_Send", "_HostSend")
        }
        for device_graph in graphs:
            results += _received(device_graph, sends, shapes)
    return results


def by_move(results: list[Crossing]) -> dict[tuple[str, str], int]:
    """Returns the bytes of each kind of collective along each axis, summed over devices."""
    total: collections.Counter[tuple[str, str]] = collections.Counter()
    for crossing in results:
        if crossing.moved:
            total[crossing.kind, crossing.axis] += crossing.bytes
    return dict(total)


def announced(forecast: Forecast) -> dict[tuple[str, str], float]:
    """Returns the same bytes according to a forecast."""
    total: collections.Counter[tuple[str, str]] = collections.Counter()
    for collective in forecast.collectives:
        total[collective.kind, collective.axis] += collective.bytes * forecast.positions
    return {collective: size for collective, size in total.items() if size}


def _is_program(graphs: list[Any]) -> bool:
    """Returns whether graphs are those of a meshtf program, by the names of their ops."""
    return any(
        node.name.startswith(("move/", "load/", "put/"))
        for graph in graphs
        for node in graph.node
    )


def _received(
    graph: Any, sends: dict[Any, str], ops: dict[str, tf.Operation]
) -> Iterator[Crossing]:
    """Yields the tensors that one device receives."""
    readers: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
    for node in graph.node:
        for slot, name in enumerate(node.input):
            if not name.startswith("^"):
                readers[name.removesuffix(":0")].append((node.name, slot))
    for node in graph.node:
        if node.op in ("_Recv", "_HostRecv") and _device(node, "send") != _device(
            node, "recv"
        ):
            sent = sends[_key(node)]
            if "/ctrl/_" in sent:  # only says that something has run: no elements
                continue
            size = _size(sent, readers[node.name], ops)
            kinds = {_sort(name) for name, _ in readers[node.name]} or {_LOAD}
            kind, axis = min(kinds - {_LOAD} or kinds)
            yield Crossing(
                kind,
                axis,
                _device(node, "send"),
                _device(node, "recv"),
                size,
            )


def _size(
    sent: str, readers: list[tuple[str, int]], ops: dict[str, tf.Operation]
) -> int:
    """Returns the bytes of a tensor, from the op that outputs it or, for an argument, from an op
    that reads it.
    """
    name, _, slot = sent.partition(":")
    tensors = [ops[name].outputs[int(slot or 0)]] if name in ops else []
    tensors += [ops[reader].inputs[i] for reader, i in readers if reader in ops]
    sizes = {t.shape.num_elements() * t.dtype.size for t in tensors}
    if len(sizes) != 1:
        raise RuntimeError(f"the size of {sent} is not known: {sizes}")
    return sizes.pop()


def _sort(reader: str) -> tuple[str, str]:
    """Returns (kind, axis) of a crossing, given the name of the op that reads the tensor."""
    where = reader.split("/")
    if where[0] == "move":
        return where[1], where[2].replace(".", "+")
    return _LOAD


def main(argv: list[str]) -> None:
    """Counts, prints, and fails if forecast and count differ."""
    del argv
    print(
        f"{'bytes that one of 8 positions receives':42}{'forecast':>12}{'counted':>12}"
        f"{'arguments':>12}"
    )
    wrong = [
        name
        for name, case in LAYOUTS.items()
        if not _compare(name, *case.build(SMALL, devices="separate:8"))
    ]
    if wrong:
        sys.exit(f"forecast and count differ: {', '.join(wrong)}")


def _compare(name: str, step: Any, args: tuple[Any, ...]) -> bool:
    """Prints forecast and count for one layout, and returns whether they are equal."""
    forecast = step.explain(*args)
    results = crossings(step, *args)
    loads = sum(c.bytes for c in results if not c.moved) / 8
    expected = announced(forecast)
    counted = by_move(results)
    print(
        f"{name:42}{forecast.bytes_moved():12.1f}{sum(counted.values()) / 8:12.1f}"
        f"{loads:12.1f}",
        flush=True,
    )
    for collective in sorted({**expected, **counted}):
        print(
            f"  {' over '.join(collective):40}{expected.get(collective, 0) / 8:12.1f}"
            f"{counted.get(collective, 0) / 8:12.1f}"
        )
    return expected == counted


def _key(node: Any) -> tuple[str, ...]:
    return node.attr["tensor_name"].s, _device(node, "send"), _device(node, "recv")


def _device(node: Any, side: str) -> str:
    return tf.DeviceSpec.from_string(node.attr[f"{side}_device"].s.decode()).to_string()


if __name__ == "__main__":
    run_main(main)
