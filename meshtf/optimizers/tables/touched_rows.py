"""Updates of the rows of an embedding table that a step has looked up.

    if not update_touched_rows(op, table, grad, rate, in_place=True):
        apply_all(op, grad, rate, mesh=table.mesh)        # of all rows

A step may look up few rows of a large table. Then its gradient is a sum of rows (see
`meshtf.ops.indexing.row_sums`), and rules that change nothing where the gradient is zero need no
others: SGD, Adagrad. Other rules, such as Adam's, change all rows in each step; by `lazy=True`
the user chooses that they change the touched rows only.
"""

from __future__ import annotations

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Source, Tensor, apply_all
from meshtf.ops.indexing.row_sums import RowGradient, row_gradient
from meshtf.ops.variables.optimizer_updates import OptimizerUpdate
from meshtf.ops.variables.rows_update import RowsUpdate
from meshtf.runtime.variable import Variable

# With fewer rows of the table for each one that is looked up, passes over the dense gradient are
# about as fast as finding equal ids.
MIN_ROWS_PER_LOOKUP = 4


def few_rows(grad: Tensor, times: int = 1) -> RowGradient | None:
    """Returns a gradient [rows, *rest] as a sum of rows, if `times` as many are few; None: take
    the dense one.
    """
    rows = row_gradient(grad)
    if rows is None:
        return None
    num_rows = times * rows.num_rows
    if num_rows * MIN_ROWS_PER_LOOKUP > rows.shape[rows.dim]:
        return None
    return rows


def update_touched_rows(
    op: OptimizerUpdate, variable: Variable, grad: Tensor, rate: Tensor, in_place: bool
) -> bool:
    """Updates only the rows of a variable and its slots that the gradient is a sum of, if it is
    one, and if the op leaves other rows as they are. Returns whether it did.

    Args:
      op: the op that updates all rows.
      variable: the variable.
      grad: its gradient, [rows, *rest].
      rate: the learning rate, a scalar.
      in_place: whether the slots lie as the variable does.

    Raises:
      PlanError: the op is lazy, and the slots lie otherwise than the variable.
    """
    if op.lazy:
        rows = row_gradient(grad)
    else:
        rows = few_rows(grad) if op.keeps_untouched and in_place else None
    if rows is None:
        return False
    has_rows = variable.shape.names[0] == rows.dim
    if not op.lazy and not has_rows:
        return False
    if not in_place or not has_rows:
        raise PlanError(
            explain_error(
                f"the lazy update of variable {variable.name!r} writes rows of it and of its "
                f'slots: its first dimension must be "{rows.dim}", and its slots must have its '
                "layout and data type.",
                variable=f"{variable.shape!r}, {variable.dtype}, {variable.placement}",
                slots=", ".join(f"{x.spec.dtype}, {x.placement}" for x in op.slots),
                source=Source.of_caller(),
                way_out="Use lazy=False, or a float32 table with this dimension first, and no "
                "rule of optimizer_layout for its dimensions.",
            )
        )
    lookups = rows.scaled_lookups() if op.is_linear else [rows.summed()]
    inputs = [x for lookup in lookups for x in lookup]
    apply_all(RowsUpdate(op), rate, *inputs, mesh=variable.mesh)
    return True
