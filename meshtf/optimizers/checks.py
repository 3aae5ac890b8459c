"""Checks of the arguments of optimizers: gradients, variables, slots and steps.

A slot is a variable with state of an optimizer, such as a moving average.
"""

from __future__ import annotations

from typing import Any

from meshtf.errors import DTypeError, LayoutError, PlanError, ShapeError, explain_error
from meshtf.graph import Source, Tensor
from meshtf.graph.arguments import (
    as_tensor,
    as_tensors,
    as_variables,
    check_tensors,
)
from meshtf.mesh.mesh import Conflict
from meshtf.names import has_gradient, is_complex
from meshtf.names.arguments import (
    as_mapping,
    as_sequence,
    check_record,
    refuse,
)
from meshtf.runtime.variable import Variable


def check_pairs(
    grads: Any, variables: Any
) -> tuple[list[Tensor | None], list[Variable]]:
    """Returns the gradients and the variables as lists of equal length.

    Raises:
      ArgumentError: `grads` is no list of tensors, or `variables` no list of variables.
      PlanError: there are not as many gradients as variables.
    """
    variables = as_variables("variables", variables, expected="variables")
    gradients = as_gradients(grads)
    if len(gradients) != len(variables):
        raise PlanError(
            explain_error(
                f"there are {len(gradients)} gradients for {len(variables)} variables.",
                source=Source.of_caller(),
                way_out="Give one for each variable, None where there is none.",
            )
        )
    return gradients, variables


def as_gradients(grads: Any) -> list[Tensor | None]:
    """Returns gradients as a list of tensors, with None where there is no gradient.

    Raises:
      ArgumentError: `grads` is no list of tensors.
    """
    gradients = []
    for grad in as_sequence("grads", grads, "a list of gradients"):
        gradients.append(None if grad is None else as_tensor("grads", grad))
    return gradients


def check_gradient(grad: Tensor, variable: Variable) -> None:
    """Checks that a gradient fits its variable.

    Raises:
      ShapeError: the gradient and the variable have different dimensions.
      DTypeError: the gradient is not of floats.
    """
    if set(grad.shape) != set(variable.shape):
        raise ShapeError(
            explain_error(
                f"a gradient of {grad.shape!r} does not fit variable {variable.name!r} "
                f"of {variable.shape!r}.",
                source=Source.of_caller(),
                way_out="Give gradients in the order of the variables.",
            )
        )
    if not has_gradient(grad.dtype):
        raise DTypeError(
            explain_error(
                f"gradients are floats, but that of variable {variable.name!r} is "
                f"{grad.dtype}.",
                source=Source.of_caller(),
                way_out='Convert it: mtf.cast(grad, "float32").',
            )
        )


def check_update_arguments(
    variable: Any, grad: Any, slots: Any, step_scalars: Any
) -> None:
    """Checks the arguments of `Optimizer.update`.

    Raises:
      ArgumentError: `variable` is no variable, `grad` no tensor, `slots` no dict, or
        `step_scalars` no tuple of tensors.
    """
    # Each of these calls raises ArgumentError for a wrong value.
    check_record(Variable, variable=variable)
    check_tensors(grad=grad)
    as_mapping("slots", slots, "slots by name, as in optimizer.slots[variable.name]")
    if not isinstance(step_scalars, tuple):
        refuse(
            "step_scalars",
            step_scalars,
            "the tuple that optimizer.step_scalars(rate, step) returns",
        )
    as_tensors("step_scalars", step_scalars)


def check_step(step: Any) -> Tensor:
    """Returns the step of an update, which must be a scalar tensor.

    Raises:
      PlanError: the step is missing, or no tensor.
      ShapeError: the step has dimensions.
    """
    if step is None:
        raise PlanError(
            explain_error(
                "an update needs the step: 0 for the first one, 1 for the next.",
                source=Source.of_caller(),
                way_out="Count in a variable, which a checkpoint saves as well: "
                'count = mtf.Variable(mesh, "", "zeros", "count", dtype="int32"); '
                "optimizer.apply_gradients(grads, variables, count.tensor()); "
                "count.assign_add(1).",
            )
        )
    if not isinstance(step, Tensor):
        raise PlanError(
            explain_error(
                f"an update takes its step as a tensor, not as {type(step).__name__} "
                f"{step!r}.",
                way_out="Give the function an argument for it: "
                "@mtf.function(mesh=mesh, ..., step='').",
            )
        )
    if step.shape.names:
        raise ShapeError(
            explain_error(
                f"an update takes its step as a scalar, not as {step.shape!r}.",
                source=Source.of_caller(),
                way_out="Declare it without dimensions: step=''.",
            )
        )
    return step


def check_slots_can_be_sharded(optimizer: str, variable: Variable) -> None:
    """Checks that the slots of a variable can be stored under the mesh's layout.

    Args:
      optimizer: the name of the optimizer's class, for messages.
      variable: the variable.

    Raises:
      DTypeError: the variable is complex.
      LayoutError: the rules for slots cannot shard the variable's shape.
    """
    if is_complex(variable.dtype):
        raise DTypeError(
            explain_error(
                f"{optimizer} has no update for complex numbers: variable "
                f"{variable.name!r} is {variable.dtype}.",
                source=Source.of_caller(),
                way_out="Keep its real and its imaginary part as two variables, or "
                "take SGD without momentum for it (see optimizers.ParameterGroups).",
            )
        )
    mesh = variable.mesh
    layout = variable.slot_layout
    _, conflicts = mesh.place(variable.shape, layout)
    if not conflicts:
        return
    problem, way_out = _explain_conflict(conflicts[0], variable)
    raise LayoutError(
        explain_error(
            f"the optimizer_layout cannot shard the slots of {optimizer} for variable "
            f"{variable.name!r}: {problem}",
            variable=repr(variable.shape),
            source=Source.of_caller(),
            mesh=str(mesh),
            layout=f"{layout!r} (with the rules of layout and variable_layout)",
            way_out=f'{way_out}, or shard another dimension than "{conflicts[0].dim}".',
        )
    )


def _explain_conflict(conflict: Conflict, variable: Variable) -> tuple[str, str]:
    """Returns why the slots of a variable cannot be sharded, and a way out, both as text
    for an error.
    """
    dim = conflict.dim
    if conflict.kind == "axis":
        return (
            f'its dimensions "{conflict.other}" and "{dim}" would both be sharded along '
            f'mesh axis "{conflict.axis}".',
            "Remove one of the rules for optimizers: "
            f'optimizer_layout="{conflict.other}:"',
        )
    size = variable.shape[dim]
    axes = variable.slot_layout.axes(dim)
    num_shards = variable.mesh.group_size(*(a for a in axes if a in variable.mesh.axes))
    shard_size = -(-size // num_shards)  # rounded up
    next_multiple = shard_size * num_shards
    return (
        f'dimension "{dim}" of size {size} cannot be split into {num_shards} equal '
        "slices.",
        f"Make its size a multiple of {num_shards} (next: {next_multiple})",
    )
