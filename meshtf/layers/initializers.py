"""Initializers of variables: functions of (mesh, shape, name), with the same result under
every layout.

Random initializers use the seed of the mesh and the name of the variable, so two variables
differ, a run is reproducible, and no value depends on the order in which variables are
made or on their sharding.

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

# The standard deviation of a standard normal truncated at two standard deviations.
_TRUNCATED_STDDEV = 0.87962566103423978


def zeros(mesh: Mesh, shape: Shape, name: str) -> Tensor:
    """An initializer that returns zeros [*shape]."""
    as_text("name", name)
    return full(mesh, shape, 0.0)


def ones(mesh: Mesh, shape: Shape, name: str) -> Tensor:
    """An initializer that returns ones [*shape]."""
    as_text("name", name)
    return full(mesh, shape, 1.0)


def shared(initializer: Initializer) -> Initializer:
    """Returns an initializer that shares one tensor between variables of one shape, on
    a mesh of one position. TensorFlow copies the tensor when a variable changes.
    """
    initializer = as_initializer(initializer)
    tensors: dict[Shape, Tensor] = {}

    def shared_tensor(mesh: Mesh, shape: Shape, name: str) -> Tensor:
        if mesh.size > 1:
            return initializer(mesh, shape, name)
        if shape not in tensors:
            tensors[shape] = initializer(mesh, shape, name)
        return tensors[shape]

    return shared_tensor


def constant(value: float) -> Initializer:
    """Returns an initializer that returns one value."""
    check_floats(value=value)
    return lambda mesh, shape, name: full(mesh, shape, value)


def normal(stddev: float = 1.0) -> Initializer:
    """Returns an initializer that samples a normal distribution with mean zero."""
    check_floats(stddev=stddev)

    def draw(mesh: Mesh, shape: Shape, name: str) -> Tensor:
        return random_normal(mesh, shape, stddev=stddev, seed=mesh.seed, name=name)

    return draw


def truncated(stddev: float = 1.0) -> Initializer:
    """Returns an initializer that samples a normal distribution with mean zero,
    truncated at two of its standard deviations.

    Args:
      stddev: the standard deviation of the result, after truncation.
    """
    check_floats(stddev=stddev)

    def draw(mesh: Mesh, shape: Shape, name: str) -> Tensor:
        return truncated_normal(
            mesh, shape, stddev=stddev / _TRUNCATED_STDDEV, seed=mesh.seed, name=name
        )

    return draw


def uniform(limit: float = 1.0) -> Initializer:
    """Returns an initializer that samples uniformly in [-limit, limit)."""
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
    """Returns an initializer whose variance is scale / fan, where the fan is the size
    of named dimensions.

    Args:
      reduced_dims: the names that the kernel's einsum sums over; fan_in is the product of
        their sizes.
      scale: a factor of the variance.
      mode: the fan to divide by: "fan_in", "fan_out" (of all other names), or "fan_avg",
        their mean.
      distribution: to sample from.
      expert_dims: names that count in neither fan, since each of their entries is a
        separate kernel. Dimensions of repeated layers (`Repeat`) never count.
    """
    check_floats(scale=scale)
    as_choice("mode", mode, get_args(Mode))
    as_choice("distribution", distribution, get_args(Distribution))
    names_of(reduced_dims, Shape(""), argument="reduced_dims")
    names_of(expert_dims, Shape(""), argument="expert_dims")

    def draw(mesh: Mesh, shape: Shape, name: str) -> Tensor:
        summed = names_of(reduced_dims, shape)
        experts = names_of(expert_dims, shape)
        stddev = math.sqrt(scale / _fan(shape, summed, experts, mode))
        if distribution == "uniform":
            initializer = uniform(math.sqrt(3.0) * stddev)
        elif distribution == "normal":
            initializer = normal(stddev)
        else:
            initializer = truncated(stddev)
        return initializer(mesh, shape, name)

    return draw


def glorot(
    reduced_dims: str, distribution: Distribution = "uniform", expert_dims: str = ""
) -> Initializer:
    """Returns variance scaling by 1 / mean of fan_in and fan_out (Glorot and Bengio,
    2010).
    """
    return variance_scaling(reduced_dims, 1.0, "fan_avg", distribution, expert_dims)


def he(
    reduced_dims: str,
    distribution: Distribution = "truncated_normal",
    expert_dims: str = "",
) -> Initializer:
    """Returns variance scaling by 2 / fan_in, for kernels before a relu (He et al.,
    2015).
    """
    return variance_scaling(reduced_dims, 2.0, "fan_in", distribution, expert_dims)


def lecun(
    reduced_dims: str,
    distribution: Distribution = "truncated_normal",
    expert_dims: str = "",
) -> Initializer:
    """Returns variance scaling by 1 / fan_in (LeCun et al., 1998)."""
    return variance_scaling(reduced_dims, 1.0, "fan_in", distribution, expert_dims)


def _fan(
    shape: Shape, summed: tuple[str, ...], experts: tuple[str, ...], mode: Mode
) -> float:
    """Returns the fan of one kernel: without dimensions of experts and repeated layers."""
    repeated = [d.name for d in current().stacked_dims]
    kernel = shape.without(*experts, *repeated)
    fan_in = kernel.only(summed).size
    fan_out = kernel.without(*summed).size
    if mode == "fan_in":
        return fan_in
    if mode == "fan_out":
        return fan_out
    return (fan_in + fan_out) / 2


INITIALIZERS.update(
    zeros=zeros, ones=ones, normal=normal(), truncated=truncated(), uniform=uniform()
)
