"""Gradients, variables and slots that optimizers cannot work with are refused here."""

from __future__ import annotations

from typing import Any

from meshtf.errors import DTypeError, LayoutError, PlanError, ShapeError, explain_error
from meshtf.graph import Source, Tensor
from meshtf.graph.arguments import (
    as_tensor,
    as_tensors,
    as_variables,
)
from meshtf.names import has_gradient, is_complex
from meshtf.names.arguments import (
    as_mapping,
    as_sequence,
    refuse,
)
from meshtf.runtime.variable import Variable


def check_pairs(
    grads: Any, variables: Any
) -> tuple[list[Tensor | None], list[Variable]]:
    """Returns gradients and as many variables. Raises ArgumentError, PlanError."""
    variables = as_variables("variables", variables, "variables")
    gradients = [
        None if g is None else as_tensor("grads", g)
        for g in as_sequence("grads", grads, "a list of gradients")
    ]
    if len(gradients) != len(variables):
        raise PlanError(
            explain_error(
                f"there are {len(gradients)} gradients for {len(variables)} variables.",
                **{"from": Source.of_caller()},
                way_out="Give one for each variable, None where there is none.",
            )
        )
    return gradients, variables


def check_gradient(grad: Tensor, variable: Variable) -> None:
    """Refuses a gradient that is another variable's. Raises ShapeError, DTypeError."""
    if set(grad.shape) != set(variable.shape):
        raise ShapeError(
            explain_error(
                f"a gradient of {grad.shape!r} does not fit variable {variable.name!r} "
                f"of {variable.shape!r}.",
                **{"from": Source.of_caller()},
                way_out="Give gradients in the order of the variables.",
            )
        )
    if not has_gradient(grad.dtype):
        raise DTypeError(
            explain_error(
                f"a gradient is of floats, and that of variable {variable.name!r} is "
                f"{grad.dtype}.",
                **{"from": Source.of_caller()},
                way_out='Convert it: mtf.cast(grad, "float32").',
            )
        )


def check_update_arguments(slots: Any, numbers: Any) -> None:
    """Refuses slots and scalars that `update` does not take. Raises ArgumentError."""
    as_mapping("slots", slots, "slots by name, as in optimizer.slots[variable.name]")
    if not isinstance(numbers, tuple):
        refuse("numbers", numbers, "what optimizer.numbers(rate, step) returns")
    as_tensors("numbers", numbers)


def check_step(step: Any) -> None:
    """Refuses a step that is no scalar tensor. Raises PlanError, ShapeError."""
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
                f"an update takes its step as one number, not as {step.shape!r}.",
                **{"from": Source.of_caller()},
                way_out="Name no dimension of it: step=''.",
            )
        )


def check_slots_can_be_sharded(optimizer: str, variable: Variable) -> None:
    """Refuses complex numbers, and a shape that the rules for slots cannot cut.

    Raises:
      DTypeError: the variable is complex.
      LayoutError: its slots cannot be sharded.
    """
    if is_complex(variable.dtype):
        raise DTypeError(
            explain_error(
                f"{optimizer} has no update for complex numbers: variable "
                f"{variable.name!r} is {variable.dtype}.",
                **{"from": Source.of_caller()},
                way_out="Keep its real and its imaginary part as two variables, or "
                "take SGD without momentum for it (see optimizers.ByName).",
            )
        )
    mesh, layout = variable.mesh, variable.slot_layout
    for clash in mesh.place(variable.shape, layout)[1]:
        size, parts = variable.shape[clash.dim], mesh.axes[clash.axis]
        raise LayoutError(
            explain_error(
                f"the optimizer_layout cannot cut what {optimizer} keeps for variable "
                f"{variable.name!r}: "
                + (
                    f'its dimensions "{clash.other}" and "{clash.dim}" both want mesh '
                    f'axis "{clash.axis}".'
                    if clash.kind == "axis"
                    else f'dimension "{clash.dim}" of size {size} cannot be split into '
                    f"{parts} equal slices."
                ),
                variable=repr(variable.shape),
                **{"from": Source.of_caller()},
                mesh=str(mesh),
                layout=f"{layout!r} (with the rules of layout and variable_layout)",
                way_out=(
                    "Take one of the rules away for optimizers: "
                    f'optimizer_layout="{clash.other}:", '
                    if clash.kind == "axis"
                    else f"Make its size a multiple of {parts} (next: "
                    f"{-(-size // parts) * parts}), "
                )
                + f'or cut another dimension than "{clash.dim}".',
            )
        )
