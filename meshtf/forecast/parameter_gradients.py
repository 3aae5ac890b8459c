"""Which values of a program are gradients of parameters.

    gradients = ParameterGradients(tensors)
    gradients.add(step)                    # each step, in order
    gradients.values()                     # one value for each parameter

A value is the gradient of a parameter if a gradient rule of an op that reads the
parameter computes it, and it has the parameter's dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshtf.forecast.placed_tensors import PlacedTensors, has_shape_of
from meshtf.graph import Node, ReadOp, Store
from meshtf.partition import CallStep, Compute, LoopStep, ReshardStep, Value


class ParameterGradients:
    """Collects gradients while the steps of a program are visited in order.

    Args:
      tensors: describes values, for their bytes.
    """

    def __init__(self, tensors: PlacedTensors) -> None:
        self._tensors = tensors
        # The cotangent of each parameter, once for each of its placements; and for each
        # of these values, the list that it is in.
        self._values: dict[Store, list[Value]] = {}
        self._placements: dict[Value, list[Value]] = {}
        # Sums of the cotangents so far, in programs that add to them call by call.
        self._partial_sums: set[Value] = set()

    def smallest(self) -> set[Value]:
        """Returns for each parameter the value of its gradient with the fewest bytes."""
        return {
            min(values, key=lambda value: self._tensors.of_value(value).bytes)
            for values in self._values.values()
        }

    def not_activations(self) -> set[Value]:
        """Returns all values that count as gradients in the peak of memory."""
        return self.smallest() | self._partial_sums

    def all_values(self) -> set[Value]:
        """Returns the gradients in all of their placements, and partial sums."""
        return set(self._placements) | self._partial_sums

    def add_reshard(self, step: ReshardStep) -> None:
        """Adds the output of a reshard of a gradient."""
        if step.src in self._placements:
            values = self._placements[step.src]
            values.append(step.out)
            self._placements[step.out] = values

    def add_outputs(self, step: Compute | LoopStep) -> None:
        """Adds the outputs that are cotangents of parameters.

        If several steps compute a parameter's cotangent, the last one has the sum of all.
        """
        remaining = list(step.outs)  # a loop has several, and some have the same shape
        for store in dict.fromkeys(parameters(step.node)):
            matches = [v for v in remaining if has_shape_of(v.spec, store.spec)]
            if matches:
                self._set(store, matches[0])
                remaining.remove(matches[0])

    def add_call(self, step: CallStep) -> None:
        """Adds the results that are cotangents of parameters, and the sums that a body
        adds to.
        """
        passed = dict(zip(step.op.body.arguments, step.arguments))
        results = zip(step.outs, step.body.results, step.op.body.results)
        for out, inner_value, tensor in results:
            for store in parameters(tensor.node):
                self._set(store, out)
                addends = [passed[x] for x in tensor.node.inputs if x in passed]
                self._partial_sums |= {out, inner_value, *addends}

    def _set(self, store: Store, value: Value) -> None:
        self._values[store] = self._placements[value] = [value]


def parameters(node: Node) -> Iterator[Store]:
    """Yields the parameters whose cotangents a node may compute."""
    for tensor in node.primals:
        op = tensor.node.op
        if isinstance(op, ReadOp) and op.store.kind == "parameter":
            yield op.store
