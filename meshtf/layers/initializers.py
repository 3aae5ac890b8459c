"""Initializers of variables: functions of (mesh, shape, name) that return the initial value,
a tensor [*shape].

Random initializers use the seed of the mesh and the name of the variable. So two variables
differ, a run is reproducible, and no value depends on the order in which variables are
made, or on the layout.

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


def __dir__() -> list[str]:
    return sorted(__all__)


Mode: TypeAlias = Literal["fan_in", "fan_out", "fan_avg"]
Distribution: TypeAlias = Literal["normal", "truncated_normal", "uniform"]

# The standard deviation of a standard normal truncated at two standard deviations.
_TRUNCATED_STDDEV = 0.87962566103423978


def zeros(mesh: Mesh, shape: Shape, name: str) -> Tensor:
    """An initializer that returns zeros [*shape]."""
    # All initializers take a name; this one only checks it.
    as_text("name", name)
    return full(mesh, shape, value=0.0)


def ones(mesh: Mesh, shape: Shape, name: str) -> Tensor:
    """An initializer that returns ones [*shape]."""
    # All initializers take a name; this one only checks it.
    as_text("name", name)
    return full(mesh, shape, value=1.0)


def shared(initializer: Initializer) -> Initializer:
    """Returns an initializer that returns the same tensor for all variables of one shape,
    to save memory and time. Each variable still changes separately: TensorFlow copies the
    tensor at the first write.

    `mtf.Variable` computes initial values on a mesh of one position, and then slices them,
    if all devices share one memory. Only tensors on such a mesh are shared: on a larger
    one, variables of one shape may be sharded differently.
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
    """Returns an initializer whose tensors have `value` in all elements."""
    check_floats(value=value)
    return lambda mesh, shape, name: full(mesh, shape, value=value)


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
        return random_uniform(
            mesh, shape, minval=-limit, maxval=limit, seed=mesh.seed, name=name
        )

    return draw


def variance_scaling(
    reduced_dims: str,
    scale: float = 1.0,
    mode: Mode = "fan_in",
    distribution: Distribution = "normal",
    expert_dims: str = "",
) -> Initializer:
    """Returns an initializer whose variance is scale / fan, where a fan is a product of
    sizes of the kernel's dimensions.

    Args:
      reduced_dims: the names of the dimensions that the kernel's einsum sums over.
      scale: a factor of the variance.
      mode: the fan to divide by: "fan_in", the size of `reduced_dims`; "fan_out", the
        size of the remaining dimensions; or "fan_avg", the mean of both.
      distribution: the distribution that values are sampled from.
      expert_dims: the names of dimensions that are in neither fan, since each of their
        entries is a separate kernel; so are the dimensions of repeated layers (`Repeat`).
    """
    check_floats(scale=scale)
    # Checks: these calls raise ArgumentError for a wrong name.
    as_choice("mode", mode, get_args(Mode))
    as_choice("distribution", distribution, get_args(Distribution))
    # Raises errors of the names now, not when a variable is made.
    names_of(reduced_dims, Shape(""), argument="reduced_dims")
    names_of(expert_dims, Shape(""), argument="expert_dims")

    def draw(mesh: Mesh, shape: Shape, name: str) -> Tensor:
        reduced_names = names_of(reduced_dims, shape)
        expert_names = names_of(expert_dims, shape)
        stddev = math.sqrt(scale / _fan(shape, reduced_names, expert_names, mode))
        if distribution == "uniform":
            # The variance of the uniform distribution in [-a, a) is a**2 / 3.
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
    """Returns an initializer of variance 2 / (fan_in + fan_out) (Glorot and Bengio, 2010);
    arguments as in `variance_scaling`.
    """
    return variance_scaling(
        reduced_dims,
        scale=1.0,
        mode="fan_avg",
        distribution=distribution,
        expert_dims=expert_dims,
    )


def he(
    reduced_dims: str,
    distribution: Distribution = "truncated_normal",
    expert_dims: str = "",
) -> Initializer:
    """Returns an initializer of variance 2 / fan_in, for kernels before a relu (He et al.,
    2015); arguments as in `variance_scaling`.
    """
    return variance_scaling(
        reduced_dims,
        scale=2.0,
        mode="fan_in",
        distribution=distribution,
        expert_dims=expert_dims,
    )


def lecun(
    reduced_dims: str,
    distribution: Distribution = "truncated_normal",
    expert_dims: str = "",
) -> Initializer:
    """Returns an initializer of variance 1 / fan_in (LeCun et al., 1998); arguments as in
    `variance_scaling`.
    """
    return variance_scaling(
        reduced_dims,
        scale=1.0,
        mode="fan_in",
        distribution=distribution,
        expert_dims=expert_dims,
    )


def _fan(
    shape: Shape,
    reduced_names: tuple[str, ...],
    expert_names: tuple[str, ...],
    mode: Mode,
) -> float:
    """Returns the fan of one kernel: without the dimensions of experts, and those along
    which the variable is stacked, such as repeated layers.
    """
    stacked_names = [dim.name for dim in current().stacked_dims]
    kernel = shape.without(*expert_names, *stacked_names)
    fan_in = kernel.only(reduced_names).size
    fan_out = kernel.without(*reduced_names).size
    if mode == "fan_in":
        return fan_in
    if mode == "fan_out":
        return fan_out
    return (fan_in + fan_out) / 2


# The initializers that `mtf.Variable` accepts by name. They are registered here, since
# `meshtf.runtime` cannot import this file, which imports it.
INITIALIZERS.update(
    zeros=zeros, ones=ones, normal=normal(), truncated=truncated(), uniform=uniform()
)
