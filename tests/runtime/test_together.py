"""Reads and updates of variables: one call for each device that does alike, results as before."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers

DEVICES = 4


def program(mesh):
  """Returns a training step of three variables, which two ops write in turn, and these."""
  ws = [mtf.Variable(mesh, shape, initializers.normal(0.5), f"w{k}")
        for k, shape in enumerate(("d:8;e:4", "e:4;d:8", "d:8"))]
  adam = optimizers.AdamW(ws, 0.25, weight_decay=0.5)

  @mtf.function(mesh=mesh, x="batch;d", step="")
  def train(x, step):
    h = mtf.einsum([x, ws[0]], "batch;e")
    loss = mtf.reduce_mean(mtf.square(mtf.einsum([h, ws[1]], "batch;d") + ws[2]))
    adam.apply(mtf.gradients([loss], ws), ws, step)
    return loss
  return train, ws


def ran(mesh):
  """Returns the losses of three steps, the variables after them, and the ops of the graph."""
  train, ws = program(mesh)
  x = np.random.default_rng(0).standard_normal((8, 8), "float32")
  losses = [float(train(x, np.int32(step)).numpy()) for step in range(3)]
  (compiled, _), = train._compiled.values()
  ops = Counter(op.type for op in compiled.function.graph.get_operations())
  return losses, [w.numpy() for w in ws], ops


@pytest.mark.parametrize("layout", ["batch:data", "e:data"])
def test_devices_that_do_the_same_make_one_call_each(layout):
  devices = [f"CPU:{k}" for k in range(DEVICES)]
  one = ran(mtf.Mesh(""))
  many = ran(mtf.Mesh(f"data:{DEVICES}", layout, devices=devices))
  assert many[2]["StatefulPartitionedCall"] == 2 * DEVICES         # one reads, one updates
  assert not [op for op in many[2] if op.startswith(("ReadVariable", "ResourceApply", "Assign"))]
  assert one[2]["ReadVariableOp"] and not one[2]["StatefulPartitionedCall"]
  for a, b in zip((*one[0], *one[1]), (*many[0], *many[1]), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
