"""Finds the values of a program that are gradients of parameters.

    gradients = ParameterGradients(tensors)
    gradients.add_outputs(step)            # each step, in order
    gradients.smallest()                   # one value for each parameter

A value of the program is the gradient of a parameter if the gradient rule of an op that
reads the parameter computes it, and if it has the parameter's dimensions. A store is a
variable or an argument of the program.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshtf.forecast.placed_tensors import PlacedTensors, has_shape_of
from meshtf.graph import Node, ReadOp, Store
from meshtf.partition import CallStep, ReshardStep, Step, Value


class ParameterGradients:
    """Collects gradients while the steps of a program are visited in order.

    Args:
      tensors: describes the program's values, with their bytes.
    """

    def __init__(self, tensors: PlacedTensors) -> None:
        self._tensors = tensors
        # For each parameter: its gradient as computed, and after each reshard.
        self._by_parameter: dict[Store, list[Value]] = {}
        # For each of these values: the same list, of all placements of its gradient.
        self._placements_of: dict[Value, list[Value]] = {}
        # Intermediate sums, where several calls of a body add to a gradient in turn.
        self._accumulators: set[Value] = set()

    def smallest(self) -> set[Value]:
        """Returns each parameter's gradient, in the placement with the fewest bytes."""
        return {
            min(values, key=lambda value: self._tensors.of_value(value).bytes)
            for values in self._by_parameter.values()
        }

    def not_activations(self) -> set[Value]:
        """Returns all values that count as gradients in the peak of memory."""
        return self.smallest() | self._accumulators

    def all_values(self) -> set[Value]:
        """Returns the gradients in all of their placements, and their accumulators."""
        return set(self._placements_of) | self._accumulators

    def add_reshard(self, step: ReshardStep) -> None:
        """Adds the output of a reshard of a gradient."""
        self._add_placement(step.src, step.out)

    def add_view(self, step: Step) -> None:
        """Adds the output of a step that changes only some elements of a gradient."""
        self._add_placement(step.inputs[0], step.outputs[0])

    def add_outputs(self, step: Step) -> None:
        """Adds the outputs that are gradients of parameters.

        If several steps compute the gradient of one parameter, the last one, which
        computes the sum of all, replaces the others.
        """
        # A loop has several outputs, and some have the same shape: each matches once.
        remaining = list(step.outputs)
        assert step.node is not None
        for store in dict.fromkeys(parameters(step.node)):
            matches = [
                value for value in remaining if has_shape_of(value.spec, store.spec)
            ]
            if matches:
                self._set_gradient(store, matches[0])
                remaining.remove(matches[0])

    def add_call(self, step: CallStep) -> None:
        """Adds the results of a call that are gradients of parameters, and the
        accumulators that its body adds to.
        """
        argument_values = dict(zip(step.op.body.arguments, step.arguments))
        results = zip(step.outs, step.body.results, step.op.body.results)
        for out, body_result, tensor in results:
            for store in parameters(tensor.node):
                self._set_gradient(store, out)
                # The body adds the gradient of this call to an argument: the sum of the
                # gradients of earlier calls.
                addends = [
                    argument_values[x]
                    for x in tensor.node.inputs
                    if x in argument_values
                ]
                self._accumulators.update([out, body_result, *addends])

    def _add_placement(self, gradient: Value, out: Value) -> None:
        """Adds a value to the placements of a gradient, if it is one."""
        if gradient in self._placements_of:
            values = self._placements_of[gradient]
            values.append(out)
            self._placements_of[out] = values

    def _set_gradient(self, store: Store, value: Value) -> None:
        """Makes a value the gradient of a parameter, in place of any earlier one."""
        values = [value]
        self._by_parameter[store] = values
        self._placements_of[value] = values


def parameters(node: Node) -> Iterator[Store]:
    """Yields the parameters whose gradients a node may compute: those that the forward
    op of its gradient rule reads.
    """
    # `primals`: the tensors of the forward op, if a gradient rule recorded the node.
    for tensor in node.primals:
        op = tensor.node.op
        if isinstance(op, ReadOp) and op.store.kind == "parameter":
            yield op.store
