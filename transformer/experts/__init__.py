"""Mixtures of experts: feed-forward layers of which each token uses only a few.

Contents:

    moe_layer    the layer, its losses and its statistics
    gating       gating functions: which experts process which tokens
    routing      the queue of tokens of each expert, and its capacity
    dispatch     moves tokens to the slots of experts and back, by gathers or matmuls
"""
