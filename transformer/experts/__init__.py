"""Mixtures of experts.

Contents:

    moe_layer    the layer: tokens to experts and back, losses and reports
    gating       which experts work on which tokens
    routing      queues at experts, and their capacity
    dispatch     tokens to slots and back, by number or by products
"""
