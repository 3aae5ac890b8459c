"""Says whether a program fits into the memory of a device, and what would save memory.

    for line in advice(forecast):
        print(line)

The suggestions come from the forecast: variables that a mesh axis replicates, activations
that are stored for the backward pass, and large tensors that are replicated.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshtf.forecast.report_data import ForecastData, LiveTensors, PlacedTensor
from meshtf.forecast.reports.shapes import shape_text
from meshtf.forecast.reports.units import bytes_text

_MIN_FRACTION = 0.01  # a suggestion must save this fraction of the peak
_MAX_TENSORS = 3  # how many large tensors get a suggestion


def verdict(forecast: ForecastData) -> str:
    """Returns a line that says whether the peak fits into the memory of a device, and how
    many bytes are left or missing; "" if the memory of the device is unknown.
    """
    if forecast.device_memory is None:
        return ""
    free = forecast.device_memory - forecast.memory.peak
    memory = bytes_text(forecast.device_memory)
    if free >= 0:
        return f"{memory} device memory: fits, {bytes_text(free)} are left"
    return f"{memory} device memory: does not fit, {bytes_text(-free)} too much"


def advice(forecast: ForecastData) -> list[str]:
    """Returns suggestions that would save memory: first for variables, those that save the
    most first, then for activations and other tensors.
    """
    min_bytes = _MIN_FRACTION * forecast.memory.peak
    return [
        *_variable_advice(forecast, min_bytes),
        *_activation_advice(forecast, min_bytes),
        *_replication_advice(forecast, min_bytes),
    ]


def _variable_advice(forecast: ForecastData, min_bytes: float) -> Iterator[str]:
    """Yields suggestions of layout rules that shard variables along axes that replicate
    them, the rule that saves the most first.
    """
    optimizer_state = [
        variable.tensor
        for variable in forecast.variables
        if variable.role == "optimizer state"
    ]
    trained = [
        variable.tensor for variable in forecast.variables if variable.role != "other"
    ]
    suggestions: list[_Suggestion] = []
    for rule in _best_rules(forecast, optimizer_state, forecast.optimizer_layout):
        text = (
            f'optimizer_layout="{rule.dim}:{rule.axis}" (ZeRO-1) saves '
            f"{bytes_text(rule.saved_bytes)} of optimizer state"
        )
        suggestions.append(_Suggestion(rule.saved_bytes, text))
    for rule in _best_rules(forecast, trained, forecast.variable_layout):
        text = (
            f'variable_layout="{rule.dim}:{rule.axis}" (FSDP, ZeRO-3) saves '
            f"{bytes_text(rule.saved_bytes)} of variables"
        )
        suggestions.append(_Suggestion(rule.saved_bytes, text))
    for suggestion in sorted(suggestions, reverse=True):
        if suggestion.saved_bytes >= min_bytes:
            yield suggestion.text


class _Suggestion(NamedTuple):
    """A suggestion. Suggestions are sorted by the bytes that they save on one device."""

    saved_bytes: float
    text: str


class _Rule(NamedTuple):
    """A layout rule that shards a dimension along a mesh axis, and what it saves."""

    dim: str
    axis: str
    saved_bytes: float  # on one device


def _best_rules(
    forecast: ForecastData, tensors: Sequence[PlacedTensor], layout: str
) -> Iterator[_Rule]:
    """Yields for each mesh axis the rule that saves the most bytes of these tensors.

    Args:
      forecast: the forecast.
      tensors: the tensors that a rule would shard.
      layout: the present rules; a dimension that has a rule gets no other one.
    """
    ruled_dims = set()
    for rule in layout.split(";"):
        dim, _, _axis = rule.partition(":")
        ruled_dims.add(dim.strip())
    for i, (axis, axis_size) in enumerate(forecast.axes):
        saved_bytes: collections.Counter[str] = collections.Counter()
        for tensor in tensors:
            for dim in _shardable_dims(tensor, i, axis_size):
                if dim not in ruled_dims:
                    saved_bytes[dim] += int(tensor.bytes * (1 - 1 / axis_size))
        if saved_bytes:
            ((dim, size),) = saved_bytes.most_common(1)
            yield _Rule(dim, axis, float(size))


def _shardable_dims(tensor: PlacedTensor, axis_index: int, axis_size: int) -> list[str]:
    """Returns the dimensions of a tensor that a mesh axis could shard.

    The axis must replicate the tensor at present. Its size must divide the dimension, and
    no other axis may shard the dimension.
    """
    if axis_size == 1 or tensor.states[axis_index] != "replicated":
        return []
    return [
        dim
        for dim, dim_size in tensor.shape
        if dim_size % axis_size == 0 and dim not in tensor.states
    ]


def _activation_advice(forecast: ForecastData, min_bytes: float) -> Iterator[str]:
    """Yields ways to store fewer activations, if they take at least `min_bytes`."""
    activations = [live for live in forecast.live if live.kind == "activation"]
    size = sum(live.total for live in activations)
    if size >= max(min_bytes, 1):
        yield (
            f"{bytes_text(size)} are activations, kept for the backward pass: "
            "mtf.recompute or Repeat(recomputed=True) keeps only the inputs of what it "
            "wraps (Architecture.recompute in transformer)"
        )
        yield (
            "k microbatches keep the activations of 1/k of the batch at a time: "
            "mtf.optimizers.accumulate_gradients (train.microbatches in transformer)"
        )


def _replication_advice(forecast: ForecastData, min_bytes: float) -> list[str]:
    """Returns a suggestion for each of the largest outputs of ops that a mesh axis
    replicates.

    Gathered tensors and workspaces of ops are left out: no layout rule shards them.
    """
    lines: list[str] = []
    for live in forecast.live:
        # The titles of gathered tensors and workspaces have several words.
        is_op_output = " " not in live.title
        if live.kind not in ("activation", "temporary") or not is_op_output:
            continue
        if live.total < min_bytes or len(lines) == _MAX_TENSORS:
            break
        line = _replicated_tensor(forecast, live)
        if line:
            lines.append(line)
    return lines


def _replicated_tensor(forecast: ForecastData, live: LiveTensors) -> str:
    """Returns which axis replicates a tensor, and the layout rules that would shard it;
    "" if there are none.
    """
    axes = [axis for axis, _ in forecast.axes]
    if len(live.tensor.states) != len(axes):
        return ""  # the states of tensors that are internal to an op are unknown
    for i, (axis, axis_size) in enumerate(forecast.axes):
        dims = _shardable_dims(live.tensor, i, axis_size)
        if dims:
            rules = " or ".join(f'"{dim}:{axis}"' for dim in dims)
            shape = shape_text(live.tensor, axes)
            return (
                f"{bytes_text(live.total)}, {live.title} {shape}, are replicated along "
                f"axis {axis}: layout={rules} would shard them"
            )
    return ""
