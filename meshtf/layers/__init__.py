"""Layers: modules with variables, written in terms of named dimensions.

    import meshtf as mtf
    wi = mtf.layers.Dense(mesh, "d_model:512", "d_ff:2048", name="wi")
    norm = mtf.layers.LayerNorm(mesh, "d_model:512", name="norm")
    h = mtf.relu(wi(norm(x)))

A layer computes in the type of its input: for x in bfloat16 its output is bfloat16.
Variables stay float32 and are cast where they are used, and their gradients are float32.
Statistics of norms, softmax and losses are computed in float32.
`Embedding(..., dtype="bfloat16")` makes a model compute in bfloat16.
"""

from typing import TYPE_CHECKING, Any

from meshtf.layers import initializers
from meshtf.layers.attention.blockwise import BlockwiseAttention, blockwise_attention
from meshtf.layers.attention.context_parallel.all_to_all import all_to_all_attention
from meshtf.layers.attention.context_parallel.layer import ContextParallelAttention
from meshtf.layers.attention.context_parallel.ring import ring_attention
from meshtf.layers.attention.context_parallel.zigzag import ZigzagOrder
from meshtf.layers.attention.dot_product import compress_mean, dot_product_attention
from meshtf.layers.attention.heads import Cache, DecodeStep
from meshtf.layers.attention.local_attention import LocalAttention, local_attention
from meshtf.layers.attention.masks import (
    causal_bias,
    causal_mask,
    mask_bias,
    padding_mask,
    segment_mask,
)
from meshtf.layers.attention.multi_head import MultiHeadAttention
from meshtf.layers.attention.relative_position import RelativeBias, distance_slopes
from meshtf.layers.attention.rotary import (
    RotaryEmbedding,
    RotaryScaling,
    apply_rope,
    rope,
)
from meshtf.layers.batch_normalization import BatchNorm
from meshtf.layers.convolution import Conv, ConvTranspose, SeparableConv
from meshtf.layers.dense_layer import Dense
from meshtf.layers.dropout import (
    AnnealedDropout,
    Dropout,
    add_noise,
    multiplicative_jitter,
)
from meshtf.layers.embedding import Embedding, sinusoids
from meshtf.layers.feed_forward import DenseProduct, FeedForward
from meshtf.layers.loss import (
    label_weights,
    mean_squared_error,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
    weighted_mean,
    weights_nonzero,
)
from meshtf.layers.norm import GroupNorm, LayerNorm, RMSNorm
from meshtf.layers.repeat import Repeat
from meshtf.layers.reversible import Reversible, clip_gradient
from meshtf.layers.tables.embedding_tables import EmbeddingTables
from meshtf.layers.tables.features import Bag
from meshtf.layers.tables.ragged import pad_ragged
from meshtf.ops.linear.correlation import correlation, rms
from meshtf.unknown_name import unknown_name

__all__ = [
    "AnnealedDropout",
    "Bag",
    "BatchNorm",
    "BlockwiseAttention",
    "Cache",
    "ContextParallelAttention",
    "Conv",
    "ConvTranspose",
    "DecodeStep",
    "Dense",
    "DenseProduct",
    "Dropout",
    "Embedding",
    "EmbeddingTables",
    "FeedForward",
    "GroupNorm",
    "LayerNorm",
    "LocalAttention",
    "MultiHeadAttention",
    "RMSNorm",
    "RelativeBias",
    "Repeat",
    "Reversible",
    "RotaryEmbedding",
    "RotaryScaling",
    "SeparableConv",
    "ZigzagOrder",
    "add_noise",
    "all_to_all_attention",
    "apply_rope",
    "blockwise_attention",
    "causal_bias",
    "causal_mask",
    "clip_gradient",
    "compress_mean",
    "correlation",
    "distance_slopes",
    "dot_product_attention",
    "initializers",
    "label_weights",
    "local_attention",
    "mask_bias",
    "mean_squared_error",
    "multiplicative_jitter",
    "pad_ragged",
    "padding_mask",
    "ring_attention",
    "rms",
    "rope",
    "segment_mask",
    "sigmoid_cross_entropy",
    "sinusoids",
    "softmax_cross_entropy",
    "weighted_mean",
    "weights_nonzero",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        raise unknown_name(__name__, name, __all__)
