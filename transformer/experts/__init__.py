"""Mixtures of experts.

Contents:

    moe_layer    the layer: tokens to experts and back, losses and reports
    gating       assigns tokens to experts
    routing      queues of experts, and their capacity
    dispatch     tokens to expert slots and back, by gather or by one-hot matmuls
"""
