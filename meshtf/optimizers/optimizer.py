"""The base class of optimizers: slots for the variables, and one update for each
gradient.

    optimizer = Adam(model.trainable_variables, learning_rate=1e-3)

    @mtf.function(mesh=mesh, tokens="batch;length", step="")
    def train_step(tokens, step):
      loss = model.loss(tokens)
      variables = model.trainable_variables
      optimizer.apply_gradients(mtf.gradients([loss], variables), variables, step)
      return loss

A slot is itself a variable, with dimensions of the variable that it belongs to. It is
sharded as that variable is, unless the mesh's `optimizer_layout` has further rules
(ZeRO-1): then the gradient is reduce-scattered to the layout of the slots, each mesh
position updates its shard, and the new value of the variable is gathered.

A variable may stack independent ones: the layers of a `layers.Repeat`, the experts of a
`Dense(expert_dims=...)`. Every optimizer updates it as if its entries were variables of
their own: a rule that takes a norm, a mean, a rank or a shape uses `variable.entry_shape`.

Slots are float64 for variables of float64 and float32 for all others, and updates are
computed in that type. A variable of bfloat16 or float16 is rounded once in each step, so
it does not change at all if the update is smaller than half the distance to the next
representable number. Train variables of float32, and let layers compute in bfloat16.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Spec, Tensor, apply, apply_all, context
from meshtf.graph.arguments import (
    as_scalar,
    as_variables,
    check_tensors,
)
from meshtf.layers.initializers import Initializer, shared
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Shape
from meshtf.names.arguments import (
    as_float,
    as_mapping,
    as_sequence,
    check_record,
)
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.variables.fill import full
from meshtf.ops.variables.optimizer_updates import OptimizerUpdate
from meshtf.optimizers.checks import (
    check_gradient,
    check_pairs,
    check_slots_can_be_sharded,
    check_step,
)
from meshtf.optimizers.schedules import Rate, rate_dtype, scalar
from meshtf.optimizers.slot_layout import rounded_gradient
from meshtf.optimizers.tables.touched_rows import update_touched_rows
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.variable import Variable


class Optimizer(Module):
    """The base class of optimizers: a subclass gives the shapes of its slots, and
    implements `update`.

    Args:
      variables: the variables to update.
      learning_rate: a float or a schedule: a function of the step.
      slots: a dict for each variable, of the shapes of its slots by name. Slots are
        initialized to zero.
      name: the prefix of the names of the slots.

    Attributes:
      slots: the slots of each variable: first by the name of the variable, then by the
        name of the slot.

    Raises:
      DTypeError: there are slots for a variable of complex numbers.
      LayoutError: the mesh's `optimizer_layout` cannot shard the slots of a variable.
      PlanError: two variables have one name.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        learning_rate: Rate,
        slots: Sequence[Mapping[str, Shape]],
        name: str,
    ) -> None:
        variables = as_variables("variables", variables)
        if not callable(learning_rate):
            # Raises ArgumentError unless it is a number.
            as_float(
                "learning_rate", learning_rate, "a number, or a function of the step"
            )
        slot_shapes = as_sequence("slots", slots, "a dict of shapes for each variable")
        super().__init__(name)
        self.learning_rate = learning_rate
        check_names_are_unique(variables)
        if len(slot_shapes) != len(variables):
            raise PlanError(
                f"there are {len(variables)} variables, and slots for "
                f"{len(slot_shapes)}."
            )
        for variable, shapes in zip(variables, slot_shapes, strict=True):
            shapes = as_mapping("slots", shapes, "shapes by the names of slots")
            if shapes:  # the variable has slots
                check_slots_can_be_sharded(type(self).__name__, variable)
        zeros = {}  # the initializer for slots of each data type
        for dtype in set(map(slot_dtype, variables)):
            zeros[dtype] = zeros_initializer(variables, dtype)
        self.slots: dict[str, dict[str, Variable]] = {}
        with self.scope():
            for variable, shapes in zip(variables, slot_shapes):
                initializer = zeros[slot_dtype(variable)]
                self.slots[variable.name] = {
                    slot_name: make_slot(
                        variable, f"{variable.name}/{slot_name}", shape, initializer
                    )
                    for slot_name, shape in shapes.items()
                }

    def apply_gradients(
        self,
        grads: Sequence[Tensor | None],
        variables: Sequence[Variable],
        step: Tensor | None = None,
    ) -> None:
        """Updates variables from their gradients.

        Args:
          grads: the gradient of each variable, with the shape of the variable. For None,
            as of a variable that the loss does not depend on, the variable and its slots
            keep their values.
          variables: a subset of the variables that the optimizer was made for.
          step: the index of the step, 0 for the first update: a scalar int32. Optimizers
            do not count steps, so that learning rate, data and checkpoints share the
            caller's count.

        Raises:
          PlanError: the optimizer was not made for a variable, or the step is missing or no
            tensor.
          ShapeError: a gradient has other dimensions than its variable, or the step is
            no scalar.
          DTypeError: a gradient is not of floats.
        """
        grads, variables = check_pairs(grads, variables)
        self.check_variables(variables)
        step = check_step(step)
        # All gradients are checked before the first update.
        pairs_by_dtype: dict[str, list[tuple[Tensor, Variable]]] = defaultdict(list)
        for grad, variable in zip(grads, variables, strict=True):
            if grad is None:
                continue
            check_gradient(grad, variable)
            pair = rounded_gradient(grad), variable
            pairs_by_dtype[slot_dtype(variable)].append(pair)
        for dtype, same_dtype_pairs in pairs_by_dtype.items():
            with rate_dtype(dtype):
                rate = cast(as_scalar("learning_rate", self.rate_at(step)), dtype)
                self.apply_weight_decay(
                    [variable for _, variable in same_dtype_pairs], rate
                )
                step_scalars = self.step_scalars(rate, step)
            for grad, variable in same_dtype_pairs:
                self.update(variable, grad, self.slots[variable.name], step_scalars)

    def check_variables(self, variables: Sequence[Variable]) -> None:
        """Checks that the optimizer was made for the variables.

        Raises:
          PlanError: the optimizer was not made for one of them.
        """
        variables = as_variables("variables", variables)
        for variable in variables:
            if variable.name not in self.slots:
                raise PlanError(
                    explain_error(
                        f"{type(self).__name__} was not made for variable "
                        f"{variable.name!r}.",
                        made_for=", ".join(self.slots) or "none",
                        way_out="Make the optimizer from all variables that it is to "
                        "update.",
                    )
                )

    def rate_at(self, step: Tensor) -> Tensor:
        """Returns the learning rate at a step: a scalar."""
        check_tensors(step=step)
        if callable(self.learning_rate):
            return self.learning_rate(step)
        return scalar(step.mesh, self.learning_rate)

    def step_scalars(self, rate: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        """Returns the scalars that the updates of all variables share, computed once in
        each step.

        The base class returns only the rate; Adam returns the bias-corrected step size.

        Args:
          rate: the learning rate: a scalar float64 for float64 variables, otherwise
            float32. The results have the same data type.
          step: the index of the step: a scalar int32.
        """
        check_tensors(rate=rate, step=step)
        return (rate,)

    def apply_weight_decay(self, variables: Sequence[Variable], rate: Tensor) -> None:
        """Decays variables before the updates of a step. The base class does nothing, except
        that it checks the arguments.
        """
        as_variables("variables", variables)
        check_tensors(rate=rate)

    def update(
        self,
        variable: Variable,
        grad: Tensor,
        slots: dict[str, Variable],
        step_scalars: tuple[Tensor, ...],
    ) -> None:
        """Updates a variable and its slots, in their data type.

        Args:
          variable: the variable to update.
          grad: the gradient of the variable, of the same shape.
          slots: the slots of the variable, by name.
          step_scalars: the result of the method `step_scalars`.
        """
        raise NotImplementedError


def apply_update(
    op: OptimizerUpdate,
    variable: Variable,
    grad: Tensor,
    slots: Mapping[str, Variable],
    rate: Tensor,
    decay: Tensor | None = None,
) -> None:
    """Updates a variable and its slots.

    The update is in place if variable and slots have the same layout and data type;
    otherwise it is computed in the layout and data type of the slots. Of a table, only the
    rows that were looked up are updated: see `touched_rows.py`.

    Args:
      op: the op that updates the variable and the slots.
      variable: the variable to update.
      grad: the gradient of the variable, of the same shape.
      slots: the slots of the variable, by name.
      rate: the learning rate, a scalar.
      decay: the fraction of the variable that is subtracted before the update, a scalar;
        None: nothing. Only for variables of bfloat16 or float16, whose decay and update
        are rounded together.
    """
    check_record(Variable, variable=variable)
    check_tensors(grad=grad, rate=rate)
    slots = as_mapping("slots", slots, "slots by name")
    if is_half_precision(variable):
        grad = cast(grad, op.dtype)
    rate = cast(rate, op.dtype)
    in_place = all(
        slot.placement == variable.placement and slot.dtype == variable.dtype
        for slot in slots.values()
    )
    if update_touched_rows(op, variable, grad, rate, in_place):
        return
    if in_place:
        apply_all(op, grad, rate, mesh=variable.mesh)
        return
    value = cast(variable.tensor(), op.dtype)
    if decay is not None:
        value = value * (1.0 - decay)
    value = apply(op.slots_update(), grad, rate, value, mesh=variable.mesh)
    variable.assign(cast(value, variable.dtype))


def slots_like(variables: Sequence[Variable], *names: str) -> list[dict[str, Shape]]:
    """Returns for each variable the shapes of its slots: the variable's own for each of the
    names. Raises ArgumentError if `variables` is no list of variables.
    """
    variables = as_variables("variables", variables, expected="variables")
    return [dict.fromkeys(names, variable.shape) for variable in variables]


def slot_dtype(variable: Variable) -> str:
    """Returns the data type of a variable's slots, in which its updates are
    computed.
    """
    return "float64" if variable.dtype == "float64" else "float32"


def is_half_precision(variable: Variable) -> bool:
    """Returns whether a variable is bfloat16 or float16. Its slots are float32."""
    return variable.dtype in ("bfloat16", "float16")


def as_decay_mask(
    decay_mask: Callable[[Variable], bool] | None, stacked_dims: Sequence[str] = ()
) -> Callable[[Variable], bool]:
    """Returns a function that says whether to decay a variable. In it, a variable that stacks
    independent ones has the shape of one of them, so that a stacked vector is a vector.

    Args:
      decay_mask: the optimizer's argument; None: the default.
      stacked_dims: names of further dimensions along which variables are stacked.
    """
    mask = default_decay_mask if decay_mask is None else decay_mask

    def is_decayed(variable: Variable) -> bool:
        entry = Spec(variable.entry_shape.without(*stacked_dims), variable.dtype)
        # As in a layer of a `Repeat`, `variable.shape` is the shape of the entry.
        with context(layer_entries={id(variable): entry}):
            return mask(variable)

    return is_decayed


def default_decay_mask(variable: Variable) -> bool:
    """Returns whether a variable has at least two dimensions and is not named "bias" or
    "scale".

    The count of dimensions is not sufficient: biases of attention have two dimensions.
    """
    last_name = variable.name.rpartition("/")[2]
    return len(variable.entry_shape) > 1 and last_name not in ("bias", "scale")


def update_average(slot: Variable, new: Tensor, new_weight: Tensor | float) -> Tensor:
    """Updates the moving average in a slot to (1 - new_weight) * slot + new_weight * new,
    and returns the result, [...] as the slot.
    """
    old = slot.tensor()
    average = old + (new - old) * new_weight
    slot.assign(average)
    return average


def check_names_are_unique(variables: Sequence[Variable]) -> None:
    """Raises PlanError if two variables have one name."""
    counts = Counter(variable.name for variable in variables)
    duplicates = [name for name, count in counts.items() if count > 1]
    if duplicates:
        raise PlanError(
            explain_error(
                f"two variables are called {duplicates[0]!r}: slots and checkpoints are "
                "keyed by name.",
                way_out="Give one of the modules around them another name=.",
            )
        )


def zeros_initializer(variables: Sequence[Variable], dtype: str) -> Initializer:
    """Returns an initializer of zeros.

    On several devices, slots of the same shape share one tensor, from which each device
    creates its shard; on one device, that tensor would only take additional memory.
    """

    def zeros(mesh: Mesh, shape: Shape, name: str) -> Tensor:
        return full(mesh, shape, value=0.0, dtype=dtype)

    if not variables or variables[0].mesh.abstract:
        return zeros
    num_devices = len(set(devices_of(variables[0].mesh)))
    return shared(zeros) if num_devices > 1 else zeros


def make_slot(
    variable: Variable, name: str, shape: Shape, initializer: Initializer
) -> Variable:
    """Returns a new slot of a variable, in the pipeline stage of the variable.

    Args:
      variable: the variable.
      name: the name of the slot, below the path of the scope.
      shape: the shape of the slot.
      initializer: returns the initial value.
    """
    with context(stage=variable.stage):
        return Variable(
            variable.mesh,
            shape,
            initializer,
            name=name,
            dtype=slot_dtype(variable),
            trainable=False,
            layout=variable.slot_layout,
        )
