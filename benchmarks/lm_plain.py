"""The decoder-only language model by hand, in plain TensorFlow, on one device.

This is what `meshtf` is measured against, so it is as good as we can make it: every formulation
here was compared with its alternatives, forward and backward, in graph mode and under XLA, and the
fastest was kept (see the comments). It knows nothing of meshtf.

    model = PlainLM(Config(layers=2))
    step = model.train_step(jit=False)
    loss = step(tokens, labels)          # tokens, labels: int32 [batch, length]; one Adam update
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import kernels
from benchmarks.masks import MASKS, masked

Drop = Callable[[tf.Tensor, str], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of the model and of its batch, and how it is trained."""

  vocab: int = 4096
  batch: int = 16
  length: int = 128
  d_model: int = 256
  d_ff: int = 1024
  heads: int = 8
  layers: int = 4
  dropout: float = 0.0
  z_loss: float = 0.0
  learning_rate: float = 1e-3
  beta1: float = 0.9
  beta2: float = 0.98
  epsilon: float = 1e-8

  @property
  def key(self) -> int:
    return self.d_model // self.heads

  def shapes(self) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every variable, by its path in transformer.models.language_model."""
    d, h, k, f = self.d_model, self.heads, self.key, self.d_ff
    shapes: dict[str, tuple[int, ...]] = {"embedding/table": (self.vocab, d)}
    for i in range(self.layers):
      shapes |= {
          f"decoder/block_{i}/attention_norm/scale": (d,),
          f"decoder/block_{i}/attention/query/kernel": (d, h, k),
          f"decoder/block_{i}/attention/key/kernel": (d, h, k),
          f"decoder/block_{i}/attention/value/kernel": (d, h, k),
          f"decoder/block_{i}/attention/output/kernel": (h, k, d),
          f"decoder/block_{i}/feed_forward_norm/scale": (d,),
          f"decoder/block_{i}/feed_forward/wi/kernel": (d, f),
          f"decoder/block_{i}/feed_forward/wo/kernel": (f, d)}
    return shapes | {"decoder/norm/scale": (d,), "logits/kernel": (d, self.vocab)}

  def fan_in(self, name: str) -> int:
    """Returns how many numbers are summed into one output of a matrix."""
    shape = self.shapes()[name]
    return int(np.prod(shape[:-1])) if "output" in name else shape[0]


def initial_value(config: Config, name: str, shape: tuple[int, ...]) -> tf.Tensor:
  """Returns ones or normal numbers, as the kind of the variable wants."""
  if name.endswith("scale"):
    return tf.ones(shape)
  stddev = 0.5 if name.startswith("embedding") else config.fan_in(name) ** -0.5
  return tf.random.normal(shape, stddev=stddev)


class PlainLM(tf.Module):
  """Variables, slots and the training step."""

  def __init__(self, config: Config):
    super().__init__()
    self.config = config
    self.step = tf.Variable(0, dtype=tf.int64, trainable=False)
    self.weights = {name: tf.Variable(initial_value(config, name, shape), name=name)
                    for name, shape in config.shapes().items()}
    self.slots = {name: tuple(tf.Variable(tf.zeros(w.shape), trainable=False) for _ in "mv")
                  for name, w in self.weights.items()}

  def assign(self, values: dict[str, np.ndarray]) -> None:
    """Takes the values of all variables, and starts the optimizer anew."""
    self.step.assign(0)
    for name, weight in self.weights.items():
      weight.assign(values[name])
      for slot in self.slots[name]:
        slot.assign(tf.zeros(slot.shape))

  def loss(self, w: dict[str, tf.Tensor], tokens: tf.Tensor, labels: tf.Tensor,
           drop: Drop, jit: bool) -> tf.Tensor:
    """Returns the mean cross entropy over all tokens of ids `[batch, length]`."""
    c = self.config
    # Activations stay [batch * length, d_model]: a product of a 3-D by a 2-D tensor is lowered to a
    # broadcast batch product, which takes twice the time.
    x = tf.gather(w["embedding/table"], tf.reshape(tokens, [-1]))
    x = drop(x, "dropout")
    for i in range(c.layers):
      path = f"decoder/block_{i}/"
      own = {name[len(path):]: v for name, v in w.items() if name.startswith(path)}
      h = kernels.rms_norm(x, own["attention_norm/scale"])
      h = self.attention(own, h, lambda y, p, path=path: drop(y, f"{path}attention/{p}"))
      x += drop(h, path + "attention_dropout")
      h = kernels.rms_norm(x, own["feed_forward_norm/scale"])
      h = kernels.gelu(tf.matmul(h, own["feed_forward/wi/kernel"]))
      x += drop(tf.matmul(h, own["feed_forward/wo/kernel"]), path + "feed_forward_dropout")
    logits = tf.matmul(kernels.rms_norm(x, w["decoder/norm/scale"]), w["logits/kernel"])
    return tf.reduce_mean(kernels.cross_entropy(logits, labels, c.z_loss, jit))

  def attention(self, w: dict[str, tf.Tensor], x: tf.Tensor, drop: Drop) -> tf.Tensor:
    """Returns causal self-attention of x `[batch * length, d_model]`."""
    c = self.config

    def heads(name: str) -> tf.Tensor:
      kernel = tf.reshape(w[f"attention/{name}/kernel"], [c.d_model, -1])
      return tf.reshape(tf.matmul(x, kernel), [c.batch, c.length, c.heads, c.key])

    # Batch products of transposed tensors: einsum takes 1.15 times as long in graph mode.
    query = tf.transpose(kernels.rotate(heads("query"), c.key ** -0.5), [0, 2, 1, 3])
    key = tf.transpose(kernels.rotate(heads("key")), [0, 2, 3, 1])
    # An added mask needs no pass in the gradient, where `tf.where` needs one.
    seen = tf.nn.softmax(tf.matmul(query, key) + kernels.causal_mask(c.length))
    y = tf.matmul(drop(seen, "dropout"), tf.transpose(heads("value"), [0, 2, 1, 3]))
    y = tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [-1, c.d_model])
    return tf.matmul(y, tf.reshape(w["attention/output/kernel"], [c.d_model, -1]))

  def dropper(self, seed: tf.Tensor, masks: str) -> Drop:
    """Returns a function that drops: of a tensor and the path of meshtf's op of that place."""
    rate = self.config.dropout

    def drop(x: tf.Tensor, path: str) -> tf.Tensor:
      # meshtf has a mask [batch, length, d_model] where this has rows
      shape = x.shape if x.shape.rank != 2 else [self.config.batch, self.config.length, x.shape[1]]
      mask = MASKS[masks](shape, rate, seed, f"language_model/{path}/dropout")
      return masked(x, tf.reshape(mask, x.shape))

    return drop if rate else lambda x, path: x

  def update(self, gradients: dict[str, tf.Tensor]) -> None:
    """Takes one step of Adam; one kernel for each variable is four times as fast as expressions."""
    c = self.config
    t = tf.cast(self.step.assign_add(1), tf.float32)
    powers = tf.pow(c.beta1, t), tf.pow(c.beta2, t)
    for name, gradient in gradients.items():
      m, v = self.slots[name]
      tf.raw_ops.ResourceApplyAdam(
          var=self.weights[name].handle, m=m.handle, v=v.handle, beta1_power=powers[0],
          beta2_power=powers[1], lr=c.learning_rate, beta1=c.beta1, beta2=c.beta2,
          epsilon=c.epsilon, grad=gradient)

  def train_step(self, jit: bool = False, masks: str = "philox"
                 ) -> Callable[[Any, Any], tf.Tensor]:
    """Returns a function of tokens and labels that updates the variables and returns the loss.

    Args:
      jit: whether XLA compiles it.
      masks: "philox", the fastest, or "hash": those that meshtf draws, for equal losses.
    """

    @tf.function(autograph=False, jit_compile=jit)
    def train(tokens: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
      weights = {name: w.read_value() for name, w in self.weights.items()}
      drop = self.dropper(self.step.read_value(), masks)
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(list(weights.values()))
        loss = self.loss(weights, tokens, labels, drop, jit)
      gradients = tape.gradient(loss, weights)
      # The embedding's gradient comes as rows; made dense by one segment sum.
      self.update({name: tf.convert_to_tensor(g) for name, g in gradients.items()})
      return loss

    return train
