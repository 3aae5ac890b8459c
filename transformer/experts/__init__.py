"""Mixtures of experts: many feed-forward layers; each token uses only a few of them.

Contents:

    moe_layer            the layer, its losses and its statistics
    gating               gating functions: which experts process which tokens
    router_statistics    the losses and statistics of a router
    routing              the queue of tokens of each expert, and its capacity
    dispatch             moves tokens to the slots of experts and back
"""
