"""Batches for a training loop: each host reads its own rows where it can.

    for batch in batches(model, data, 16, first=800, number=50):
      ...

Where workers compute (`mtf.connect`), data that say they may be read `anywhere` are
read by the workers: a part of each batch by each, on its own CPU, and no rows pass
through this process. Data made by Python are made here, and sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import meshtf as mtf
from transformer.data import Data
from transformer.models.base import Model


def batches(
    model: Model, data: Data, batch_size: int, first: int, number: int
) -> Iterable[Any]:
    """Returns some batches for a model: dicts of arrays, or of tensors that lie on its
    mesh.

    Args:
      model: what will learn from them.
      data: where they come from.
      batch_size: examples in a batch.
      first: how many examples were learnt from already.
      number: how many batches there are.
    """
    if not mtf.connected() or not getattr(data, "anywhere", False):
        return data.batches(batch_size, first).take(number)

    def part(w: int, n: int) -> Any:
        return data.batches(batch_size, first, (w, n))

    return itertools.islice(
        mtf.HostReader(model.mesh, model.features, batch_size, part), number
    )
