"""Layers that a model repeats, as one loop over a dimension of layers."""
