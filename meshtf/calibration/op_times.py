"""Measures ops that take longer than to read and write their tensors: softmax, norms,
activations and cross entropy.

    measure_ops(mesh, print)       # {"softmax": 3.1e-9, "softmaxgrad": 3.1e-9, ...}

Times are those of one element, of the largest tensor that an op reads or writes. The op of a
gradient gets the time of its forward op: alone in a loop, XLA fuses it in ways that it does
not in a model.
"""

from __future__ import annotations

from collections.abc import Callable
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

ROWS = 512
_COLUMNS = 128
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
    rows: int = ROWS,
    rounds: int = ROUNDS,
    clock: Clock = WALL,
) -> dict[str, float]:
    """Returns the seconds of one element, by the name of the op.

    Args:
      mesh: a mesh with one axis, "position".
      report: is called with a line for each op.
      rows: the rows of the tensor [rows, 128] of a device.
      rounds: how often each op is timed.
      clock: the clock.
    """
    works = [_work(mesh, _nothing, rows, clock)]
    works.extend(_work(mesh, _scaled(op.apply), rows, clock) for op in _OPS)
    nothing, *times = measure(works, rounds)
    result = {}
    for op, seconds in zip(_OPS, times):
        of_element = max(seconds - nothing, 0.0) / (rows * _COLUMNS)
        result[op.name] = of_element
        result[op.gradient] = of_element
        report(f"  {op.name:16} {of_element * 1e9:8.2f} ns for each element")
    return result


def _nothing(x: Tensor, ids: Tensor) -> Tensor:
    """Returns what `_scaled` computes of the result of an op."""
    del ids
    return x * 0.5 + 0.25


def _scaled(apply: _Body) -> _Body:
    """Returns a body with an op whose result stays bounded from iteration to iteration."""
    return lambda x, ids: apply(x, ids) * 0.5 + 0.25


def _work(mesh: Mesh, body: _Body, rows: int, clock: Clock) -> RepeatedWork:
    """Returns the repeated work of a body on a tensor [rows, columns] of each device."""
    rng = np.random.default_rng(0)
    shape = (mesh.size, rows, _COLUMNS)
    ids = rng.integers(0, _COLUMNS, shape[:2]).astype("int32")
    inputs = {
        "x": (rng.standard_normal(shape, dtype=np.float32), "position;rows;columns"),
        "ids": (ids, "position;rows"),
    }
    return RepeatedWork(mesh, body, inputs, clock)
