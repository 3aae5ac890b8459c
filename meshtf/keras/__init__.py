"""Keras models on a mesh: `mtf.keras.distribute(model, mesh)`, then `model.fit` as ever."""

from meshtf.keras.distribute import DistributedModel, distribute

__all__ = ["DistributedModel", "distribute"]
