"""The names, variables and meshes of a pipeline's layers.

    layer = functools.partial(attention, training=True)
    owner(layer)                   # the module `attention`
    variables_of(layer)            # its variables
    layer_name(layer, index=0)     # its path, such as "encoder/attention"

A layer is any callable: a module, a method or `functools.partial` of one, or a function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import nested
from meshtf.runtime.variable import Variable


def owner(layer: Any) -> Any:
    """Returns the object that has a layer's variables: the layer itself, or the object
    whose partial or method the layer is.
    """
    while isinstance(layer, functools.partial):
        layer = layer.func
    if inspect.ismethod(layer):
        return layer.__self__
    return layer


def layer_name(layer: Any, index: int) -> str:
    """Returns the name of a layer: its path, or the name of a function, or "layer_" and
    the index.
    """
    layer = owner(layer)
    if hasattr(layer, "path"):
        return "/".join(layer.path)
    return getattr(layer, "__name__", f"layer_{index}")


def variables_of(layer: Any) -> Sequence[Variable]:
    """Returns the variables of a layer's module; () for a plain function."""
    module = owner(layer)
    if isinstance(module, Module):
        return module.variables
    return ()


def num_parameters(layer: Any) -> int:
    """Returns the number of elements of a layer's trainable variables."""
    variables = getattr(owner(layer), "trainable_variables", ())
    return sum(variable.shape.size for variable in variables)


def meshes_of(layers: Sequence[Callable[..., Any]], inputs: Any) -> list[Mesh]:
    """Returns the distinct meshes of the layers' variables and of an example input."""
    tensors: list[Any] = []
    for layer in layers:
        tensors.extend(variables_of(layer))
    tensors.extend(nested.flatten(inputs))
    meshes: list[Mesh] = []
    for x in tensors:
        mesh = getattr(x, "mesh", None)
        if isinstance(mesh, Mesh) and mesh not in meshes:
            meshes.append(mesh)
    return meshes
