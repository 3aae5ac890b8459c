"""Collectives where each device has its own memory: pieces go around a ring.

Every device sends to its right neighbour only, and receives (p-1)/p of the tensor in a
reduce_scatter or an all_gather, which is the least there is.

    all_reduce([x0, x1], ("/device:GPU:0", "/device:GPU:1"), "sum")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.collectives.alias import all_to_all  # pieces go straight to their device anyway
from meshtf.runtime.collectives.pieces import combine, piece, send

__all__ = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"]


def all_reduce(xs: Sequence[Any], devices: Sequence[str], kind: str) -> list[Any]:
  """Returns the reduced tensor on each device: reduce_scatter and all_gather of flat pieces."""
  shape, number = xs[0].shape, len(xs)
  size = shape.num_elements()
  padded = -(-size // number) * number
  flat = []
  for x, device in zip(xs, devices):
    with tf.device(device):
      flat.append(tf.pad(tf.reshape(x, [-1]), [[0, padded - size]]))
  whole = all_gather(reduce_scatter(flat, devices, kind, 0), devices, 0)
  out = []
  for x, device in zip(whole, devices):
    with tf.device(device):
      out.append(tf.reshape(x[:size], shape))
  return out


def reduce_scatter(xs: Sequence[Any], devices: Sequence[str], kind: str, axis: int) -> list[Any]:
  """Returns piece j of the reduced tensor on device j."""
  number = len(xs)
  pieces = []
  for x, device in zip(xs, devices):
    with tf.device(device):
      pieces.append([piece(x, axis, j, number) for j in range(number)])
  for step in range(number - 1):
    for j in range(number):               # the sum of piece j travels, and ends on device j
      source, target = (j + 1 + step) % number, (j + 2 + step) % number
      came = send(pieces[source][j], devices[source], devices[target])
      with tf.device(devices[target]):
        pieces[target][j] = combine(kind, came, pieces[target][j])
  return [pieces[j][j] for j in range(number)]


def all_gather(xs: Sequence[Any], devices: Sequence[str], axis: int) -> list[Any]:
  """Returns all tensors joined along an axis on each device."""
  number = len(xs)
  have: list[dict[int, Any]] = [{j: x} for j, x in enumerate(xs)]
  for step in range(number - 1):
    for j in range(number):
      source, target = (j + step) % number, (j + step + 1) % number
      have[target][j] = send(have[source][j], devices[source], devices[target])
  out = []
  for pieces, device in zip(have, devices):
    with tf.device(device):
      out.append(tf.concat([pieces[j] for j in range(number)], axis))
  return out
