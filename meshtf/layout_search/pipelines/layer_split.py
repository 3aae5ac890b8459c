"""How the layers of a model are split into the stages of a pipeline.

split = layer_split(body, durations, grid)
split.of_first, split.of_last           # how many layers these stages have
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from meshtf.forecast.time.durations import Durations
from meshtf.layout_search.pipelines.loops_over_layers import layer_loops
from meshtf.layout_search.pricing import Grid
from meshtf.partition import Program, Step


class LayerSplit(NamedTuple):
    """The numbers of layers of stages: `[candidates]`.

    Attributes:
      layers: the number of all layers.
      of_first: those of the first stage.
      of_last: those of the last stage, which has the head as well.
      of_others: the most that a stage but the last one has.
      head: the program of what follows the layers, with its backward pass.
    """

    layers: int
    of_first: Any
    of_last: Any
    of_others: Any
    head: Program


def layer_split(body: Program, durations: Durations, grid: Grid) -> LayerSplit | None:
    """Returns how layers are split; None: it is not known which ops are layers.

    Args:
      body: the body of the loop over microbatches.
      durations: its durations for all candidates.
      grid: the sizes.
    """
    loops = list(layer_loops(body, of_forward=True))
    if not loops:
        return None
    layers = int(durations.sizes.runs(loops[-1].bodies[-1]))
    head = _head(body)
    cost = _forward_flops(head) / loops[-1].op.body.flops
    chunk_counts, rows = np.unique(grid.chunks, return_inverse=True)
    splits = []
    for chunks in map(int, chunk_counts):
        *except_last, last = _layers_of_stages(layers, cost, grid.stages, chunks)
        splits.append((except_last[0], last, max(except_last)))
    of_first, of_last, of_others = (np.array(counts)[rows] for counts in zip(*splits))
    return LayerSplit(layers, of_first, of_last, of_others, head)


def _head(body: Program) -> Program:
    """Returns what follows the layers in the forward pass, such as logits and the loss, with its
    backward pass.
    """
    steps: list[Step] = []
    for step in body.steps:
        if step.loop is None:
            steps.append(step)
        elif step.loop.node.primals:
            break
        else:
            steps = []
    return dataclasses.replace(body, steps=tuple(steps))


def _forward_flops(program: Program) -> float:
    """Returns the FLOPs of the forward pass of a program, of all devices."""
    total = 0.0
    for step in program.steps:
        node = step.node
        if step.computation is not None and node is not None and not node.primals:
            total += node.op.flops(*(x.spec for x in node.inputs))
    return total


@functools.lru_cache(maxsize=1000)  # the same for all structures of a program
def _layers_of_stages(
    layers: int, head: float, stages: int, chunks: int
) -> tuple[int, ...]:
    """Returns how many layers each stage has; the last one has the head as well. The largest
    chunk costs as little as possible, and then chunks vary as little as possible: see
    `meshtf.pipeline.split`.

    Args:
      layers: the number of layers.
      head: the cost of the head, in layers.
      stages: the number of stages.
      chunks: the number of chunks of each stage.
    """
    best = (math.inf, math.inf)
    result: tuple[int, ...] = ()
    for of_last_chunk in range(layers + 1):
        size, larger = divmod(layers - of_last_chunk, stages * chunks - 1)
        # Of the other chunks, the later ones have one more.
        sizes = [size] * (stages * chunks - 1 - larger) + [size + 1] * larger
        costs = [*sizes, of_last_chunk + head]
        quality = (max(costs), sum(cost**2 for cost in costs))
        if quality < best:
            best = quality
            sizes.append(of_last_chunk)
            result = tuple(sum(sizes[i::stages]) for i in range(stages))
    return result
