"""The loops over layers in the body of the loop over microbatches: which of their steps a
pipeline runs once for all microbatches.

    loops = loops_over_layers(body)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from meshtf.layout_search.pricing import stacks
from meshtf.partition import LoopStep, Program, ReshardStep, Step, Value


class LayerLoop(NamedTuple):
    """A loop over layers in the body of the loop over microbatches.

    Attributes:
      loop: the loop.
      invariant: the steps of its body that compute from weights only, such as casts and
        gathers. A pipeline runs them once for all microbatches.
      varying: the other steps of its body.
    """

    loop: LoopStep
    invariant: list[Step]
    varying: list[Step]

    @property
    def gathers(self) -> list[ReshardStep]:
        """The collectives of weights."""
        return [x for step in self.invariant for x in step.reshards]

    @property
    def reductions(self) -> list[ReshardStep]:
        """The reductions of gradients that the backward pass returns right away."""
        if not self.loop.node.primals:
            return []
        return [
            reshard
            for step in self.varying
            for reshard in step.reshards
            if reshard.out in self.loop.body.results
        ]


def loops_over_layers(body: Program) -> list[LayerLoop]:
    """Returns the loops over layers of the forward and the backward pass."""
    loops: list[LayerLoop] = []
    computed = {x for step in body.steps for x in step.outputs}
    computed.difference_update(
        x for x in stacks(body, of_forward=True) if not has_examples(x)
    )
    for step in body.steps:
        loop = step.loop
        if loop is not None:
            varying = {loop.iteration, *loop.carries, *computed}
            for entry, scanned in zip(loop.entries, loop.scanned_inputs):
                if scanned in computed or has_examples(scanned):
                    varying.add(entry)
            loops.append(_split_by_inputs(loop, varying))
    return loops


def _split_by_inputs(loop: LoopStep, varying: set[Value]) -> LayerLoop:
    """Returns a loop over layers with its steps, by whether they read a value of `varying`, to
    which this adds what such steps compute.
    """
    layers = LayerLoop(loop, [], [])
    for step in loop.body.steps:
        if varying.isdisjoint(step.inputs):
            layers.invariant.append(step)
        else:
            layers.varying.append(step)
            varying.update(step.outputs)
    return layers


def origins_of(all_layers: Iterable[LayerLoop]) -> dict[Value, Hashable]:
    """Returns {value that loops over layers compute from weights, or an entry: how it is
    computed}, which is equal for the forward and the backward pass.
    """
    origins: dict[Value, Hashable] = {}
    for layers in all_layers:
        loop = layers.loop
        arguments = loop.op.body.arguments[-len(loop.entries) :]
        for entry, stacked, argument in zip(
            loop.entries, loop.scanned_inputs, arguments
        ):
            origins[entry] = origins.get(stacked, id(argument))
        for step in layers.invariant:
            compute = step.computation
            how = "" if compute is None else repr(compute.node.op)
            inputs = tuple(origins.get(x, x) for x in step.inputs)
            for i, out in enumerate(step.outputs):
                origins[out] = how, i, inputs, out.placement
        for out, result in zip(loop.outs, loop.body.results):
            if result in origins:
                origins[out] = origins[result]
    return origins


def without_collectives_of_weights(body: Program) -> Program:
    """Returns the body of the loop over microbatches without gathers of weights, which a
    pipeline runs once for all microbatches, and without `LayerLoop.reductions`.
    """
    loops: dict[Step, Step] = {}
    for layers in loops_over_layers(body):
        excluded = {step.out for step in (*layers.gathers, *layers.reductions)}
        if excluded:
            inner = layers.loop.body
            steps = [x for x in inner.steps if excluded.isdisjoint(x.outputs)]
            inner = dataclasses.replace(inner, steps=tuple(steps))
            loops[layers.loop] = dataclasses.replace(layers.loop, body=inner)
    if not loops:
        return body
    steps = [loops.get(step, step) for step in body.steps]
    return dataclasses.replace(body, steps=tuple(steps))


def layer_loops(body: Program, of_forward: bool) -> Iterator[LoopStep]:
    """Yields the loops of the forward or of the backward pass, such as that over layers."""
    for step in body.steps:
        loop = step.loop
        if loop is not None and of_forward != bool(loop.node.primals):
            yield loop


def has_examples(value: Value) -> bool:
    """Returns whether a value has the dimension that is split into microbatches."""
    return value.spec is not None and "batch" in value.spec.shape
