"""The models of the cases in plain JAX: GPT-2, Llama, BERT, and a mixture of experts.

    state = {"weights": weights, "m": zeros, "v": zeros}             # float32, by name
    state, loss = train_step(config, optimizer, state, batch, step)  # pure: to be jitted

They are written as is usual in JAX: a scan over layers, activations of bfloat16 and weights of
float32, cuDNN's attention on GPUs, AdamW written out. Nothing of meshtf is used. Weights have
the names of meshtf's variables, without the modules that contain others; see `short_name`.

In einsums: b batch, l length, d d_model, h heads, k d_kv, f d_ff, v vocab, e experts, c slots.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

Weights = dict[str, Any]  # arrays by name
# Modules that contain others, which are not in short names.
_SCOPES = {"language_model", "decoder", "bert", "encoder", "pretraining", "block"}
_MASKED = -1e9  # the logit of what cannot be chosen
_GATED = "swiglu"
_MIN_SLOTS = 4  # an expert has so many slots for an example at least
_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": jax.nn.gelu,
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    _GATED: jax.nn.silu,
}


def short_name(name: str) -> str:
    """Returns the name of a weight here, for the name of meshtf's variable: such as
    "blocks/attention/query/kernel" for
    "language_model/decoder/blocks/block/attention/query/kernel".
    """
    return "/".join(part for part in name.split("/") if part not in _SCOPES)


def shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each weight by its short name. Weights of all blocks are stacked.

    Args:
      config: the fields of `transformer.models.architecture.Architecture`, and `kind`:
        "LanguageModel" or "Bert"; `experts`, `capacity` and weights of losses.
    """
    d = config.d_model
    vocab = _padded_vocab(config)
    weights = {"embedding/table": (vocab, d)}
    for name, shape in _block_shapes(config).items():
        weights[f"blocks/{name}"] = (config.blocks, *shape)
    if config.positions == "learned":
        weights["position_embedding/table"] = (config.max_length, d)
    if config.token_types:
        weights["type_embedding/table"] = (config.token_types, d)
    if not config.tied:
        weights["logits/kernel"] = (d, vocab)
    norm = "norm" if config.norm_place == "before" else "embedding_norm"
    weights |= _norm_shapes(config, norm)
    if config.kind == "Bert":
        weights |= _norm_shapes(config, "transform_norm")
        weights["logits_bias"] = (vocab,)
        for name, size in (("pooler", d), ("transform", d), ("next_sentence", 2)):
            weights[f"{name}/kernel"] = (d, size)
            weights[f"{name}/bias"] = (size,)
    return weights


def _block_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each weight of one block, by name."""
    d, f, k = config.d_model, config.d_ff, config.d_kv
    heads: tuple[int, ...] = (config.heads,)
    if config.kv_heads not in (None, config.heads):
        heads = (config.kv_heads, config.heads // config.kv_heads)
    kv_heads = heads[:1]
    kernels = {
        "attention/query": ((d,), (*heads, k)),
        "attention/key": ((d,), (*kv_heads, k)),
        "attention/value": ((d,), (*kv_heads, k)),
        "attention/output": ((*heads, k), (d,)),
    }
    weights: dict[str, tuple[int, ...]] = {}
    if config.moe_every:
        weights["moe/router/kernel"] = (d, config.experts)
        weights["moe/experts/wi/kernel"] = (config.experts, d, f)
        weights["moe/experts/wo/kernel"] = (config.experts, f, d)
    else:
        inputs = ["wi"]
        if config.activation == _GATED:
            inputs = ["wi_0", "wi_1"]
        kernels |= {f"feed_forward/{name}": ((d,), (f,)) for name in inputs}
        kernels["feed_forward/wo"] = ((f,), (d,))
    for name, (reduced, new) in kernels.items():
        weights[f"{name}/kernel"] = (*reduced, *new)
        if config.use_bias:
            weights[f"{name}/bias"] = new
    weights |= _norm_shapes(config, "attention_norm")
    weights |= _norm_shapes(config, "feed_forward_norm")
    return weights


def _norm_shapes(config: Any, name: str) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each weight of a norm, by name."""
    weights = {f"{name}/scale": (config.d_model,)}
    if config.norm == "layer" and config.use_bias:
        weights[f"{name}/bias"] = (config.d_model,)
    return weights


def _padded_vocab(config: Any) -> int:
    """Returns the size of the vocabulary, rounded up to a multiple of `vocab_multiple`."""
    return int(config.vocab + -config.vocab % config.vocab_multiple)


def train_step(
    config: Any,
    optimizer: Any,
    state: dict[str, Weights],
    batch: Mapping[str, Any],
    step: Any,
) -> tuple[dict[str, Weights], Any]:
    """Returns the state after an update by AdamW, and the loss before it, a scalar.

    Args:
      config: the sizes and kinds of layers, see `shapes`.
      optimizer: `learning_rate`, `beta_1`, `beta_2`, `epsilon`, `weight_decay`, `clip_norm`,
        and `decayed`: the short names of weights that decay.
      state: "weights", and their moments "m" and "v".
      batch: the tensors of a batch, int32 [batch, length] or [batch, masked].
      step: the number of updates before this one, int32 [].
    """
    loss_of = functools.partial(_loss, config)
    loss, grads = jax.value_and_grad(loss_of)(state["weights"], batch)
    squares = [jnp.sum(jnp.square(grad)) for grad in grads.values()]
    norm = jnp.sqrt(sum(squares))
    factor = optimizer.clip_norm / jnp.maximum(norm, optimizer.clip_norm)
    beta_1, beta_2 = optimizer.beta_1, optimizer.beta_2
    t = step.astype(jnp.float32) + 1.0
    rate = optimizer.learning_rate
    size = rate * jnp.sqrt(1.0 - beta_2**t) / (1.0 - beta_1**t)
    updated: dict[str, Weights] = {"weights": {}, "m": {}, "v": {}}
    for name, weight in state["weights"].items():
        grad = grads[name] * factor
        m = beta_1 * state["m"][name] + (1.0 - beta_1) * grad
        v = beta_2 * state["v"][name] + (1.0 - beta_2) * jnp.square(grad)
        if name in optimizer.decayed:
            weight = weight - rate * optimizer.weight_decay * weight
        updated["weights"][name] = weight - size * m / (jnp.sqrt(v) + optimizer.epsilon)
        updated["m"][name] = m
        updated["v"][name] = v
    return updated, loss


def _loss(config: Any, weights: Weights, batch: Mapping[str, Any]) -> Any:
    """Returns the loss of a batch, a scalar of float32."""
    tokens = batch["tokens"]
    x = weights["embedding/table"][tokens]
    if config.positions == "learned":
        x = x + weights["position_embedding/table"][: tokens.shape[1]]
    if config.token_types:
        x = x + weights["type_embedding/table"][batch["token_types"]]
    x = x.astype(config.dtype)
    if config.norm_place == "after":
        x = _norm(config, weights, "embedding_norm", x)
    num_tokens = None
    if config.kind == "Bert":
        # Id 0 is padding, which comes last.
        num_tokens = jnp.sum(tokens != 0, axis=1, dtype=jnp.int32)
    x, auxiliary = _run_blocks(config, weights, x, num_tokens)
    if config.kind == "Bert":
        return _bert_loss(config, weights, batch, x) + auxiliary
    x = _norm(config, weights, "norm", x)
    logits = _logits(config, weights, x)
    return _mean_loss(logits, batch["targets"], batch["weights"]) + auxiliary


def _bert_loss(config: Any, weights: Weights, batch: Mapping[str, Any], x: Any) -> Any:
    """Returns the loss of masked tokens and next sentences for x [batch, length, d_model]."""
    masked = jnp.take_along_axis(x, batch["masked_positions"][..., None], axis=1)
    h = _ACTIVATIONS[config.activation](_dense(weights, "transform", masked))
    h = _norm(config, weights, "transform_norm", h)
    logits = _logits(config, weights, h)
    loss = _mean_loss(logits, batch["masked_ids"], batch["masked_weights"])
    pooled = jnp.tanh(_dense(weights, "pooler", x[:, 0]))
    pair_logits = _dense(weights, "next_sentence", pooled)
    labels = batch["next_sentence_labels"]
    return loss + _mean_loss(pair_logits, labels, jnp.ones(labels.shape))


def _run_blocks(config: Any, weights: Weights, x: Any, num_tokens: Any) -> Any:
    """Returns (x after all blocks [batch, length, d_model], the router's loss [])."""
    prefix = "blocks/"
    stacked = {
        name.removeprefix(prefix): weight
        for name, weight in weights.items()
        if name.startswith(prefix)
    }
    block = functools.partial(_block, config, num_tokens)
    if config.recompute == "attention":
        policy = jax.checkpoint_policies.save_only_these_names("feed_forward")
        block = jax.checkpoint(block, policy=policy, prevent_cse=False)
    elif config.recompute:
        block = jax.checkpoint(block, prevent_cse=False)
    x, losses = jax.lax.scan(block, x, stacked)
    return x, jnp.sum(losses)


def _block(config: Any, num_tokens: Any, x: Any, weights: Weights) -> tuple[Any, Any]:
    """Returns (x after a block, the router's loss) for x [batch, length, d_model].

    Args:
      config: the sizes and kinds of layers.
      num_tokens: the number of tokens that are no padding, int32 [batch]; None: all.
      x: the residual stream.
      weights: the weights of the block.
    """
    loss = jnp.zeros(())
    is_before = config.norm_place == "before"
    h = _norm(config, weights, "attention_norm", x) if is_before else x
    x = x + _attention(config, weights, h, num_tokens)
    if not is_before:
        x = _norm(config, weights, "attention_norm", x)
    h = _norm(config, weights, "feed_forward_norm", x) if is_before else x
    if config.moe_every:
        h, loss = _experts(config, weights, h)
    else:
        h = _feed_forward(config, weights, h)
    x = x + h
    if not is_before:
        x = _norm(config, weights, "feed_forward_norm", x)
    return x, loss


def _attention(config: Any, weights: Weights, x: Any, num_tokens: Any) -> Any:
    """Returns self-attention of x [batch, length, d_model]."""

    def heads(name: str) -> Any:
        """Returns [batch, length, heads, d_kv]."""
        kernel = weights[f"attention/{name}/kernel"].astype(x.dtype)
        kernel = kernel.reshape(config.d_model, -1, config.d_kv)
        y = jnp.einsum("bld,dhk->blhk", x, kernel)
        bias = weights.get(f"attention/{name}/bias")
        return y if bias is None else y + bias.astype(x.dtype)

    query, key, value = heads("query"), heads("key"), heads("value")
    if config.positions == "rotary":
        query, key = _rotate(config, query), _rotate(config, key)
    # cuDNN's kernels take 16-bit tensors.
    is_cudnn = jax.default_backend() == "gpu" and x.dtype == jnp.bfloat16
    y = jax.nn.dot_product_attention(
        query,
        key,
        value,
        is_causal=config.kind == "LanguageModel",
        key_value_seq_lengths=num_tokens,
        implementation="cudnn" if is_cudnn else None,
    )
    kernel = weights["attention/output/kernel"].astype(x.dtype)
    kernel = kernel.reshape(config.heads, config.d_kv, config.d_model)
    y = jnp.einsum("blhk,hkd->bld", y, kernel)
    bias = weights.get("attention/output/bias")
    return y if bias is None else y + bias.astype(x.dtype)


def _rotate(config: Any, x: Any) -> Any:
    """Returns x [batch, length, heads, d_kv] with rotary positions."""
    exponents = jnp.arange(config.d_kv // 2) * (-2.0 / config.d_kv)
    angles = jnp.arange(x.shape[1])[:, None, None] * config.rope_theta**exponents
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    cos = jnp.concatenate([cos, cos], -1).astype(x.dtype)
    sin = jnp.concatenate([-sin, sin], -1).astype(x.dtype)
    return x * cos + jnp.roll(x, config.d_kv // 2, axis=-1) * sin


def _feed_forward(config: Any, weights: Weights, x: Any) -> Any:
    """Returns the feed-forward layer of x [batch, length, d_model]."""

    def product(name: str, x: Any) -> Any:
        return checkpoint_name(
            _dense(weights, f"feed_forward/{name}", x), "feed_forward"
        )

    activation = _ACTIVATIONS[config.activation]
    if config.activation == _GATED:
        h = activation(product("wi_0", x)) * product("wi_1", x)
    else:
        h = activation(product("wi", x))
    return product("wo", h)


def _experts(config: Any, weights: Weights, x: Any) -> tuple[Any, Any]:
    """Returns the Switch Transformer's layer of x [batch, length, d_model], and its loss [].

    Each token goes to its likeliest expert, unless `capacity` earlier tokens of its example do.
    """
    length = x.shape[1]
    num_experts = config.experts
    slots = max(int(length * config.capacity / num_experts), _MIN_SLOTS)
    slots = min(slots, length)
    logits = x.astype(jnp.float32) @ weights["moe/router/kernel"]
    probabilities = jax.nn.softmax(logits)
    expert = jnp.argmax(logits, axis=-1)  # [batch, length]
    is_chosen = jax.nn.one_hot(expert, num_experts, dtype=jnp.int32)
    position = jnp.sum((jnp.cumsum(is_chosen, axis=1) - 1) * is_chosen, axis=-1)
    has_slot = position < slots
    gate = jnp.max(probabilities, axis=-1) * has_slot
    # The slot of each token, and the token of each slot; where there is none, one further.
    slot = jnp.where(has_slot, expert * slots + position, num_experts * slots)
    empty = jnp.full((num_experts * slots + 1,), length)
    token = jax.vmap(lambda s: empty.at[s].set(jnp.arange(length)))(slot)[:, :-1]
    inputs = jnp.take_along_axis(
        x, token[..., None], axis=1, mode="fill", fill_value=0
    ).reshape(-1, num_experts, slots, config.d_model)
    wi = weights["moe/experts/wi/kernel"].astype(x.dtype)
    wo = weights["moe/experts/wo/kernel"].astype(x.dtype)
    h = _ACTIVATIONS[config.activation](jnp.einsum("becd,edf->becf", inputs, wi))
    outputs = jnp.einsum("becf,efd->becd", h, wo)
    outputs = outputs.reshape(-1, num_experts * slots, config.d_model)
    y = jnp.take_along_axis(outputs, slot[..., None], axis=1, mode="fill", fill_value=0)
    share = jnp.mean(is_chosen.astype(jnp.float32), axis=1)
    mean_probability = jnp.mean(probabilities, axis=1)
    balance = num_experts * jnp.mean(jnp.sum(share * mean_probability, axis=-1))
    z = jnp.mean(jnp.square(jax.nn.logsumexp(logits, axis=-1)))
    loss = config.balance_weight * balance + config.z_weight * z
    return y * gate[..., None].astype(x.dtype), loss


def _norm(config: Any, weights: Weights, name: str, x: Any) -> Any:
    """Returns the norm of x [..., d_model], computed in float32."""
    y = x.astype(jnp.float32)
    if config.norm == "layer":
        y = y - jnp.mean(y, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(y), axis=-1, keepdims=True)
    y = (y * jax.lax.rsqrt(variance + config.epsilon)).astype(x.dtype)
    y = y * weights[f"{name}/scale"].astype(x.dtype)
    bias = weights.get(f"{name}/bias")
    return y if bias is None else y + bias.astype(x.dtype)


def _dense(weights: Weights, name: str, x: Any) -> Any:
    """Returns the dense layer of x [..., reduced]: [..., new]."""
    y = x @ weights[f"{name}/kernel"].astype(x.dtype)
    bias = weights.get(f"{name}/bias")
    return y if bias is None else y + bias.astype(x.dtype)


def _logits(config: Any, weights: Weights, x: Any) -> Any:
    """Returns the logits [..., vocab] of x [..., d_model]."""
    if config.tied:
        logits = x @ weights["embedding/table"].astype(x.dtype).T
    else:
        logits = x @ weights["logits/kernel"].astype(x.dtype)
    if "logits_bias" in weights:
        logits = logits + weights["logits_bias"].astype(x.dtype)
    is_token = jnp.arange(logits.shape[-1]) < config.vocab
    return jnp.where(is_token, logits, jnp.asarray(_MASKED, logits.dtype))


def _mean_loss(logits: Any, labels: Any, label_weights: Any) -> Any:
    """Returns the weighted mean cross entropy of labels [...] and logits [..., classes]."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - chosen
    return jnp.sum(losses * label_weights) / jnp.sum(label_weights)
