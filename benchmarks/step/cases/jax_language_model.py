"""The language model in JAX: one program over global arrays, cut by NamedSharding.

This is what the exported module is measured against, so it is written as one writes it
in JAX: plain functions on a tree of parameters, `jax.jit` with shardings and donated
buffers, and constraints where the partitioner should not have to guess. It knows
nothing of meshtf.

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

from benchmarks.step.cases.cases import Case
from benchmarks.step.cases.feeds import Batch
from benchmarks.step.cases.sizes import Config

_MASKED = -1e9


class JaxLM:
    """Parameters and Adam's moments on the mesh of a case, and the training step."""

    def __init__(self, case: Case):
        self.config = case.config
        jax.config.update("jax_num_cpu_devices", 8)
        sizes = [int(n) for n in case.grid.split("x")]
        self.mesh = Mesh(np.array(jax.devices("cpu")).reshape(sizes), ("data", "model"))
        self.shardings = {
            name: NamedSharding(self.mesh, _cut(name)) for name in self.config.shapes()
        }
        rng = np.random.default_rng(2)
        self.assign(
            {name: _initial(self.config, name, rng) for name in self.config.shapes()}
        )

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Takes the values of all variables, and starts the optimizer anew."""
        zeros = {name: np.zeros_like(value) for name, value in values.items()}
        self.weights, self.m, self.v = (
            jax.device_put(tree, self.shardings) for tree in (values, zeros, zeros)
        )
        self.step = 0

    def train_step(self) -> Callable[[Batch], Any]:
        """Returns a function of a batch that updates the variables and returns the
        loss.
        """
        rows, whole = (NamedSharding(self.mesh, p) for p in (P("data"), P()))
        state = (self.shardings,) * 3
        train = jax.jit(
            functools.partial(_train, self.config, self.mesh),
            donate_argnums=(0, 1, 2),
            in_shardings=(*state, whole, rows, rows),
            out_shardings=(*state, whole),
        )

        def step(batch: Batch) -> Any:
            self.step += 1
            self.weights, self.m, self.v, loss = train(
                self.weights,
                self.m,
                self.v,
                np.float32(self.step),
                batch["tokens"],
                batch["targets"],
            )
            return loss

        return step


def _cut(name: str) -> P:
    """Returns how a variable is cut: heads, d_ff and vocab along "model"."""
    if name.endswith("scale"):
        return P()
    if name.endswith(("embedding/table", "output/kernel", "wo/kernel")):
        return P("model")
    return P(None, "model")


def _initial(c: Config, name: str, rng: np.random.Generator) -> np.ndarray:
    shape = c.shapes()[name]
    if name.endswith("scale"):
        return np.ones(shape, np.float32)
    stddev = 0.5 if name.endswith("embedding/table") else c.fan_in(name) ** -0.5
    return rng.standard_normal(shape, np.float32) * np.float32(stddev)


def _train(
    c: Config, mesh: Mesh, w: Any, m: Any, v: Any, step: Any, tokens: Any, labels: Any
) -> Any:
    """Returns new weights and moments, and the loss."""
    loss, gradients = jax.value_and_grad(functools.partial(_loss, c, mesh))(
        w, tokens, labels
    )
    rate = c.learning_rate * jnp.sqrt(1 - c.beta2**step) / (1 - c.beta1**step)
    m = jax.tree.map(lambda m, g: m + (1 - c.beta1) * (g - m), m, gradients)
    v = jax.tree.map(lambda v, g: v + (1 - c.beta2) * (g * g - v), v, gradients)
    w = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + c.epsilon), w, m, v)
    return w, m, v, loss


def _loss(c: Config, mesh: Mesh, w: dict[str, Any], tokens: Any, labels: Any) -> Any:
    """Returns the mean cross entropy over all tokens of ids `[batch, length]`."""

    def lie(x: Any, *spec: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    x = lie(w["language_model/embedding/table"][tokens], "data")
    for i in range(c.layers):
        path = f"language_model/decoder/block_{i}/"
        own = {
            name[len(path) :]: value
            for name, value in w.items()
            if name.startswith(path)
        }
        h = _rms_norm(x, own["attention_norm/scale"])
        x = lie(x + _attention(c, own, h), "data")
        h = jnp.einsum(
            "bld,df->blf",
            _rms_norm(x, own["feed_forward_norm/scale"]),
            own["feed_forward/wi/kernel"],
        )
        h = jax.nn.gelu(lie(h, "data", None, "model"))
        x = lie(x + jnp.einsum("blf,fd->bld", h, own["feed_forward/wo/kernel"]), "data")
    x = _rms_norm(x, w["language_model/decoder/norm/scale"])
    logits = jnp.einsum("bld,dv->blv", x, w["language_model/logits/kernel"])
    return jnp.mean(_cross_entropy(c, lie(logits, "data", None, "model"), labels))


def _rms_norm(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * scale


def _attention(c: Config, w: dict[str, Any], x: Any) -> Any:
    """Returns causal self-attention of x `[batch, length, d_model]`."""
    query, key, value = (
        jnp.einsum("bld,dhk->blhk", x, w[f"attention/{name}/kernel"])
        for name in ("query", "key", "value")
    )
    scores = jnp.einsum("blhk,bmhk->bhlm", _rotate(query) * c.key**-0.5, _rotate(key))
    seen = jnp.tril(jnp.ones([c.length, c.length], bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, _MASKED), axis=-1)
    y = jnp.einsum("bhlm,bmhk->blhk", weights, value)
    return jnp.einsum("blhk,hkd->bld", y, w["attention/output/kernel"])


def _rotate(x: Any) -> Any:
    """Returns x `[batch, length, heads, key]` with rotary positions."""
    half = x.shape[3] // 2
    slower = 10000.0 ** (np.arange(half) * (-1.0 / half))
    angles = np.arange(x.shape[1])[:, None, None] * slower
    cos = np.cos(angles).astype(np.float32)
    sin = np.sin(angles).astype(np.float32)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def _cross_entropy(c: Config, logits: Any, labels: Any) -> Any:
    """Returns the loss of each label; picked by comparing, which needs no gather across
    devices.
    """
    lse = jax.nn.logsumexp(logits, axis=-1)
    hot = labels[..., None] == jnp.arange(c.vocab, dtype=labels.dtype)
    loss = lse - jnp.sum(jnp.where(hot, logits, 0.0), -1)
    return loss + c.z_loss * jnp.square(lse) if c.z_loss else loss
