"""Legal calls of `meshtf.layers`."""

from __future__ import annotations

from types import SimpleNamespace

import tensorflow as tf

import meshtf as mtf
from tests.totality.calls import Call, Double, call, named, tensor

_L = mtf.layers
_I = mtf.layers.initializers


def first_values(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of initializers, each of which then makes a first value."""
    shape = mtf.Shape("d:6;e:4")

    def draw(initializer):
        return initializer(t.mesh, shape, "w")

    one = {name: call(then=draw) for name in ("normal", "truncated", "uniform")}
    kernel = {
        name: call("d", then=draw)
        for name in ("glorot", "he", "lecun", "variance_scaling")
    }
    calls = (
        one
        | kernel
        | {
            "zeros": call(t.mesh, shape, "w"),
            "ones": call(t.mesh, shape, "w"),
            "constant": call(2.0, then=draw),
            "shared": call(_I.zeros, then=draw),
        }
    )
    return {f"layers.initializers.{name}": c for name, c in calls.items()}


def constructors(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of constructors."""
    d = "d:6"
    window = "h:3"
    heads = (t.mesh, d, "heads:2", "key:4")
    return {
        "AnnealedDropout": call(0.5, 0, 9),
        "BatchNorm": call(t.mesh, d),
        "Dropout": call(0.5),
        "BlockwiseAttention": call(*heads, "length:4"),
        "ContextParallelAttention": call(*heads, "length:4"),
        "ZigzagOrder": call("length:4", 2),
        "MultiHeadAttention": call(*heads),
        "LocalAttention": call(*heads, "length:4"),
        "Conv": call(t.mesh, window, "c:2", "o:2"),
        "ConvTranspose": call(t.mesh, window, "c:2", "o:2"),
        "SeparableConv": call(t.mesh, window, "c:2", "o:2"),
        "Dense": call(t.mesh, d, "e:4"),
        "DenseProduct": call(t.mesh, d, "e:4"),
        "Embedding": call(t.mesh, "vocab:8", d),
        "EmbeddingTables": call(t.mesh, {"vocab": "vocab:8;d:6"}),
        "FeedForward": call(t.mesh, d, "e:4"),
        "GroupNorm": call(t.mesh, d, 2),
        "LayerNorm": call(t.mesh, d),
        "RMSNorm": call(t.mesh, d),
        "RelativeBias": call(t.mesh, "heads:2"),
        "Repeat": call(Double, "layers:2"),
        "Reversible": call([Double()]),
    }


def called(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of layers."""
    image = tensor(t.mesh, "batch:4;h:8;c:2")
    positions = mtf.range(t.mesh, "length:4")
    context = mtf.rename(positions, "length", "kv_length")
    bias = _L.RelativeBias(t.mesh, "heads:2")
    dense = _L.Embedding(t.mesh, "vocab:8", "d:6")
    tables = _L.EmbeddingTables(t.mesh, {"vocab": "vocab:8;d:6"})
    repeat = _L.Repeat(Double, "layers:2")
    window = (t.mesh, "h:3", "c:2", "o:2")
    return {
        "AnnealedDropout.__call__": call(
            t.x, t.step, True, on=_L.AnnealedDropout(0.5, 0, 9)
        ),
        "BatchNorm.__call__": call(t.x, on=_L.BatchNorm(t.mesh, "d:6")),
        "Dropout.__call__": call(t.x, True, on=_L.Dropout(0.5)),
        "Conv.__call__": call(image, on=_L.Conv(*window)),
        "ConvTranspose.__call__": call(image, on=_L.ConvTranspose(*window)),
        "SeparableConv.__call__": call(image, on=_L.SeparableConv(*window)),
        "Dense.__call__": call(t.x, on=_L.Dense(t.mesh, "d:6", "e:4")),
        "DenseProduct.__call__": call(t.x, on=_L.DenseProduct(t.mesh, "d:6", "e:4")),
        "Embedding.__call__": call(t.ids, on=dense),
        "Embedding.attend": call(t.x, on=dense),
        "EmbeddingTables.__call__": call({"vocab": t.ids}, on=tables),
        "FeedForward.__call__": call(t.x, on=_L.FeedForward(t.mesh, "d:6", "e:4")),
        "GroupNorm.__call__": call(t.x, on=_L.GroupNorm(t.mesh, "d:6", 2)),
        "LayerNorm.__call__": call(t.x, on=_L.LayerNorm(t.mesh, "d:6")),
        "RMSNorm.__call__": call(t.x, on=_L.RMSNorm(t.mesh, "d:6")),
        "RelativeBias.__call__": call(positions, context, on=bias),
        "RelativeBias.buckets": call(positions, on=bias),
        "RelativeBias.from_table": call(
            bias.table.tensor(), positions, context, on=bias
        ),
        "Repeat.__call__": call(t.x, on=repeat, own=("args",)),
        "Repeat.each": call(lambda layer, h, row: (layer(h), None), t.x, on=repeat),
        "Reversible.__call__": call(t.x, t.y, on=_L.Reversible([Double()])),
    }


def attention(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of layers of attention."""
    heads = (t.mesh, "d:6", "heads:2", "key:4")
    calls = {}
    x = tensor(t.mesh, "batch:4;length:4;d:6")
    position = t.step
    for layer in (
        _L.MultiHeadAttention(*heads),
        _L.LocalAttention(*heads, "length:4"),
        _L.BlockwiseAttention(*heads, "length:4"),
        _L.ContextParallelAttention(*heads, "length:4"),
    ):
        cache = layer.init_cache(t.x, 4)
        own = type(layer).__name__
        read = layer.project_keys_values(x)
        several = own != "LocalAttention"
        methods = {
            "__call__": call(x, takes={"query_inputs": "all", "kv_inputs": "all"}),
            "init_cache": call(t.x, 4),
            "project_keys_values": call(x),
            "fill_cache": call(cache, read, position, 0),
            "decode_step": call(t.x, cache, position),
            "decode_prepared_step": call(
                t.x, cache, layer.prepare_decode_step(cache, position)
            ),
            "prepare_decode_step": call(cache, position),
            "is_visible": call(position, position),
            "project": call(x, None),
            "project_to_heads": call(layer.query, x),
            "apply_rope": call(x, None),
        }
        if several:
            methods |= {
                "attend_cached": call(x, read),
                "fuses": call(x),
                "context_keys_values": call(x, None, None),
            }
        if own == "ContextParallelAttention":
            q, k, v = layer.project(x, None)
            methods["method_for"] = call(
                q, *(mtf.rename(y, "length", "kv_length") for y in (k, v))
            )
        calls |= {f"{own}.{name}": c._replace(on=layer) for name, c in methods.items()}
    return calls | zigzag(x)


def zigzag(x: mtf.Tensor) -> dict[str, Call]:
    """Returns calls of methods of `ZigzagOrder`."""
    order = _L.ZigzagOrder("length:4", 2)
    calls = {"apply": call(x), "undo": call(x), "random_numbers": call()}
    calls["positions"] = call(mtf.range(x.mesh, "length:4"))
    return {f"ZigzagOrder.{name}": c._replace(on=order) for name, c in calls.items()}


def functions(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of functions."""
    q = tensor(t.mesh, "batch:4;length:4;key:4")
    k = tensor(t.mesh, "batch:4;kv_length:4;key:4")
    positions = mtf.range(t.mesh, "length:4")
    ids = tensor(t.mesh, "batch:4;length:4", "int32")
    lengths = (t.mesh, "length:4", "kv_length:4")
    own = mtf.rename(k, "kv_length", "length")
    return {
        "add_noise": call(t.x, 0.1),
        "multiplicative_jitter": call(t.x, 0.1),
        "blockwise_attention": call(q, k, k, "length:4", takes={"query_inputs": "all"}),
        "all_to_all_attention": call(
            q,
            k,
            k,
            "length:4",
            "batch",
            takes={"query_inputs": "all", "kv_inputs": "all"},
        ),
        "ring_attention": call(
            q, k, k, "length:4", takes={"query_inputs": "all", "kv_inputs": "all"}
        ),
        "dot_product_attention": call(q, k, k),
        "local_attention": call(q, own, own, "length:4"),
        "causal_bias": call(*lengths),
        "causal_mask": call(*lengths),
        "clip_gradient": call(t.x, 1.0),
        "compress_mean": call(t.x, "d", 2),
        "correlation": call(t.x, t.y, "batch"),
        "rms": call(t.x),
        "distance_slopes": call(
            positions, mtf.rename(positions, "length", "m"), "heads:2"
        ),
        "mask_bias": call(t.truth),
        "padding_mask": call(ids),
        "pad_ragged": call(tf.ragged.constant([[1], [2, 3]]), 2),
        "segment_mask": call(ids),
        "mean_squared_error": call(t.x, t.y),
        "sigmoid_cross_entropy": call(t.x, t.y),
        "softmax_cross_entropy": call(t.x, t.ids, "d"),
        "weighted_mean": call(t.x),
        "label_weights": call(t.ids),
        "weights_nonzero": call(t.ids),
        "rope": call(positions, "key:4"),
        "sinusoids": call(positions, "d:6"),
        "apply_rope": call(q, "key", _L.rope(positions, "key:4")),
    }


def layers(t: SimpleNamespace) -> dict[str, Call]:
    """Returns all calls of layers."""
    calls = named(constructors(t)) | called(t) | attention(t) | functions(t)
    return first_values(t) | {f"layers.{name}": c for name, c in calls.items()}
