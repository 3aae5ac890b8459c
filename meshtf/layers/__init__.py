"""Layers: modules with variables, written on named dimensions alone.

    import meshtf as mtf
    wi = mtf.layers.Dense(mesh, "d_model:512", "d_ff:2048", name="wi")
    norm = mtf.layers.LayerNorm(mesh, "d_model:512", name="norm")
    h = mtf.relu(wi(norm(x)))
"""

from meshtf.layers import initializers
from meshtf.layers.attention import MultiHeadAttention, causal_bias
from meshtf.layers.dense import Dense
from meshtf.layers.dropout import Dropout
from meshtf.layers.embedding import Embedding
from meshtf.layers.loss import softmax_cross_entropy
from meshtf.layers.norm import LayerNorm, RMSNorm
from meshtf.layers.rotary import Angles, rotary_angles, rotate

__all__ = ["Angles", "Dense", "Dropout", "Embedding", "LayerNorm", "MultiHeadAttention", "RMSNorm",
           "causal_bias", "initializers", "rotary_angles", "rotate", "softmax_cross_entropy"]
