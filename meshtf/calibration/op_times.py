"""Measures ops that take longer than to read and write their tensors: softmax, norms,
activations and cross entropy.

    measure_ops(mesh, print)       # {"softmax": [3.1e-9, 8.5e-9], "softmaxgrad": ...}

Times are those of one element, of the largest tensor that an op reads or writes, for a tensor
that caches hold and a large one; "elementwise" is the time to read or write a float. The op of a
gradient gets the time of its forward op: alone in a loop, XLA fuses it in ways that it does
not in a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from meshtf.calibration.clock import WALL, Clock
from meshtf.calibration.repeated_work import ROUNDS, RepeatedWork, measure
from meshtf.graph import Tensor
from meshtf.mesh import Mesh
from meshtf.ops.nn.activations import gelu, silu
from meshtf.ops.nn.cross_entropy import cross_entropy
from meshtf.ops.nn.normalization import layer_norm
from meshtf.ops.nn.softmax import softmax

ROWS = (512, 8192)
COLUMNS = 128
_ELEMENTWISE = "elementwise"
_PASSES = 3  # of `_sum`: it reads two tensors, and writes one
_Body = Callable[..., Tensor]


class _Measured(NamedTuple):
    """An op that is measured.

    Attributes:
      name: the name of the op.
      gradient: the name of its gradient op.
      apply: applies it to x [position, rows, columns] and ids [position, rows].
    """

    name: str
    gradient: str
    apply: _Body


_OPS = (
    _Measured("softmax", "softmaxgrad", lambda x, _: softmax(x, "columns")),
    _Measured("normalize", "normalizegrad", lambda x, _: layer_norm(x, "columns")),
    _Measured("gelu", "gelu_grad", lambda x, _: gelu(x)),
    _Measured("gelu_exact", "gelu_exact_grad", lambda x, _: gelu(x, approximate=False)),
    _Measured("silu", "silu_grad", lambda x, _: silu(x)),
    _Measured(
        "crossentropy",
        "crossentropygrad",
        lambda x, ids: x + cross_entropy(x, ids, "columns"),
    ),
)


def measure_ops(
    mesh: Mesh,
    report: Callable[[str], None],
    rows: Sequence[int] = ROWS,
    rounds: int = ROUNDS,
    clock: Clock = WALL,
) -> dict[str, list[float]]:
    """Returns the seconds of one element, by the name of the op, for each of `rows`.

    Args:
      mesh: a mesh with one axis, "position".
      report: is called with a line for each op.
      rows: the rows of tensors [rows, 128] of a device.
      rounds: how often each op is timed.
      clock: the clock.
    """
    bodies = [_sum, *(_with_sum(op.apply) for op in _OPS)]
    works = [_work(mesh, body, count, clock) for count in rows for body in bodies]
    seconds = np.reshape(measure(works, rounds), (len(rows), len(bodies)))
    of_element = seconds / (np.array(rows)[:, None] * COLUMNS)
    sums, *ops = of_element.T
    result = {_ELEMENTWISE: [float(x) / _PASSES for x in sums]}
    for op, times in zip(_OPS, ops):
        excess = [float(x) for x in np.maximum(times - sums, 0.0)]
        result[op.name] = excess
        result[op.gradient] = excess
    for name in (_ELEMENTWISE, *(op.name for op in _OPS)):
        text = "".join(f"{x * 1e9:8.2f}" for x in result[name])
        report(f"  {name:16}{text} ns for each element")
    return result


def _sum(x: Tensor, y: Tensor, ids: Tensor) -> Tensor:
    """Returns a sum of x and y that stays bounded from iteration to iteration."""
    del ids
    return x * 0.5 + y


def _with_sum(apply: _Body) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Returns what `_sum` computes, of the result of an op."""
    return lambda x, y, ids: apply(x, ids) * 0.5 + y


def _work(
    mesh: Mesh, body: Callable[..., Tensor], rows: int, clock: Clock
) -> RepeatedWork:
    """Returns the repeated work of a body on a tensor [rows, columns] of each device."""
    rng = np.random.default_rng(0)
    shape = (mesh.size, rows, COLUMNS)
    ids = rng.integers(0, COLUMNS, shape[:2]).astype("int32")
    inputs = {
        "x": (rng.standard_normal(shape, dtype=np.float32), "position;rows;columns"),
        "y": (rng.standard_normal(shape, dtype=np.float32), "position;rows;columns"),
        "ids": (ids, "position;rows"),
    }
    return RepeatedWork(mesh, body, inputs, clock)
