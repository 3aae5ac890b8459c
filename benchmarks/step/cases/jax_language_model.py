"""The language model in JAX: one program on global arrays, sharded by NamedSharding.

meshtf on a live mesh is compared with this program, so it is written as is usual in JAX:
functions on a tree of parameters, `jax.jit` with shardings and donated buffers, and
sharding constraints on activations. It does not use meshtf.

    model = JaxLM(case)
    step = model.train_step()
    loss = step(batch)                   # tokens, targets: int32 [batch, length]; one Adam update
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.harness.buffers import buffer_bytes
from benchmarks.step.cases.cases import Case
from benchmarks.step.cases.feeds import Batch
from benchmarks.step.cases.sizes import Config

_MASK_VALUE = -1e9

# A function x -> x with dropout.
Drop = Callable[[Any], Any]


class JaxLM:
    """Parameters and Adam's moments on the mesh of a case, and the training step.

    Attributes:
      train: the compiled function of the training step, after `train_step`.
    """

    def __init__(self, case: Case):
        self.config = case.config
        jax.config.update("jax_num_cpu_devices", 8)
        sizes = [int(n) for n in case.grid.split("x")]
        devices = np.array(jax.devices("cpu")).reshape(sizes)
        self.mesh = Mesh(devices, ("data", "model"))
        self.shardings = {
            name: NamedSharding(self.mesh, _partition_spec(name))
            for name in self.config.shapes()
        }
        rng = np.random.default_rng(2)
        self.assign(
            {
                name: _initial_value(self.config, name, rng)
                for name in self.config.shapes()
            }
        )

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Assigns all weights, and resets the optimizer."""
        zeros = {name: np.zeros_like(value) for name, value in values.items()}
        self.weights = jax.device_put(values, self.shardings)
        self.m = jax.device_put(zeros, self.shardings)
        self.v = jax.device_put(zeros, self.shardings)
        self.step = 0

    def train_step(self) -> Callable[[Batch], Any]:
        """Returns a function of a batch that updates the weights and returns the loss."""
        by_batch = NamedSharding(self.mesh, P("data"))
        replicated = NamedSharding(self.mesh, P())
        state_shardings = (self.shardings,) * 3  # weights, m and v
        train = jax.jit(
            functools.partial(_train, self.config, self.mesh),
            donate_argnums=(0, 1, 2),
            in_shardings=(*state_shardings, replicated, by_batch, by_batch),
            out_shardings=(*state_shardings, replicated),
        )

        self.train = train

        def step(batch: Batch) -> Any:
            self.step += 1
            self.weights, self.m, self.v, loss = train(*self._arguments(batch))
            return loss

        return step

    def device_memory(self, batch: Batch) -> int:
        """Returns the bytes on a device at the peak of a step, by XLA; to be called after
        `train_step`.
        """
        compiled = self.train.lower(*self._arguments(batch)).compile()
        return buffer_bytes(compiled)

    def _arguments(self, batch: Batch) -> tuple[Any, ...]:
        """Returns the arguments of the training step."""
        step = np.float32(self.step)
        tokens = batch["tokens"]
        targets = batch["targets"]
        return self.weights, self.m, self.v, step, tokens, targets


def _partition_spec(name: str) -> P:
    """Returns the sharding of a weight: heads, d_ff and vocab along "model"."""
    if name.endswith("scale"):
        return P()
    if name.endswith(("embedding/table", "output/kernel", "wo/kernel")):
        return P("model")
    return P(None, "model")


def _initial_value(config: Config, name: str, rng: np.random.Generator) -> np.ndarray:
    """Returns the initial value of a weight."""
    shape = config.shapes()[name]
    if name.endswith("scale"):
        return np.ones(shape, np.float32)
    stddev = 0.5 if name.endswith("embedding/table") else config.fan_in(name) ** -0.5
    return rng.standard_normal(shape, np.float32) * np.float32(stddev)


def _train(
    config: Config,
    mesh: Mesh,
    w: Any,
    m: Any,
    v: Any,
    step: Any,
    tokens: Any,
    labels: Any,
) -> Any:
    """Returns the weights and moments after a step of Adam, and the loss.

    Args:
      config: the sizes and settings.
      mesh: the mesh.
      w: the weights, by name.
      m: the first moments.
      v: the second moments.
      step: the number of this step, from 1.
      tokens: int32 [batch, length].
      labels: int32 [batch, length].
    """
    loss_and_gradients = jax.value_and_grad(functools.partial(_loss, config, mesh))
    loss, gradients = loss_and_gradients(w, tokens, labels, _make_drop(config, step))
    w, m, v = adam(config, w, m, v, gradients, step)
    return w, m, v, loss


def adam(config: Config, w: Any, m: Any, v: Any, gradients: Any, step: Any) -> Any:
    """Returns the weights and moments after a step of Adam.

    Args:
      config: the settings.
      w: the weights, a tree of arrays.
      m: the first moments, like w.
      v: the second moments, like w.
      gradients: the gradients of the loss, like w.
      step: the number of this step, from 1.
    """
    # The bias-corrected learning rate.
    rate = (
        config.learning_rate
        * jnp.sqrt(1 - config.beta2**step)
        / (1 - config.beta1**step)
    )

    def first_moment(m: Any, g: Any) -> Any:
        return m + (1 - config.beta1) * (g - m)

    def second_moment(v: Any, g: Any) -> Any:
        return v + (1 - config.beta2) * (g * g - v)

    def update(w: Any, m: Any, v: Any) -> Any:
        return w - rate * m / (jnp.sqrt(v) + config.epsilon)

    m = jax.tree.map(first_moment, m, gradients)
    v = jax.tree.map(second_moment, v, gradients)
    w = jax.tree.map(update, w, m, v)
    return w, m, v


def _loss(
    config: Config,
    mesh: Mesh,
    w: dict[str, Any],
    tokens: Any,
    labels: Any,
    drop: Drop,
) -> Any:
    """Returns the mean cross entropy over all tokens `[batch, length]`.

    In einsums: b batch, l (or m) length, d d_model, h heads, k d_kv, f d_ff, v vocab.
    """

    def constrain(x: Any, *spec: Any) -> Any:
        """Returns x, whose dimensions are sharded along the mesh axes of `spec`."""
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    # [batch, length, d_model], with the batch sharded along "data"
    x = constrain(drop(w["language_model/embedding/table"][tokens]), "data")
    for i in range(config.layers):
        prefix = f"language_model/decoder/block_{i}/"
        block = {
            name.removeprefix(prefix): value
            for name, value in w.items()
            if name.startswith(prefix)
        }
        h = rms_norm(x, block["attention_norm/scale"])
        x = constrain(x + drop(attention(config, block, h, drop)), "data")
        h = rms_norm(x, block["feed_forward_norm/scale"])
        h = jnp.einsum("bld,df->blf", h, block["feed_forward/wi/kernel"])
        h = jax.nn.gelu(constrain(h, "data", None, "model"))
        h = jnp.einsum("blf,fd->bld", h, block["feed_forward/wo/kernel"])
        x = constrain(x + drop(h), "data")
    x = rms_norm(x, w["language_model/decoder/norm/scale"])
    logits = jnp.einsum("bld,dv->blv", x, w["language_model/logits/kernel"])
    logits = constrain(logits, "data", None, "model")
    return jnp.mean(_cross_entropy(config, logits, labels))


def _make_drop(config: Config, step: Any) -> Drop:
    """Returns the dropout function of a step; each of its calls has a key of its own."""
    if not config.dropout:
        return lambda x: x
    keep = 1 - config.dropout
    step_key = jax.random.fold_in(jax.random.key(0), step.astype(jnp.int32))
    keys = iter(jax.random.split(step_key, 1 + 3 * config.layers))

    def drop(x: Any) -> Any:
        is_kept = jax.random.bernoulli(next(keys), keep, x.shape)
        return jnp.where(is_kept, x / keep, 0.0)

    return drop


def rms_norm(x: Any, scale: Any) -> Any:
    """Returns x [..., d] divided by its root mean square and scaled."""
    mean_square = jnp.mean(jnp.square(x), -1, keepdims=True)
    return x * jax.lax.rsqrt(mean_square + 1e-6) * scale


def attention(config: Config, w: dict[str, Any], x: Any, drop: Drop) -> Any:
    """Returns causal self-attention of x `[batch, length, d_model]`."""
    query = jnp.einsum("bld,dhk->blhk", x, w["attention/query/kernel"])
    key = jnp.einsum("bld,dhk->blhk", x, w["attention/key/kernel"])
    value = jnp.einsum("bld,dhk->blhk", x, w["attention/value/kernel"])
    query = _rotate(query) * config.d_kv**-0.5
    scores = jnp.einsum("blhk,bmhk->bhlm", query, _rotate(key))
    is_visible = jnp.tril(jnp.ones([config.length, config.length], bool))
    weights = jax.nn.softmax(jnp.where(is_visible, scores, _MASK_VALUE), axis=-1)
    y = jnp.einsum("bhlm,bmhk->blhk", drop(weights), value)
    return jnp.einsum("blhk,hkd->bld", y, w["attention/output/kernel"])


def _rotate(x: Any) -> Any:
    """Returns x `[batch, length, heads, d_kv]` with rotary positions."""
    num_pairs = x.shape[3] // 2
    frequencies = 10000.0 ** (np.arange(num_pairs) * (-1.0 / num_pairs))
    angles = np.arange(x.shape[1])[:, None, None] * frequencies
    cos = np.cos(angles).astype(np.float32)
    sin = np.sin(angles).astype(np.float32)
    a, b = jnp.split(x, 2, -1)
    rotated_a = a * cos - b * sin
    rotated_b = b * cos + a * sin
    return jnp.concatenate([rotated_a, rotated_b], -1)


def _cross_entropy(config: Config, logits: Any, labels: Any) -> Any:
    """Returns the loss of each label. Its logit is selected by comparing ids, which needs
    no gather across devices.
    """
    logsumexp = jax.nn.logsumexp(logits, axis=-1)
    is_label = labels[..., None] == jnp.arange(config.vocab, dtype=labels.dtype)
    loss = logsumexp - jnp.sum(jnp.where(is_label, logits, 0.0), -1)
    if config.z_loss:
        loss += config.z_loss * jnp.square(logsumexp)
    return loss
