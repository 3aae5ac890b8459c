"""What the layers of a pipeline cost: given, or counted by recording them on an
example.

Example:

    [c.cost for c in layer_costs(layers, None, example)]        # flops of one forward pass
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import PlanError, explain_error
from meshtf.function.function import function
from meshtf.graph import (
    EffectOp,
    Graph,
    context,
    executing,
)
from meshtf.mesh import Layout
from meshtf.names import dtype_bytes
from meshtf.names.arguments import as_float, as_sequence
from meshtf.ops.control.seeds import seed
from meshtf.pipeline.partition import Layer

ROUNDS = 6  # of which the first, which traces, does not count


def layer_costs(
    layers: Sequence[Callable[..., Any]],
    cost: Sequence[float] | Callable[[Any], float] | str | None,
    inputs: Any,
) -> list[Layer]:
    """Returns what is known of each layer.

    Args:
      layers: the layers, in order.
      cost: of each layer, or a function from a layer to its cost, or "measured", or
        None.
      inputs: an example of what the first layer takes, or None.

    Raises:
      PlanError: there are other numbers of costs than of layers, or nothing to measure
        on.
    """
    if isinstance(cost, str):
        cost = _measured(cost, layers, inputs)
    counted = _counted(layers, inputs) if inputs is not None else None
    if cost is None:
        return counted or [
            Layer(layer_name(layer, i), 1.0, _parameters(layer))
            for i, layer in enumerate(layers)
        ]
    costs = (
        [as_float("cost", cost(layer)) for layer in layers]
        if callable(cost)
        else as_sequence(
            "cost", cost, "a list of numbers, a function of a layer, or a name"
        )
    )
    for number in costs:
        as_float("cost", number)
    if len(costs) != len(layers):
        raise PlanError(
            explain_error(
                f"there are {len(costs)} costs for {len(layers)} layers.",
                way_out="Give one for each layer.",
            )
        )
    known = counted or [
        Layer(layer_name(layer, i), 0.0, _parameters(layer))
        for i, layer in enumerate(layers)
    ]
    return [layer._replace(cost=c) for layer, c in zip(known, costs)]


def _counted(layers: Sequence[Callable[..., Any]], x: Any) -> list[Layer]:
    """Records the layers on an example; nothing runs."""
    flat = tf.nest.flatten(x)
    graph, found = Graph(flat[0].mesh), []
    with (
        executing(graph),
        context(seeds=(0,), random_paths=set(), region=Layout.changes("*:")),
    ):
        for i, layer in enumerate(layers):
            before = len(graph.nodes)
            x = layer(x)
            flops = sum(
                n.op.flops(*(y.spec for y in n.inputs)) for n in graph.nodes[before:]
            )
            held = sum(
                y.shape.size * dtype_bytes(y.dtype)
                for n in graph.nodes[before:]
                if not isinstance(n.op, EffectOp)
                for y in n.outputs
            )
            found.append(Layer(layer_name(layer, i), flops, _parameters(layer), held))
    return found


def _measured(how: str, layers: Sequence[Callable[..., Any]], x: Any) -> list[float]:
    """Returns the seconds of a forward pass of each layer, the best of some."""
    if how != "measured" or x is None:
        raise PlanError(
            explain_error(
                f"the cost of layers is not {how!r}."
                if how != "measured"
                else "layers are measured on an example.",
                way_out='Give numbers, a function of a layer, or "measured" with '
                "inputs=.",
            )
        )
    seconds = []
    for layer in layers:
        with context(seeds=None, region=Layout.changes("*:")):
            program = function(lambda x, layer=layer: _seeded(layer, x))
            times = []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                y = program(x)
                for part in tf.nest.flatten(y):
                    part.numpy()
                times.append(time.perf_counter() - start)
        seconds.append(min(times[1:]))
        x = y
    return seconds


def _seeded(layer: Callable[..., Any], x: Any) -> Any:
    with seed(0):
        return layer(x)


def owner(layer: Any) -> Any:
    """Returns what holds a layer's variables: the layer, or what it is a partial or a
    method of.
    """
    while isinstance(layer, functools.partial):
        layer = layer.func
    return layer.__self__ if inspect.ismethod(layer) else layer


def layer_name(layer: Any, i: int) -> str:
    """Returns what a layer is called: its path, or the name of a function, or its
    number.
    """
    layer = owner(layer)
    return (
        "/".join(layer.path)
        if hasattr(layer, "path")
        else getattr(layer, "__name__", f"layer_{i}")
    )


def _parameters(layer: Any) -> int:
    return sum(v.shape.size for v in getattr(owner(layer), "trainable_variables", ()))
