"""Layers with custom gradients: reversible residual layers, and gradient clipping.

Example:

    blocks = Reversible([attention_0, feed_forward_0, attention_1, feed_forward_1])
    y1, y2 = blocks(x1, x2)            # each: x1, x2 = x2, x1 + f(x2)

    h = clip_gradient(h, 1.0)          # the identity; clips the gradient
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshtf.graph import Tensor, context
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.graph.autodiff.gradients import gradients_up_to
from meshtf.module import Module
from meshtf.names import accumulation_dtype
from meshtf.names.arguments import as_callable, as_sequence, check_floats
from meshtf.ops.control.custom_gradient import custom_gradient
from meshtf.ops.elementwise.arithmetic import maximum
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.linear.correlation import rms

# A gradient rule: a function that returns the gradients of the inputs of another function
# for the gradients of its outputs.
Rule = Callable[..., list[Any]]


class Reversible(Module):
    """Residual layers that store no activations for the backward pass (RevNet: Gomez et
    al., 2017, arXiv 1707.04585).

    Applies x1, x2 = x2, x1 + f(x2) for each function f. The backward pass recomputes the
    inputs of each function from its outputs, so memory does not grow with the count of
    functions, and each f runs twice.

    Args:
      functions: modules, called with a tensor and the keyword arguments of the call; each
        returns a tensor of the same shape. Gradients flow only to variables of modules.
      name: the layer's name, a component of the paths of its random ops; see `mtf.Module`.
    """

    default_name = "reversible"

    def __init__(
        self, functions: Sequence[Callable[..., Tensor]], name: str | None = None
    ) -> None:
        functions = as_sequence("functions", functions, "a list of functions")
        for f in functions:
            as_callable("functions", f)  # raises ArgumentError
        super().__init__(name)
        self.functions = list(functions)

    def __call__(self, x1: Tensor, x2: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Returns both streams after all functions, with the shapes of x1 and x2.

        Args:
          x1: the stream [...] that the output of the first function is added to.
          x2: the stream [...] that is the input of the first function.
          kwargs: keyword arguments of all functions, such as training=True.
        """
        x1 = as_tensor("x1", x1)
        x2 = as_tensor("x2", x2)

        @custom_gradient
        def apply_functions(
            y1: Tensor, y2: Tensor, *variables: Tensor
        ) -> tuple[tuple[Tensor, Tensor], Rule]:
            # The functions read the variables themselves; they are arguments here so that
            # the rule may return their gradients.
            for f in self.functions:
                y1, y2 = y2, y1 + f(y2, **kwargs)
            return (y1, y2), self._gradient_rule(y1, y2, kwargs)

        return apply_functions(x1, x2, *self.trainable_variables)

    def _gradient_rule(self, y1: Tensor, y2: Tensor, kwargs: dict[str, Any]) -> Rule:
        """Returns the gradient rule of all functions: it maps the gradients of the
        outputs y1, y2 to those of the inputs x1, x2 and of the variables.
        """
        variables = self.trainable_variables

        def rule(d1: Tensor, d2: Tensor) -> list[Any]:
            variable_gradients: list[Any] = [None] * len(variables)
            # The last function f mapped the streams (x, f_input) to (f_input, f_sum), where
            # f_sum = x + f(f_input).
            f_input, f_sum = y1, y2
            for f in reversed(self.functions):
                f_input = _copy_of(f_input)
                # The rule draws the random numbers of the forward pass: f drops the same
                # elements.
                with context(runs_again=True):
                    f_output = f(f_input, **kwargs)
                # The gradient of f alone: the earlier functions computed f_input.
                f_gradient, *new_gradients = gradients_up_to(
                    [f_input], [f_output], [f_input, *variables], [d2]
                )
                variable_gradients = _add_gradients(variable_gradients, new_gradients)
                # The gradient of f_input: directly as an output, and through f.
                d_input = d1
                if f_gradient is not None:
                    d_input = d1 + f_gradient
                f_input, f_sum = f_sum - f_output, f_input
                d1, d2 = d2, d_input
            return [d1, d2, *variable_gradients]

        return rule


@custom_gradient
def _copy_of(x: Tensor) -> tuple[Tensor, Rule]:
    """Returns x as a tensor of its own, which f is differentiated by. Unlike with
    `stop_gradient`, gradients of that gradient flow on.
    """
    return x, lambda dy: [dy]


def _add_gradients(totals: list[Any], new_gradients: list[Any]) -> list[Any]:
    """Returns the sum of two lists of gradients, where None is zero."""
    sums = []
    for total, gradient in zip(totals, new_gradients):
        if total is None:
            sums.append(gradient)
        elif gradient is None:
            sums.append(total)
        else:
            sums.append(total + gradient)
    return sums


def clip_gradient(x: Tensor, limit: float) -> Tensor:
    """Returns x [...]; its gradient is scaled down to a root mean square of at most
    `limit`.

    Args:
      x: floats.
      limit: the maximum root mean square of the gradient, over all dimensions.
    """
    check_tensors(x=x)
    check_floats(limit=limit)

    def rule(dy: Tensor) -> list[Tensor]:
        gradient_rms = rms(cast(dy, accumulation_dtype(dy.dtype)))
        factor = limit / maximum(gradient_rms, limit)
        return [dy * cast(factor, dy.dtype)]

    return custom_gradient(lambda x: (x, rule))(x)
