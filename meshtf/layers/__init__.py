"""Layers: modules with variables, written on named dimensions alone.

    import meshtf as mtf
    wi = mtf.layers.Dense(mesh, "d_model:512", "d_ff:2048", name="wi")
    norm = mtf.layers.LayerNorm(mesh, "d_model:512", name="norm")
    h = mtf.relu(wi(norm(x)))
"""

from meshtf.layers import initializers
from meshtf.layers.attention import MultiHeadAttention, causal_bias
from meshtf.layers.dense import Dense
from meshtf.layers.dropout import AnnealedDropout, Dropout, add_noise, multiplicative_jitter
from meshtf.layers.embedding import Embedding, sinusoids
from meshtf.layers.feed_forward import DenseProduct, FeedForward
from meshtf.layers.loss import (
  mean_squared_error,
  sigmoid_cross_entropy,
  softmax_cross_entropy,
  weights_nonzero,
)
from meshtf.layers.norm import GroupNorm, LayerNorm, RMSNorm
from meshtf.layers.rotary import Angles, rotary_angles, rotate
from meshtf.layers.statistics import correlation, rms

__all__ = ["Angles", "AnnealedDropout", "Dense", "DenseProduct", "Dropout", "Embedding",
           "FeedForward", "GroupNorm", "LayerNorm", "MultiHeadAttention", "RMSNorm", "add_noise",
           "causal_bias", "correlation", "initializers", "mean_squared_error",
           "multiplicative_jitter", "rms", "rotary_angles", "rotate", "sigmoid_cross_entropy",
           "sinusoids", "softmax_cross_entropy", "weights_nonzero"]
