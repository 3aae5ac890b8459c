"""The GPipe wrapper: whatever its stages, microbatches, schedule and layout, the same training."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

CASES = [  # mesh, layout, stages, microbatches, schedule, chunks, recompute
    ("", "", 1, 1, "1f1b", 1, False),
    ("", "", 2, 4, "1f1b", 1, False),
    ("stage:2", "", 2, 4, "1f1b", 1, False),
    ("stage:2", "", 2, 4, "gpipe", 1, True),
    ("stage:4", "", 4, 8, "1f1b", 1, True),
    ("stage:2;data:2", "batch:data", 2, 2, "gpipe", 1, False),
    ("stage:2;data:2;model:2", "batch:data;d_ff:model", 2, 4, "1f1b", 1, True),
    ("stage:2", "", 2, 4, "1f1b", 2, False),
]


class Layer(mtf.Module):
  """Takes and returns a pair: the state, and what the first layer saw, for the last one."""

  def __init__(self, mesh, k):
    super().__init__(f"layer_{k}")
    with self.scope():
      self.norm = mtf.layers.LayerNorm(mesh, "d:8", name="norm")
      self.ff = mtf.layers.FeedForward(mesh, "d:8", "d_ff:16", name="ff")
      self.dropout = mtf.layers.Dropout(0.25, name="dropout")

  def __call__(self, pair):
    x, first = pair
    return x + self.dropout(self.ff(self.norm(x))), first


def last(pair):
  x, first = pair
  return x + mtf.sin(first)


def pipeline(axes, layout, stages, microbatches, schedule, chunks, recompute, seed, **kwargs):
  mesh = mtf.Mesh(axes, layout, seed=seed, **kwargs)
  layers = [Layer(mesh, k) for k in range(4)] + [last]
  return mesh, mtf.pipeline.GPipe(layers, stages, microbatches, schedule, chunks,
                                  recompute=recompute, cost=[1, 1, 1, 1, 0.1])


def loss_of(y, labels):
  return mtf.reduce_mean(mtf.square(y - labels))


def train(*case, eager=False, **kwargs):
  """Returns losses of two steps, gradients of variables and input, the variables after them."""
  mesh, pipe = pipeline(*case, **kwargs)
  seed = case[-1]
  variables = pipe.trainable_variables
  optimizer = mtf.optimizers.AdamW(variables, 0.01)
  rng = np.random.default_rng(seed)
  x, labels = (rng.normal(size=(16, 8)).astype("float32") for _ in range(2))

  def step(x, labels, number):
    with mtf.seed(seed, number):
      loss = pipe.loss(loss_of, (x, x), labels)
    dx, *grads = mtf.gradients([loss * 3.0], [x, *variables])
    optimizer.apply(grads, variables, number)
    return [loss, dx, *grads]

  program, found = (step if eager else mtf.function(step, mesh=mesh)), []
  for i in range(2):
    args = [mtf.import_tensor(mesh, a, "batch;d") for a in (x, labels)]
    found += [y.numpy() for y in program(*args, mtf.constant(mesh, i, dtype="int32"))]
  return [*found, *(v.numpy() for v in variables)], pipe


def unpipelined(seed):
  """The same without a pipeline."""
  mesh = mtf.Mesh("", seed=seed)
  layers = [Layer(mesh, k) for k in range(4)] + [last]
  with mtf.scope("gpipe"):
    pass
  variables = [v for layer in layers[:-1] for v in layer.trainable_variables]
  optimizer = mtf.optimizers.AdamW(variables, 0.01)
  rng = np.random.default_rng(seed)
  x, labels = (rng.normal(size=(16, 8)).astype("float32") for _ in range(2))

  @mtf.function(mesh=mesh, x="batch;d", labels="batch;d")
  def step(x, labels, number):
    with mtf.seed(seed, number):
      pair = x, x
      for layer in layers:
        pair = layer(pair)
    loss = loss_of(pair, labels)
    dx, *grads = mtf.gradients([loss * 3.0], [x, *variables])
    optimizer.apply(grads, variables, number)
    return [loss, dx, *grads]

  found = []
  for i in range(2):
    found += [y.numpy() for y in step(x, labels, mtf.constant(mesh, i, dtype="int32"))]
  return [*found, *(v.numpy() for v in variables)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_a_pipeline_trains_as_the_model_without_it(case, seed):
  want = unpipelined(seed)
  got, _ = train(*case, seed)
  for i, (y, expected) in enumerate(zip(got, want, strict=True)):
    np.testing.assert_allclose(y, expected, 2e-4, 2e-6, err_msg=str(i))
