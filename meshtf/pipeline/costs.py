"""The costs of a pipeline's layers: given by the user, measured, or counted by recording
the layers on an example.

Example:

    records = layer_costs(layers, cost=None, inputs=example)
    [record.cost for record in records]           # FLOPs of one forward pass of each layer
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from meshtf.errors import PlanError, explain_error
from meshtf.function.function import function
from meshtf.graph import (
    EffectOp,
    Graph,
    Node,
    context,
    executing,
)
from meshtf.mesh import Layout
from meshtf.names import dtype_bytes, nested
from meshtf.names.arguments import as_float, as_sequence, check_floats
from meshtf.ops.control.seeds import seed
from meshtf.pipeline.layer_variables import layer_name, num_parameters
from meshtf.pipeline.partition import Layer

# Runs of a layer that is measured. The first one compiles the layer, and is left out.
ROUNDS = 6
# A change of layout: no dimension is sharded, so that no layout refuses the example.
_SHARDS_NOTHING = Layout.changes("*:")


def layer_costs(
    layers: Sequence[Callable[..., Any]],
    cost: Sequence[float] | Callable[[Any], float] | str | None,
    inputs: Any,
) -> list[Layer]:
    """Returns the name, cost, parameters and activations of each layer.

    Args:
      layers: the layers, in order.
      cost: the cost of each layer; or a function from a layer to its cost; or "measured":
        seconds, measured on `inputs`; None: FLOPs, counted on `inputs`.
      inputs: an example of the input of the first layer; None: nothing is counted, and
        without `cost` all layers cost 1.

    Raises:
      PlanError: there are not as many costs as layers, or no example to measure on.
    """
    if isinstance(cost, str):
        cost = _measure_seconds(cost, layers, inputs)
    if inputs is not None:
        records = _count_costs(layers, inputs)
    else:
        records = _equal_costs(layers, cost=1.0)
    if cost is None:
        return records
    if callable(cost):
        costs: Sequence[Any] = [as_float("cost", cost(layer)) for layer in layers]
    else:
        costs = as_sequence(
            "cost", cost, "a list of numbers, a function of a layer, or a name"
        )
    for one_cost in costs:
        check_floats(cost=one_cost)
    if len(costs) != len(layers):
        raise PlanError(
            explain_error(
                f"there are {len(costs)} costs for {len(layers)} layers.",
                way_out="Give one for each layer.",
            )
        )
    return [record._replace(cost=one_cost) for record, one_cost in zip(records, costs)]


def cost_unit(cost: object, inputs: object) -> str:
    """Returns the unit of the costs that `layer_costs` returns for these arguments."""
    if isinstance(cost, str):
        return "s"
    if cost is not None:
        return "units of cost"
    return "layers" if inputs is None else "FLOP"


def _equal_costs(layers: Sequence[Callable[..., Any]], cost: float) -> list[Layer]:
    """Returns records of layers that all have the same cost, and no activations."""
    return [
        Layer(name=layer_name(layer, i), cost=cost, parameters=num_parameters(layer))
        for i, layer in enumerate(layers)
    ]


def _count_costs(layers: Sequence[Callable[..., Any]], x: Any) -> list[Layer]:
    """Returns records of layers: the FLOPs of the forward pass, and the bytes of the
    activations, counted by recording the layers on an example; nothing runs.
    """
    first_input, *_ = nested.flatten(x)
    graph = Graph(first_input.mesh)
    records = []
    with (
        executing(graph),
        # Seeds are for random ops of the layers, such as dropout.
        context(seeds=(0,), random_paths=set(), region=_SHARDS_NOTHING),
    ):
        for i, layer in enumerate(layers):
            start = len(graph.nodes)
            x = layer(x)
            nodes = graph.nodes[start:]
            flops = sum(node.op.flops(*(y.spec for y in node.inputs)) for node in nodes)
            record = Layer(
                name=layer_name(layer, i),
                cost=flops,
                parameters=num_parameters(layer),
                activations=sum(map(_activation_bytes, nodes)),
            )
            records.append(record)
    return records


def _activation_bytes(node: Node) -> int:
    """Returns the bytes of a node's outputs; 0 for reads, writes and host ops."""
    if isinstance(node.op, EffectOp):
        return 0
    return sum(y.shape.size * dtype_bytes(y.dtype) for y in node.outputs)


def _measure_seconds(
    method: str, layers: Sequence[Callable[..., Any]], x: Any
) -> list[float]:
    """Returns the seconds that a forward pass of each layer takes, the least of several
    runs. Raises PlanError for an unknown method or without an example.
    """
    if method != "measured" or x is None:
        problem = "layers are measured on an example."
        if method != "measured":
            problem = f"the cost of layers is not {method!r}."
        raise PlanError(
            explain_error(
                problem,
                way_out='Give numbers, a function of a layer, or "measured" with '
                "inputs=.",
            )
        )
    seconds = []
    for layer in layers:
        with context(seeds=None, region=_SHARDS_NOTHING):
            program = function(lambda x, layer=layer: _call_with_seed(layer, x))
            times = []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                y = program(x)
                for tensor in nested.flatten(y):
                    tensor.numpy()  # waits until it is computed
                times.append(time.perf_counter() - start)
        seconds.append(min(times[1:]))
        x = y  # the example for the next layer
    return seconds


def _call_with_seed(layer: Callable[..., Any], x: Any) -> Any:
    """Returns layer(x), with a seed for the random numbers that the layer draws."""
    with seed(0):
        return layer(x)
