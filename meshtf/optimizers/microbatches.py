"""Gradient accumulation: the gradients of a batch are computed in several microbatches, one
after another, to reduce the peak memory.

    loss, grads = accumulate_gradients(loss_of, variables, {"ids": ids, "targets": targets},
                                       "batch", microbatches=8)

The microbatches run in one loop, whose body is traced once. Each device accumulates its
local gradients, those of 16-bit types in float32; of tables of which few rows are looked up, the
rows of all microbatches are stacked instead. The sums are reduced across devices once,
after the last microbatch, unless the optimizer's slots (its variables, such as moving
averages) are sharded (FSDP, ZeRO). Deferred calls, such as updates of running means, are
made once, with the means of their tensors over the microbatches. Weighted means in the loss
divide by the weight of the full batch, which is computed before the loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from meshtf.errors import PlanError, explain_error
from meshtf.graph import (
    Body,
    Graph,
    Tensor,
    context,
    current,
    current_executor,
    gradients,
)
from meshtf.graph.arguments import as_scalar, as_tensor, as_variables, check_nest
from meshtf.names import Dimension, accumulation_dtype, nested
from meshtf.names.arguments import as_callable, as_dim, as_int
from meshtf.ops.control.batch_means import (
    EagerMeans,
    RecordedMeans,
    recorded_means,
    stores_of,
)
from meshtf.ops.control.microbatch import (
    MICROBATCH,
    DeferredCall,
    call_with_means,
    deferred_calls,
    microbatch,
    split_into_microbatches,
)
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.indexing.row_sums import RowGradient
from meshtf.ops.loops.recorded_scan import recorded_scan
from meshtf.ops.loops.scan import scan_and_sum
from meshtf.ops.shapes.stack import unstack
from meshtf.optimizers.tables.touched_rows import few_rows


def accumulate_gradients(
    loss_of: Callable[[Any], Tensor],
    variables: Sequence[Any],
    inputs: Any,
    dim: str,
    microbatches: int,
) -> tuple[Tensor, list[Tensor | None]]:
    """Returns the mean loss of all microbatches and its gradients.

    The result equals the loss of the full batch if loss_of is a mean over the examples
    of `dim`, or a sum of such means: of equal weights, or computed by
    `mtf.layers.weighted_mean` and the losses of `mtf.layers`, which divide by the weight of
    the full batch. All microbatches count equally in what else loss_of returns: of its own
    division by a weight of the microbatch, divide by `mtf.mean_over_microbatches(weight)`.

    Each microbatch takes examples at a constant stride, so that a sharded batch needs no
    communication. Random ops index examples as in the full batch, so the dropout masks are
    the same.

    Args:
      loss_of: a function of the inputs of one microbatch that returns its loss, a scalar.
        In eager mode, it is called twice for each microbatch if it has weighted means.
      variables: the variables to differentiate with respect to; the gradient is None for
        a variable that the loss does not depend on.
      inputs: tensors with `dim`, in any nesting.
      dim: the name of the dimension to divide into microbatches, such as "batch".
      microbatches: the count of microbatches; 1 runs the full batch at once.

    Returns:
      The mean loss, a scalar, and the gradient of each variable, with the shape of the
      variable.

    Raises:
      ShapeError: an input lacks `dim`, or `microbatches` does not divide it.
      PlanError: in a `mtf.function`, a weight of means in the loss depends on a variable.
    """
    loss_of = as_callable("loss_of", loss_of)
    variables = as_variables("variables", variables)
    dim = as_dim("dim", dim)
    microbatches = as_int("microbatches", microbatches)
    check_nest("inputs", inputs, missing=False)
    if microbatches == 1:
        loss = as_scalar("the loss", loss_of(inputs))
        return loss, gradients([loss], list(variables))
    split_inputs = nested.map_structure(
        lambda x: split_into_microbatches(x, dim, microbatches), inputs
    )
    mesh = nested.flatten(split_inputs)[0].mesh
    indices = index_range(mesh, Dimension(MICROBATCH, microbatches))
    accumulation = _Accumulation(loss_of, variables, dim, microbatches)
    return accumulation.run((indices, split_inputs))


class _Accumulation:
    """The loop over microbatches.

    Args:
      loss_of: the function from the inputs of a microbatch to its loss.
      variables: the variables to differentiate with respect to.
      dim: the dimension that is divided.
      microbatches: the number of microbatches.

    Attributes:
      caller: the context of the caller.
      means: the means over microbatches that the loss asks for.
      facts: what the body cannot return.
    """

    def __init__(
        self,
        loss_of: Callable[[Any], Tensor],
        variables: Sequence[Any],
        dim: str,
        microbatches: int,
    ) -> None:
        self.loss_of = loss_of
        self.variables = list(variables)
        self.dim = dim
        self.microbatches = microbatches
        self.caller = current()
        self.means: Any = None
        # The body can only return tensors: recording it fills in these facts.
        self.facts = _BodyFacts()

    def run(self, xs: Any) -> tuple[Tensor, list[Tensor | None]]:
        """Returns the mean loss, and the gradient of each variable.

        Args:
          xs: the indices of microbatches, and the inputs `[..., microbatch, ...]`.
        """
        scan_dim = Dimension(MICROBATCH, self.microbatches)
        if isinstance(current_executor(), Graph):
            inputs = nested.flatten(xs)

            def values_of_means(body: Body) -> Mapping[Tensor, Tensor]:
                return recorded_means(self.means, body, inputs, self.microbatches)

            _, sums, stacks = recorded_scan(
                self.body, None, xs, scan_dim, late_captures=values_of_means
            )
        else:
            microbatches = [unstack(x, MICROBATCH) for x in nested.flatten(xs)]

            def run(m: int) -> None:
                """Computes the loss of microbatch m, for the means that it asks for."""
                entries = [x[m] for x in microbatches]
                self.loss(*nested.pack_sequence_as(xs, entries))

            self.means = EagerMeans(run, self.microbatches)
            _, sums, stacks = scan_and_sum(self.body, None, xs, dim=MICROBATCH)
        loss_sum, deferred_sums, grad_sums = sums
        call_with_means(self.facts.deferred_calls, deferred_sums, self.microbatches)
        means = []
        for total, dtype in zip((loss_sum, *grad_sums), self.facts.dtypes, strict=True):
            means.append(cast(total * (1.0 / self.microbatches), dtype))
        loss, *mean_grads = means
        sums_of_grads = iter(mean_grads)
        lookups = iter(stacks)
        grads: list[Tensor | None] = []
        for variable, kind in zip(self.variables, self.facts.gradients, strict=True):
            if isinstance(kind, RowGradient):
                table = as_tensor("variables", variable)
                total = kind.with_lookups(next(lookups), table)
                grads.append(cast(total * (1.0 / self.microbatches), table.dtype))
            else:
                grads.append(None if kind is None else next(sums_of_grads))
        return loss, grads

    def loss(self, index: Tensor, examples: Any) -> tuple[Tensor, list[DeferredCall]]:
        """Returns the loss of a microbatch, and the calls that it defers."""
        with (
            microbatch(self.dim, num_microbatches=self.microbatches, index=index),
            # Random ops use the caller's iterations, not that of the microbatch: they
            # index examples as in the full batch.
            context(iterations=self.caller.iterations, random_paths=set()),
            deferred_calls() as calls,
        ):
            return as_scalar("the loss", self.loss_of(examples)), calls

    def body(self, _: None, xs: Any) -> tuple[None, Any, Any]:
        """Returns (no carry, the terms of sums over microbatches, the lookups of gradients of
        few rows, which are stacked).
        """
        if isinstance(current_executor(), Graph):
            self.means = batch_means = RecordedMeans()
        else:
            batch_means = self.means.again()
        with context(batch_means=batch_means):
            loss, calls = self.loss(*xs)
        if isinstance(batch_means, RecordedMeans):
            batch_means.warn_of_divisors(loss)
            _check_weights(batch_means.terms.values(), self.variables)
        all_grads = gradients([loss], self.variables)
        grads = []
        lookups = []
        self.facts.gradients = []
        for dx in all_grads:
            rows = None if dx is None else few_rows(dx, times=self.microbatches)
            self.facts.gradients.append(rows or dx)
            if rows is not None:
                lookups.append(rows.scaled_lookups())
            elif dx is not None:
                grads.append(dx)
        self.facts.deferred_calls = calls
        self.facts.dtypes = [x.dtype for x in (loss, *grads)]
        deferred_tensors = [x for call in calls for x in call.tensors]
        wide_grads = [_in_accumulation_dtype(dx) for dx in grads]
        terms = (_in_accumulation_dtype(loss), deferred_tensors, wide_grads)
        return None, terms, lookups


@dataclasses.dataclass
class _BodyFacts:
    """Facts about the results of the loop's body.

    Attributes:
      gradients: of each variable, the gradient in a microbatch; None: the loss does not depend
        on it.
      dtypes: the data types of the loss, and then of each gradient.
      deferred_calls: the calls to be made once, after the last microbatch.
    """

    gradients: list[Tensor | RowGradient | None] = dataclasses.field(
        default_factory=list
    )
    dtypes: list[str] = dataclasses.field(default_factory=list)
    deferred_calls: list[DeferredCall] = dataclasses.field(default_factory=list)


def _check_weights(weights: Iterable[Tensor], variables: Sequence[Any]) -> None:
    """Raises PlanError if a weight of means depends on a variable: the gradients of a
    microbatch take the weight of the batch as a constant.
    """
    names = {id(variable): variable.name for variable in variables}
    for weight in weights:
        for store in stores_of(weight):
            if id(store) in names:
                raise PlanError(
                    explain_error(
                        f"a weight of the loss depends on {names[id(store)]!r}, and "
                        "microbatches take the weight of the batch as a constant.",
                        tensor=repr(weight),
                        source=weight.node.source,
                        way_out="Use mtf.stop_gradient(weights), or one microbatch.",
                    )
                )


def _in_accumulation_dtype(x: Tensor) -> Tensor:
    """Returns x with 16-bit floats as float32. In 16 bits a sum over many microbatches
    stops growing, since each addend is smaller than the rounding of the sum.
    """
    return cast(x, accumulation_dtype(x.dtype))
