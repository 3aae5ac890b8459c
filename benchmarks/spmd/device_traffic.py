"""Bytes that cross between devices in a call, counted in TensorFlow's graphs, against the
forecast.

    python -m benchmarks.spmd.device_traffic        # a language model under eight layouts

TensorFlow partitions a program by device: where a tensor crosses between two devices, it
adds a `_Send` to one graph and a `_Recv` to the other. These ops are counted, with the
shapes that TensorFlow inferred, independently of the planner and its formulas. Collectives
are distinguished from the loading of arguments by the name scopes of their ops
("move/all_reduce/data/").
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from benchmarks.step.layouts import LAYOUTS, SMALL
from meshtf.forecast import Forecast
from meshtf.runtime.tf_internals.run_records import graph_of, recorded_graphs
from transformer.cli.program import run_main

# The number of mesh positions (virtual devices) of all layouts; each has a separate device.
POSITIONS = 8
_LOAD = ("load", "")  # the kind and axis of a crossing that loads an argument


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A tensor that is sent from one device to another.

    Attributes:
      kind: the kind of the collective that the crossing is part of, such as "all_reduce" or
        "gather_statistics"; "load" if it loads an argument.
      axis: the mesh axis of the collective, such as "data"; "data+model" for two axes; "" for
        an argument.
      source: the device that sends the tensor.
      target: the device that receives the tensor.
      bytes: the bytes of the tensor.
    """

    kind: str
    axis: str
    source: str
    target: str
    bytes: int

    @property
    def is_collective(self) -> bool:
        """Whether the crossing is part of a collective of the program."""
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
    # For each TensorFlow function that runs, the graphs into which it is partitioned.
    with recorded_graphs() as graphs_of_functions:
        fn(*args)
    graph = graph_of(compiled.definition)
    ops = {op.name: op for op in graph.get_operations()}
    results = []
    for device_graphs in graphs_of_functions:
        if not _is_program(device_graphs):
            continue
        sent_tensors = {}  # the names of the tensors that devices send
        for device_graph in device_graphs:
            for node in device_graph.node:
                if node.op in ("_Send", "_HostSend"):
                    sent_tensors[_key(node)] = node.input[0]
        for device_graph in device_graphs:
            results += _received_tensors(device_graph, sent_tensors, ops)
    return results


def collective_bytes(results: list[Crossing]) -> dict[tuple[str, str], int]:
    """Returns the bytes of each kind of collective along each axis, summed over devices."""
    total_bytes: collections.Counter[tuple[str, str]] = collections.Counter()
    for crossing in results:
        if crossing.is_collective:
            total_bytes[crossing.kind, crossing.axis] += crossing.bytes
    return dict(total_bytes)


def forecast_bytes(forecast: Forecast) -> dict[tuple[str, str], float]:
    """Returns the forecast of the bytes of each kind of collective along each axis, summed
    over devices.
    """
    total_bytes: collections.Counter[tuple[str, str]] = collections.Counter()
    for collective in forecast.collectives:
        key = collective.kind, collective.axis
        total_bytes[key] += collective.bytes * forecast.positions
    return {key: num_bytes for key, num_bytes in total_bytes.items() if num_bytes}


def _is_program(graphs: list[Any]) -> bool:
    """Returns whether graphs are those of a meshtf program, by the names of their ops."""
    return any(
        node.name.startswith(("move/", "load/", "put/"))
        for graph in graphs
        for node in graph.node
    )


class Reader(NamedTuple):
    """An input of an op, which reads a tensor.

    Attributes:
      op: the name of the op.
      index: the index of the input.
    """

    op: str
    index: int


def _received_tensors(
    graph: Any, sent_tensors: dict[Any, str], ops: dict[str, tf.Operation]
) -> Iterator[Crossing]:
    """Yields the tensors that one device receives from other devices.

    Args:
      graph: the graph of the device.
      sent_tensors: the names of the tensors that all devices send, by `_key`.
      ops: the ops of the program before it was partitioned, by name.
    """
    readers_of: dict[str, list[Reader]] = collections.defaultdict(list)
    for node in graph.node:
        for index, name in enumerate(node.input):
            if not name.startswith("^"):  # no control input
                readers_of[name.removesuffix(":0")].append(Reader(node.name, index))
    for node in graph.node:
        if node.op not in ("_Recv", "_HostRecv"):
            continue
        source = _device(node, "send")
        target = _device(node, "recv")
        if source == target:
            continue
        tensor = sent_tensors[_key(node)]
        if "/ctrl/_" in tensor:  # a control dependency, without elements
            continue
        readers = readers_of[node.name]
        collectives = {_kind_and_axis(reader.op) for reader in readers} - {_LOAD}
        kind, axis = min(collectives, default=_LOAD)
        num_bytes = _bytes(tensor, readers, ops)
        yield Crossing(kind, axis, source=source, target=target, bytes=num_bytes)


def _bytes(tensor: str, readers: list[Reader], ops: dict[str, tf.Operation]) -> int:
    """Returns the bytes of a tensor, given its name: from the op that outputs the tensor or,
    for an argument, from an op that reads it.
    """
    name, _, output_index = tensor.partition(":")
    candidates = []
    if name in ops:
        candidates.append(ops[name].outputs[int(output_index or 0)])
    for reader in readers:
        if reader.op in ops:
            candidates.append(ops[reader.op].inputs[reader.index])
    sizes = {x.shape.num_elements() * x.dtype.size for x in candidates}
    if len(sizes) != 1:
        raise RuntimeError(f"the size of {tensor} is not known: {sizes}")
    return sizes.pop()


def _kind_and_axis(reader: str) -> tuple[str, str]:
    """Returns kind and axis of a crossing, given the name of the op that reads the tensor,
    such as "move/all_reduce/data.model/Add".
    """
    scope, *names = reader.split("/")
    if scope == "move":
        kind, axes, *_ = names
        return kind, axes.replace(".", "+")
    return _LOAD


def main(argv: list[str]) -> None:
    """Counts, prints, and fails if forecast and count differ."""
    del argv
    print(
        f"{'bytes that one of 8 positions receives':42}{'forecast':>12}{'counted':>12}"
        f"{'arguments':>12}"
    )
    different_layouts = []
    for name, case in LAYOUTS.items():
        step, args = case.build(SMALL, devices=f"separate:{POSITIONS}")
        if not _compare(name, step, args):
            different_layouts.append(name)
    if different_layouts:
        sys.exit(f"forecast and count differ: {', '.join(different_layouts)}")


def _compare(name: str, step: Any, args: tuple[Any, ...]) -> bool:
    """Prints forecast and count for one layout, and returns whether they are equal."""
    forecast = step.explain(*args)
    results = crossings(step, *args)
    loaded_bytes = sum(
        crossing.bytes for crossing in results if not crossing.is_collective
    )
    expected = forecast_bytes(forecast)
    counted = collective_bytes(results)
    print(
        f"{name:42}{forecast.bytes_moved():12.1f}"
        f"{sum(counted.values()) / POSITIONS:12.1f}{loaded_bytes / POSITIONS:12.1f}",
        flush=True,
    )
    for collective in sorted({**expected, **counted}):
        print(
            f"  {' over '.join(collective):40}"
            f"{expected.get(collective, 0) / POSITIONS:12.1f}"
            f"{counted.get(collective, 0) / POSITIONS:12.1f}"
        )
    return expected == counted


def _key(node: Any) -> tuple[str, ...]:
    """Returns what a `_Send` and its `_Recv` have in common: the name of the tensor, and the
    devices.
    """
    return node.attr["tensor_name"].s, _device(node, "send"), _device(node, "recv")


def _device(node: Any, side: str) -> str:
    """Returns the device of one side, "send" or "recv", of a `_Send` or a `_Recv`."""
    return tf.DeviceSpec.from_string(node.attr[f"{side}_device"].s.decode()).to_string()


if __name__ == "__main__":
    run_main(main)
