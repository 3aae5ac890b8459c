"""Exponential moving averages of variables, which are often better than the variables.

    average = mtf.optimizers.ExponentialMovingAverage(model.trainable_variables, 0.999)

    @mtf.function(mesh=mesh, x="batch;d", step="")
    def train_step(x, step):
      ...
      optimizer.apply_gradients(grads, variables, step)
      average.update(variables, step)

    with average.applied_to(model.trainable_variables):
      evaluate(model)                     # with the averages in place of the variables
    mtf.checkpoints.save(folder, step, {v.name: v for v in average.variables} | ...)

An average is a variable like an optimizer's slot: of the shape of its variable, in float32 (of
float64: float64), sharded as the slots are, and in checkpoints under the name of its variable
after "ema/".
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence

from meshtf.errors import PlanError, explain_error
from meshtf.function.function import function
from meshtf.graph import Source, Tensor
from meshtf.graph.arguments import as_variables
from meshtf.module import Module
from meshtf.names.arguments import check_fractions
from meshtf.ops.elementwise.arithmetic import minimum
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.optimizers.checks import check_slots_can_be_sharded, check_step
from meshtf.optimizers.optimizer import (
    check_names_are_unique,
    make_slot,
    slot_dtype,
    update_average,
    zeros_initializer,
)
from meshtf.optimizers.slot_layout import use_layout
from meshtf.runtime.storage.variable_slots import use_value_of
from meshtf.runtime.variable import Variable


class ExponentialMovingAverage(Module):
    """Moving averages of variables. They begin with the values of the variables, and each
    update is

        average = d * average + (1 - d) * variable,    d = min(decay, (1 + step) / (10 + step))

    as `tf.train.ExponentialMovingAverage` has it: early values are soon forgotten.

    Args:
      variables: the variables to average.
      decay: the decay rate: the averages are over about 1 / (1 - decay) updates.
      name: the prefix of the names of the averages.

    Attributes:
      averages: the average of each variable, by the name of the variable.

    Raises:
      DTypeError: a variable has complex numbers.
      LayoutError: the mesh's `optimizer_layout` cannot shard an average.
      PlanError: two variables have one name.
    """

    def __init__(
        self, variables: Sequence[Variable], decay: float = 0.999, name: str = "ema"
    ) -> None:
        variables = as_variables("variables", variables, expected="variables")
        check_fractions(decay=decay)
        check_names_are_unique(variables)
        super().__init__(name)
        self.decay = decay
        self.averages: dict[str, Variable] = {}
        with self.scope():
            for variable in variables:
                check_slots_can_be_sharded(type(self).__name__, variable)
                zeros = zeros_initializer([variable], slot_dtype(variable))
                self.averages[variable.name] = make_slot(
                    variable, variable.name, variable.spec.shape, zeros
                )
        self._write_averages = function(self._average_of_variables)
        self._write_variables = function(self._variables_of_averages)
        if variables and not variables[0].mesh.abstract:
            self._write_averages(tuple(variables))

    def update(self, variables: Sequence[Variable], step: Tensor | None = None) -> None:
        """Updates the averages of variables. It reads their new values if it is called after
        the optimizer's `apply_gradients`, as it should be.

        Args:
          variables: a subset of the variables that the averages were made for.
          step: the index of the step, a scalar int32, which limits the decay rate at first;
            None: the decay rate is always `decay`.
        """
        variables = self._check(variables)
        new_weight: Tensor | float = 1.0 - self.decay
        if step is not None:
            t = cast(check_step(step), "float32")
            new_weight = 1.0 - minimum((t + 1.0) / (t + 10.0), self.decay)
        for variable in variables:
            average = self.averages[variable.name]
            with use_layout(variable.slot_layout):
                value = cast(variable.tensor(), average.dtype)
                weight = new_weight
                if isinstance(weight, Tensor):
                    weight = cast(weight, average.dtype)
                update_average(average, value, weight)

    @contextlib.contextmanager
    def applied_to(self, variables: Sequence[Variable]) -> Iterator[None]:
        """Within this context, variables have their averages as values; after it, their own
        values again. A copy of the variables is stored meanwhile.

        Args:
          variables: a subset of the variables that the averages were made for.
        """
        variables = self._check(variables)
        own_values = copy.deepcopy(variables)
        try:
            self._write_variables(tuple(variables))
            yield
        finally:
            for variable, own_value in zip(variables, own_values):
                use_value_of(variable, own_value)

    def _average_of_variables(self, variables: Sequence[Variable]) -> None:
        """Writes the values of variables to their averages."""
        for variable in variables:
            average = self.averages[variable.name]
            average.assign(cast(variable.tensor(), average.dtype))

    def _variables_of_averages(self, variables: Sequence[Variable]) -> None:
        """Writes averages to their variables."""
        for variable in variables:
            average = self.averages[variable.name]
            variable.assign(cast(average.tensor(), variable.dtype))

    def _check(self, variables: Sequence[Variable]) -> list[Variable]:
        """Returns the variables as a list. Raises PlanError if one has no average."""
        checked = list(as_variables("variables", variables))
        for variable in checked:
            if variable.name not in self.averages:
                raise PlanError(
                    explain_error(
                        f"variable {variable.name!r} has no moving average.",
                        averages=", ".join(self.averages) or "none",
                        source=Source.of_caller(),
                        way_out="Make the averages from all variables that they are to "
                        "be of.",
                    )
                )
        return checked
