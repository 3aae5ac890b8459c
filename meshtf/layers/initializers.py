"""First values of variables: functions of (mesh, shape, name), the same under every
layout.

Random ones draw with the seed of the mesh and the name of the variable, so two
variables differ, a run repeats, and no value depends on the order in which variables
are made or on how they are cut.

    w = mtf.Variable(mesh, "d_model:512;d_ff:2048", variance_scaling("d_model"), name="w")
    w = mtf.Variable(mesh, "d_model:512;d_ff:2048", glorot("d_model"), name="w")
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

from meshtf.graph import Tensor, current
from meshtf.mesh import Mesh
from meshtf.names import Shape, names_of
from meshtf.names.arguments import as_choice, as_text, check_floats
from meshtf.ops.random.random import random_normal, random_uniform, truncated_normal
from meshtf.ops.variables.fill import full
from meshtf.runtime.initial_values import INITIALIZERS, Initializer, as_initializer

__all__ = [
    "Initializer",
    "constant",
    "glorot",
    "he",
    "lecun",
    "normal",
    "ones",
    "shared",
    "truncated",
    "uniform",
    "variance_scaling",
    "zeros",
]

Mode: TypeAlias = Literal["fan_in", "fan_out", "fan_avg"]
Distribution: TypeAlias = Literal["normal", "truncated_normal", "uniform"]

# The standard deviation of a standard normal cut off at two of its standard deviations.
_TRUNCATED_STDDEV = 0.87962566103423978


def zeros(mesh: Mesh, shape: Shape, name: str) -> Tensor:
    """An initializer that gives zeros."""
    as_text("name", name)
    return full(mesh, shape, 0.0)


def ones(mesh: Mesh, shape: Shape, name: str) -> Tensor:
    """An initializer that gives ones."""
    as_text("name", name)
    return full(mesh, shape, 1.0)


def shared(initializer: Initializer) -> Initializer:
    """Returns an initializer that gives variables of one shape one tensor, where
    devices see one memory: TensorFlow copies it for the first of them that changes."""
    initializer = as_initializer(initializer)
    made: dict[Shape, Tensor] = {}

    def first(mesh: Mesh, shape: Shape, name: str) -> Tensor:
        if mesh.size > 1:
            return initializer(mesh, shape, name)
        if shape not in made:
            made[shape] = initializer(mesh, shape, name)
        return made[shape]

    return first


def constant(value: float) -> Initializer:
    """Returns an initializer that gives one value."""
    check_floats(value=value)
    return lambda mesh, shape, name: full(mesh, shape, value)


def normal(stddev: float = 1.0) -> Initializer:
    """Returns an initializer that draws from a normal distribution around zero."""
    check_floats(stddev=stddev)

    def draw(mesh: Mesh, shape: Shape, name: str) -> Tensor:
        return random_normal(mesh, shape, stddev=stddev, seed=mesh.seed, name=name)

    return draw


def truncated(stddev: float = 1.0) -> Initializer:
    """Returns an initializer that draws normal numbers again beyond two of their
    deviations.

    Args:
      stddev: the standard deviation of what comes out, after truncation.
    """
    check_floats(stddev=stddev)

    def draw(mesh: Mesh, shape: Shape, name: str) -> Tensor:
        return truncated_normal(
            mesh, shape, stddev=stddev / _TRUNCATED_STDDEV, seed=mesh.seed, name=name
        )

    return draw


def uniform(limit: float = 1.0) -> Initializer:
    """Returns an initializer that draws evenly from -limit to limit."""
    check_floats(limit=limit)

    def draw(mesh: Mesh, shape: Shape, name: str) -> Tensor:
        return random_uniform(mesh, shape, -limit, limit, seed=mesh.seed, name=name)

    return draw


def variance_scaling(
    reduced_dims: str,
    scale: float = 1.0,
    mode: Mode = "fan_in",
    distribution: Distribution = "normal",
    expert_dims: str = "",
) -> Initializer:
    """Returns an initializer whose variance is scale / fan, the fan being told by
    names.

    Args:
      reduced_dims: the names that the kernel's einsum sums over; their sizes make up
        the fan in.
      scale: what the variance is multiplied by.
      mode: the fan to divide by: that of `reduced_dims`, that of all other names, or
        their mean.
      distribution: what to draw from.
      expert_dims: names that count in neither fan, since each of their rows is a kernel
        of its own. Dimensions of repeated layers (`Repeat`) never count.
    """
    check_floats(scale=scale)
    as_choice("mode", mode, get_args(Mode))
    as_choice("distribution", distribution, get_args(Distribution))
    names_of(reduced_dims, Shape(""), argument="reduced_dims")
    names_of(expert_dims, Shape(""), argument="expert_dims")

    def draw(mesh: Mesh, shape: Shape, name: str) -> Tensor:
        summed, experts = names_of(reduced_dims, shape), names_of(expert_dims, shape)
        stddev = math.sqrt(scale / _fan(shape, summed, experts, mode))
        if distribution == "uniform":
            return uniform(math.sqrt(3.0) * stddev)(mesh, shape, name)
        return (normal if distribution == "normal" else truncated)(stddev)(
            mesh, shape, name
        )

    return draw


def glorot(
    reduced_dims: str, distribution: Distribution = "uniform", expert_dims: str = ""
) -> Initializer:
    """Returns variance scaling by 1 / the mean of both fans (Glorot and
    Bengio, 2010).
    """
    return variance_scaling(reduced_dims, 1.0, "fan_avg", distribution, expert_dims)


def he(
    reduced_dims: str,
    distribution: Distribution = "truncated_normal",
    expert_dims: str = "",
) -> Initializer:
    """Returns variance scaling by 2 / fan in, for what a relu follows (He et al.,
    2015).
    """
    return variance_scaling(reduced_dims, 2.0, "fan_in", distribution, expert_dims)


def lecun(
    reduced_dims: str,
    distribution: Distribution = "truncated_normal",
    expert_dims: str = "",
) -> Initializer:
    """Returns variance scaling by 1 / fan in (LeCun et al., 1998)."""
    return variance_scaling(reduced_dims, 1.0, "fan_in", distribution, expert_dims)


def _fan(
    shape: Shape, summed: tuple[str, ...], experts: tuple[str, ...], mode: Mode
) -> float:
    kernel = shape.without(*experts, *(d.name for d in current().stack))
    fan_in = kernel.only(summed).size
    fan_out = kernel.without(*summed).size
    return {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[
        mode
    ]


INITIALIZERS.update(
    zeros=zeros, ones=ones, normal=normal(), truncated=truncated(), uniform=uniform()
)
