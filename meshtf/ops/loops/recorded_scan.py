"""Records the body of a scan once, as one `Loop` op of the current graph.

    recorded_scan(body, init, xs, dim=Dimension("layers", 12))     # (carry, sums, stacks)

`mtf.scan` describes what a scan is. Other functions that record loops call `recorded_scan` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from meshtf.errors import DTypeError, PlanError, explain_error
from meshtf.graph import Body, Loop, Source, Spec, Tensor, apply, apply_all, record_body
from meshtf.graph.control_flow.body import uses_index, with_index_as_entry
from meshtf.graph.control_flow.scan_dimension import unused_dim_name
from meshtf.graph.control_flow.stacking import stacked_spec
from meshtf.names import Dimension, accumulation_dtype
from meshtf.ops.common.batch_dimensions import index_in_batch
from meshtf.ops.control.nested_values import (
    ITERATION,
    leaves,
    next_carry,
    pack,
    pack_next,
    tensors_of,
)
from meshtf.ops.control.seeds import iteration
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.shapes.reshape import rename_dim
from meshtf.ops.variables.fill import Range


class RecordedIteration(NamedTuple):
    """The recorded body of a scan, and the structures of its results.

    Attributes:
      body: the recorded function. It takes the iteration index, the carry, and the inputs
        of one iteration, and returns the next carry, the terms of the sums, and the outputs
        to stack.
      terms: the nested structure of the terms.
      outputs: the nested structure of the outputs.
    """

    body: Body
    terms: Any
    outputs: Any


def record_iteration(
    body: Callable[..., Any], init: Any, xs: Any, dim: Dimension
) -> RecordedIteration:
    """Records the body of a scan. The arguments are those of `scan_and_sum`."""
    init_tensors = tensors_of(init, label="carry")
    input_tensors = tensors_of(xs, label="xs")
    carry_specs = [x.spec for x in init_tensors]
    slice_specs = [Spec(x.shape.without(dim.name), x.dtype) for x in input_tensors]
    terms: Any = None
    outputs: Any = None

    def record(index: Tensor, *arguments: Tensor) -> Sequence[Tensor]:
        nonlocal terms, outputs
        # `pack_next` takes as many tensors from the iterator as its structure has.
        remaining = iter(arguments)
        carry = pack_next(init, remaining)
        inputs = pack_next(xs, remaining)
        # Random ops use this index as a seed.
        with iteration(index_in_batch(dim, index)):
            returned = body(carry, inputs)
        new_carry, terms, outputs = results_of(returned, 3)
        wide_terms = widen_terms(terms)
        # Raises errors of the structure and specs, and restores the order of dimensions.
        ordered_carry = next_carry(init, new_carry, carry_specs)
        carry_tensors = tensors_of(ordered_carry, label="carry")
        return [*carry_tensors, *wide_terms, *tensors_of(outputs, label="result")]

    recorded_body = record_body(record, [ITERATION, *carry_specs, *slice_specs])
    return RecordedIteration(recorded_body, terms, outputs)


def recorded_scan(
    body: Callable[..., Any],
    init: Any,
    xs: Any,
    dim: Dimension,
    reverse: bool = False,
    late_captures: Callable[[Body], Mapping[Tensor, Tensor]] = lambda body: {},
) -> tuple[Any, Any, Any]:
    """Records a scan as one `Loop` op in the current graph, and returns the results of
    `scan_and_sum`: (carry [...], sums [...], stacks [dim, ...]).

    Args:
      body: see `scan_and_sum`, as for `init`, `xs`, `dim` and `reverse`.
      late_captures: returns the values of symbolic tensors that the recorded body captures.
    """
    init_tensors = tensors_of(init, label="carry")
    recorded_body, terms, outputs = record_iteration(body, init, xs, dim)
    num_sums = len(leaves(terms))
    # The results are the carry, the sums, and from this index on the stacked outputs.
    stack_start = len(init_tensors) + num_sums
    for result in recorded_body.results[stack_start:]:
        # Called only to raise ShapeError if the result has a dimension of this name.
        stacked_spec(result.spec, dim, Source.of_caller())
    # The body may use the name of `dim` too, as a nested loop does. Then the dimension has
    # another name within the op.
    loop_dim = Dimension(unused_dim_name(recorded_body, dim.name), dim.size)
    loop_inputs = [rename_dim(x, dim, loop_dim) for x in tensors_of(xs, label="xs")]
    values = late_captures(recorded_body)
    captures = [values.get(x, x) for x in recorded_body.captures]
    if not init_tensors and uses_index(recorded_body):
        # Devices may divide the iterations, and so they divide the indices as well.
        recorded_body = with_index_as_entry(recorded_body)
        loop_inputs.insert(0, apply(Range(loop_dim)))
    loop = Loop(
        recorded_body,
        num_carries=len(init_tensors),
        num_scanned=len(loop_inputs),
        num_sums=num_sums,
        dim=loop_dim,
        reverse=reverse,
    )
    results = apply_all(loop, *init_tensors, *loop_inputs, *captures)
    stacks = [rename_dim(y, loop_dim, dim) for y in results[stack_start:]]
    return pack_results(init, terms, outputs, [*results[:stack_start], *stacks])


def pack_results(
    init: Any, terms: Any, outputs: Any, tensors: Sequence[Tensor]
) -> tuple[Any, Any, Any]:
    """Returns the carry [...], sums [...] and stacks [dim, ...] of a scan in their nested
    structures.

    Args:
      init, terms, outputs: the structures.
      tensors: the carry, the sums, and the stacks.
    """
    remaining = iter(tensors)
    carry = pack_next(init, remaining)
    sums = pack_sums(terms, remaining)
    return carry, sums, pack_next(outputs, remaining)


def results_of(returned: Any, count: int) -> Any:
    """Returns the two results of the body of scan, or the three of the body of scan_and_sum.
    Raises PlanError if there are more or fewer.
    """
    if isinstance(returned, tuple) and len(returned) == count:
        return returned
    message = "the body of a scan returns two values: the next carry, and the outputs to stack."
    way_out = "Return (carry, None) to stack nothing."
    if count == 3:
        message = (
            "the body of scan_and_sum returns three values: the next carry, the terms to "
            "sum, and the outputs to stack."
        )
        way_out = "Return (carry, terms, None) to stack nothing."
    raise PlanError(explain_error(message, source=Source.of_caller(), way_out=way_out))


def widen_terms(terms: Any) -> list[Tensor]:
    """Returns the tensors [...] of the terms of one iteration. float16 and bfloat16 become
    float32, since a bfloat16 sum of ones would stop at 256. Raises DTypeError for bool.
    """
    tensors = tensors_of(terms, label="sum")
    for x in tensors:
        if x.dtype == "bool":
            raise DTypeError(
                explain_error(
                    "scan_and_sum sums numbers, not bool.",
                    tensor=repr(x),
                    source=Source.of_caller(),
                    way_out='Convert it: mtf.cast(x, "int32").',
                )
            )
    return [cast(x, accumulation_dtype(x.dtype)) for x in tensors]


def pack_sums(terms: Any, totals: Iterator[Tensor]) -> Any:
    """Returns the sums [...] in the nested structure of the terms.

    Args:
      terms: the terms of one iteration, whose data types the sums have.
      totals: an iterator whose next tensors are the sums, accumulated in wider types.
    """
    dtypes = [x.dtype for x in tensors_of(terms, label="sum")]
    return pack(terms, [cast(next(totals), dtype) for dtype in dtypes])
