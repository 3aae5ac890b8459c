"""Keras models on a mesh: `mtf.keras.distribute(model, mesh)`, then `model.fit` as ever."""

from typing import TYPE_CHECKING, Any

from meshtf.keras.distribute import DistributedModel, distribute
from meshtf.keras.named_layer.layer import Layer
from meshtf.unknown_name import unknown_name

__all__ = ["DistributedModel", "Layer", "distribute"]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        raise unknown_name(__name__, name, __all__)
