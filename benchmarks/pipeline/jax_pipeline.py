"""A stack of Transformer blocks as a pipeline in JAX, with Adam: one program on global arrays.

meshtf on a live mesh is compared with this program, so it is written as MaxText and praxis write
pipelines: weights [stages, layers of a stage, ...] whose first dimension is sharded, `jax.vmap`
over stages, a state [stages, microbatch, ...] that moves along stages in every tick, and a
circular buffer of microbatches that is divided among stages. It does not use meshtf.

This is the fastest of the forms that were tried. With `jax.shard_map` and `ppermute` in place of
`vmap` the step takes as long. With `lax.scan` over the layers of a stage in place of a Python loop
it takes up to a half longer, and a third more memory if stages are recomputed.

    model = JaxPipeline(case)
    step = model.train_step()
    loss = step(batch)                  # x, target: float32 [batch, length, d_model]
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
from benchmarks.pipeline.pipeline_cases import NORM, PipelineCase, shapes, values
from benchmarks.step.cases.feeds import Batch
from benchmarks.step.cases.jax_language_model import adam, attention, rms_norm

Weights = dict[str, Any]


class JaxPipeline:
    """Weights and Adam's moments on the mesh of a case, and the training step.

    Attributes:
      train: the compiled function of the training step, after `train_step`.
    """

    def __init__(self, case: PipelineCase) -> None:
        self.case = case
        jax.config.update("jax_num_cpu_devices", 8)
        sizes = case.sizes
        devices = np.array(jax.devices("cpu")).reshape(list(sizes.values()))
        self.mesh = Mesh(devices, tuple(sizes))
        self.shardings = {
            name: NamedSharding(self.mesh, self._spec(name))
            for name in shapes(case.config)
        }
        self.assign(values(case.config))

    def _spec(self, name: str) -> P:
        """Returns the sharding of a weight [stages, layers of a stage, ...]: heads and d_ff along
        "model", if the mesh has it.
        """
        if name == NORM:
            return P()
        if name.endswith("scale") or "model" not in self.mesh.axis_names:
            return P("stage")
        if name.endswith(("output/kernel", "wo/kernel")):
            return P("stage", None, "model")
        return P("stage", None, None, "model")

    def assign(self, values: Weights) -> None:
        """Assigns all weights, and resets the optimizer."""
        stages = self.case.sizes["stage"]
        stacked = {
            name: x if name == NORM else x.reshape(stages, -1, *x.shape[1:])
            for name, x in values.items()
        }
        zeros = {name: np.zeros_like(x) for name, x in stacked.items()}
        self.weights = jax.device_put(stacked, self.shardings)
        self.m = jax.device_put(zeros, self.shardings)
        self.v = jax.device_put(zeros, self.shardings)
        self.step = 0

    def train_step(self) -> Callable[[Batch], Any]:
        """Returns a function of a batch that updates the weights and returns the loss."""
        by_batch = NamedSharding(self.mesh, P("data"))
        replicated = NamedSharding(self.mesh, P())
        state_shardings = (self.shardings,) * 3  # weights, m and v
        train = jax.jit(
            functools.partial(_train, self.case, self.mesh),
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
        return self.weights, self.m, self.v, step, batch["x"], batch["target"]


def _train(
    case: PipelineCase,
    mesh: Mesh,
    w: Weights,
    m: Weights,
    v: Weights,
    step: Any,
    x: Any,
    target: Any,
) -> Any:
    """Returns the weights and moments after a step of Adam, and the loss.

    Args:
      case: the sizes and the pipeline.
      mesh: the mesh.
      w: the weights, by name.
      m: the first moments.
      v: the second moments.
      step: the number of this step, from 1.
      x: the inputs of the first block, [batch, length, d_model].
      target: the target of the outputs of the last block, [batch, length, d_model].
    """

    def loss_of(w: Weights) -> Any:
        blocks = {name: value for name, value in w.items() if name != NORM}
        y = rms_norm(pipeline(case, mesh, blocks, x), w[NORM])
        return jnp.mean(jnp.square(y - target))

    loss, gradients = jax.value_and_grad(loss_of)(w)
    w, m, v = adam(case.config, w, m, v, gradients, step)
    return w, m, v, loss


def pipeline(case: PipelineCase, mesh: Mesh, weights: Weights, x: Any) -> Any:
    """Returns the outputs of the last stage, [batch, length, d_model].

    Args:
      case: the sizes and the pipeline.
      mesh: the mesh.
      weights: the weights of blocks [stages, layers of a stage, ...], by name.
      x: the inputs of the first stage, [batch, length, d_model].
    """
    stages = case.sizes["stage"]
    slots = -(-case.microbatches // stages)
    assert slots * stages == case.microbatches, "stages share microbatches equally"

    def by_stage(x: Any, *spec: Any) -> Any:
        """Returns x, whose dimensions are sharded along the mesh axes of `spec`."""
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def stage(weights: Weights, x: Any) -> Any:
        """Returns the output of a stage for a microbatch x [batch, length, d_model]."""
        for i in range(case.config.layers // stages):
            x = _block(case, {name: w[i] for name, w in weights.items()}, x)
        return x

    all_stages = jax.vmap(stage, spmd_axis_name="stage")
    if case.recompute:
        all_stages = jax.checkpoint(all_stages, prevent_cse=False)
    order = jnp.arange(stages)[:, None, None, None]

    def tick(carry: Any, index: Any) -> Any:
        """Lets each stage compute a microbatch: see `meshtf.ops.loops.pipelined_scan`."""
        state, buffer = carry
        slot = index % slots
        entry = jax.lax.dynamic_index_in_dim(buffer, slot, keepdims=False)
        received = jnp.where(order == 0, entry, jnp.roll(state, 1, axis=0))
        state = all_stages(weights, by_stage(received, "stage", "data"))
        state = by_stage(state, "stage", "data")
        entry = jnp.where(order == stages - 1, state, jnp.roll(entry, -1, axis=0))
        buffer = jax.lax.dynamic_update_index_in_dim(buffer, entry, slot, axis=0)
        return (state, by_stage(buffer, None, "stage", "data")), None

    # The examples of a microbatch are those of all shards of the batch: nothing moves along data.
    split = x.reshape(-1, stages, slots, *x.shape[1:])
    buffer = by_stage(split.transpose(2, 1, 0, 3, 4), None, "stage", "data")
    state = by_stage(jnp.zeros_like(buffer[0]), "stage", "data")
    (_, buffer), _ = jax.lax.scan(tick, (state, buffer), jnp.arange(case.ticks))
    # The first microbatch was put into slot (stages - 1) % slots.
    buffer = jnp.roll(buffer, -((stages - 1) % slots), axis=0)
    return by_stage(buffer.transpose(2, 1, 0, 3, 4).reshape(x.shape), "data")


def _block(case: PipelineCase, w: Weights, x: Any) -> Any:
    """Returns the residual stream x [batch, length, d_model] after a pre-norm block.

    In einsums: b batch, l length, d d_model, f d_ff.
    """
    h = rms_norm(x, w["attention_norm/scale"])
    x = x + attention(case.config, w, h, drop=lambda x: x)
    h = rms_norm(x, w["feed_forward_norm/scale"])
    h = jax.nn.gelu(jnp.einsum("bld,df->blf", h, w["feed_forward/wi/kernel"]))
    return x + jnp.einsum("blf,fd->bld", h, w["feed_forward/wo/kernel"])
