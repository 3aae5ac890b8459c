"""Whether a program fits into the memory of a device, and what would save memory.

Each suggestion follows from the plan: bytes of variables that are replicated along a
mesh axis, activations that are kept for the backward pass, and large tensors that are
replicated.

    for line in advice(forecast):
        print(line)
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator

from meshtf.forecast.report_data import Facts, LiveTensors, PlacedTensor
from meshtf.forecast.reports.op_table import shape_text
from meshtf.forecast.reports.units import bytes_text

_MIN_SHARE = 0.01  # of the peak; what saves less is not worth a line
_MAX_TENSORS = 3


def verdict(forecast: Facts) -> str:
    """Returns a sentence: whether the peak fits into the memory of a device, by how much;
    "" if that memory is not known.
    """
    if forecast.device_memory is None:
        return ""
    free = forecast.device_memory - forecast.memory.peak
    memory = bytes_text(forecast.device_memory)
    if free >= 0:
        return f"{memory} device memory: fits, {bytes_text(free)} are left"
    return f"{memory} device memory: does not fit, {bytes_text(-free)} too much"


def advice(forecast: Facts) -> list[str]:
    """Returns what would save memory, the largest saving of variables first."""
    minimum = _MIN_SHARE * forecast.memory.peak
    lines = list(_variable_rules(forecast, minimum))
    lines += _activations(forecast, minimum)
    lines += _replicated_tensors(forecast, minimum)
    return lines


def _variable_rules(forecast: Facts, minimum: float) -> Iterator[str]:
    """Yields layout rules that shard variables along axes that replicate them."""
    states = [v for v in forecast.variables if v.role == "optimizer state"]
    trained = [v for v in forecast.variables if v.role != "other"]
    settings = (
        ("optimizer_layout", "ZeRO-1", states, forecast.optimizer_layout),
        ("variable_layout", "FSDP, ZeRO-3", trained, forecast.variable_layout),
    )
    suggestions: list[tuple[float, str]] = []
    for setting, name, variables, rules in settings:
        tensors = [variable.tensor for variable in variables]
        for axis, dim, saved in _best_rules(forecast, tensors, rules):
            if saved >= minimum:
                owner = "optimizer state" if variables is states else "variables"
                text = f'{setting}="{dim}:{axis}" ({name}) saves {bytes_text(saved)}'
                suggestions.append((saved, f"{text} of {owner}"))
    for _, text in sorted(suggestions, reverse=True):
        yield text


def _best_rules(
    forecast: Facts, tensors: Iterable[PlacedTensor], rules: str
) -> Iterator[tuple[str, str, float]]:
    """Yields for each mesh axis the dimension that saves the most bytes if the axis shards
    it, and these bytes.
    """
    tensors = list(tensors)
    ruled_dims = {rule.partition(":")[0].strip() for rule in rules.split(";")}
    for i, (axis, size) in enumerate(forecast.axes):
        saved: collections.Counter[str] = collections.Counter()
        for tensor in tensors:
            for dim in _free_dims(tensor, i, size):
                if dim not in ruled_dims:
                    saved[dim] += int(tensor.bytes * (1 - 1 / size))
        if saved:
            ((dim, amount),) = saved.most_common(1)
            yield axis, dim, float(amount)


def _free_dims(tensor: PlacedTensor, axis_index: int, size: int) -> list[str]:
    """Returns the dimensions that a mesh axis could shard: it replicates the tensor, and
    its size divides the dimension, which no other axis shards.
    """
    if size == 1 or tensor.states[axis_index] != "replicated":
        return []
    return [
        dim
        for dim, dim_size in tensor.shape
        if dim_size % size == 0 and dim not in tensor.states
    ]


def _activations(forecast: Facts, minimum: float) -> Iterator[str]:
    activations = [live for live in forecast.live if live.kind == "activation"]
    size = sum(live.total for live in activations)
    if size >= max(minimum, 1):
        yield (
            f"{bytes_text(size)} are activations, kept for the backward pass: "
            "mtf.recompute or Repeat(recomputed=True) keeps only the inputs of what it "
            "wraps (Architecture.recompute in transformer)"
        )
        yield (
            "k microbatches keep the activations of 1/k of the batch at a time: "
            "mtf.optimizers.accumulate_gradients (train.microbatches in transformer)"
        )


def _replicated_tensors(forecast: Facts, minimum: float) -> list[str]:
    """Returns a line for each of the largest outputs of ops that an axis replicates.

    Gathered tensors and workspaces of ops are left out: no layout rule shards them.
    """
    lines: list[str] = []
    for live in forecast.live:
        is_output = live.kind in ("activation", "temporary") and " " not in live.title
        if not is_output:
            continue
        if live.total < minimum or len(lines) == _MAX_TENSORS:
            break
        line = _replicated_tensor(forecast, live)
        if line:
            lines.append(line)
    return lines


def _replicated_tensor(forecast: Facts, live: LiveTensors) -> str:
    """Returns which axis replicates a tensor, and the dimensions that it could shard; ""
    if there is none.
    """
    axes = [axis for axis, _ in forecast.axes]
    for i, (axis, size) in enumerate(forecast.axes):
        if len(live.tensor.states) != len(axes):
            return ""
        dims = _free_dims(live.tensor, i, size)
        if dims:
            rules = " or ".join(f'"{dim}:{axis}"' for dim in dims)
            shape = shape_text(live.tensor, axes)
            return (
                f"{bytes_text(live.total)}, {live.title} {shape}, are replicated along "
                f"axis {axis}: layout={rules} would shard them"
            )
    return ""
