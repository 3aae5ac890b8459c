"""Loops of a known number of iterations: scan, scan_and_sum.

    def layer(h, w):                                   # one traced body for a deep model
      return mtf.relu(mtf.einsum([h, w], "batch;d_out")), None
    h, _ = mtf.scan(layer, h, weights, "layers")        # weights[layers, d, d_out]

The carry (h above) is the tensors that an iteration passes to the next one. All devices run
one loop together, and the carry is sharded as the layout says. Inside of a mtf.function the
body is recorded once, as a graph (`Body`). Outside of one it runs in Python, op by op, so it
can be debugged. Random ops draw different numbers in each iteration, whether the seed is set
inside or outside of the loop.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Graph, Source, Tensor, current_executor, executing
from meshtf.graph.control_flow.stacking import stacked_spec
from meshtf.names import Dimension
from meshtf.names.arguments import as_bool, as_callable, as_dim, as_int
from meshtf.ops.common.batch_dimensions import index_in_batch
from meshtf.ops.control.nested_values import leaves, next_carry, pack, tensors_of
from meshtf.ops.control.seeds import alternatives, iteration
from meshtf.ops.control.stop_gradient import recompute, recomputed_function
from meshtf.ops.loops.pipelined_scan import pipelined_scan
from meshtf.ops.loops.recorded_scan import (
    pack_results,
    pack_sums,
    record_iteration,
    recorded_scan,
    results_of,
    widen_terms,
)
from meshtf.ops.shapes.stack import stack, unstack
from meshtf.ops.variables.fill import full

__all__ = ["scan", "scan_and_sum"]


def scan(
    body: Callable[..., tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    dim: str = "iterations",
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Returns the last carry, and the outputs of all iterations stacked along `dim`.

    It is like `jax.lax.scan`. It has a gradient: each iteration stores the intermediate
    tensors that the backward pass needs, or only its carry if the body is wrapped in
    `mtf.recompute`. The gradient of a tensor from outside that the body uses in every
    iteration, such as a weight of a recurrent network, is summed locally, and reduced over
    devices once, after the loop.

    Args:
      body: a function that takes the carry and one slice of `xs` (or None), and returns
        the next carry and the outputs to stack.
      init: the initial carry: tensors and None in any nesting.
      xs: the inputs: tensors with dimension `dim` in any nesting. Iteration i gets element
        i along `dim`, without this dimension.
      dim: the name of the dimension that is scanned over; it is the first dimension of
        stacked outputs.
      length: the number of iterations if there are no `xs`. If it is 0, the result is
        the initial carry and empty stacks.
      reverse: whether to start with the last element.

    Raises:
      ShapeError, DTypeError: the carry changes its names, sizes or data type (the order
        of names may change: it is restored); `xs` lack `dim`, or have several sizes of
        it.
      PlanError: the body writes to a variable, or the mesh is not known yet.
    """
    body = as_callable("body", body)

    recomputed = recomputed_function(body)
    body_of_iteration = recomputed.fn if recomputed else body

    def body_without_sums(carry: Any, x: Any) -> tuple[Any, Any, Any]:
        new_carry, outputs = results_of(body_of_iteration(carry, x), 2)
        return new_carry, None, outputs

    if recomputed:
        body_without_sums = recompute(body_without_sums, recomputed.stored)
    carry, _, stacks = scan_and_sum(
        body_without_sums, init, xs, dim=dim, length=length, reverse=reverse
    )
    return carry, stacks


def scan_and_sum(
    body: Callable[..., tuple[Any, Any, Any]],
    init: Any,
    xs: Any = None,
    dim: str = "iterations",
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any, Any]:
    """Returns the last carry, sums over all iterations, and the stacked outputs: see `scan`.

    The body returns the next carry, a term of each sum, and the outputs to stack. A sum
    could also be a carry, but then devices would reduce it in each iteration; this function
    reduces it once, after the loop. float16 and bfloat16 are accumulated in float32. Other
    arguments, and errors, are those of `scan`.
    """
    body = as_callable("body", body)
    dim = as_dim("dim", dim)
    scan_dim = Dimension(dim, _length(xs, dim, length))
    reverse = as_bool("reverse", reverse)
    if not scan_dim.size:
        return _empty_scan(body, init, xs, scan_dim)
    if isinstance(current_executor(), Graph):
        pipelined = pipelined_scan(body, init, xs, dim=scan_dim, reverse=reverse)
        if pipelined is not None:
            return pipelined
        return recorded_scan(body, init, xs, dim=scan_dim, reverse=reverse)
    return _eager_scan(body, init, xs, dim=scan_dim, reverse=reverse)


def _length(xs: Any, dim: str, length: int | None) -> int:
    """Returns the number of iterations of a scan with these arguments.

    Raises:
      ShapeError: `xs` and `length` do not determine it, or conflict.
    """
    lengths = set()
    if length is not None:
        lengths.add(as_int("length", length, least=0))
    for x in tensors_of(xs, label="xs"):
        if dim not in x.shape:
            raise _no_scan_dim(x, dim)
        lengths.add(x.shape[dim])
    if len(lengths) != 1:
        detail = "."
        if lengths:
            detail = f", not {sorted(lengths)}."
        raise ShapeError(
            explain_error(
                f"a scan needs one number of iterations{detail}",
                source=Source.of_caller(),
                way_out="Give xs with dimension dim=, or length=.",
            )
        )
    return lengths.pop()


def _no_scan_dim(x: Tensor, dim: str) -> ShapeError:
    """Returns the error of an input x of a scan that lacks the scanned dimension."""
    way_out = "Leave it out: use it in the body."
    if x.shape.names:
        way_out = f'Name it: mtf.scan(..., dim="{x.shape.names[0]}").'
    return ShapeError(
        explain_error(
            f'xs of a scan lack "{dim}", the dimension that it scans over.',
            tensor=repr(x.shape),
            source=Source.of_caller(),
            way_out=way_out,
        )
    )


def _eager_scan(
    body: Callable[..., Any], init: Any, xs: Any, dim: Dimension, reverse: bool
) -> tuple[Any, Any, Any]:
    """Returns the results of `scan_and_sum` for a loop that runs op by op."""
    slices_of_inputs = [unstack(x, dim.name) for x in tensors_of(xs, label="xs")]
    specs = [x.spec for x in tensors_of(init, label="carry")]
    indices = list(range(dim.size))
    carry = init
    terms_of_iterations = []  # nested structures, in the order of iterations
    outputs = {}  # nested structures by index along `dim`
    # Each iteration may have random ops of the same paths: their seeds differ by iteration.
    with alternatives() as alternative:
        for i in reversed(indices) if reverse else indices:
            inputs = pack(xs, [slices[i] for slices in slices_of_inputs])
            with alternative(), iteration(index_in_batch(dim, i)):
                returned = body(carry, inputs)
            new_carry, terms, outputs[i] = results_of(returned, 3)
            carry = next_carry(carry, new_carry, specs)
            terms_of_iterations.append(terms)
    wide_terms = [widen_terms(terms) for terms in terms_of_iterations]
    # zip(*...) goes from the terms of each iteration to the terms of each sum.
    totals = [functools.reduce(operator.add, column) for column in zip(*wide_terms)]
    sums = pack_sums(terms_of_iterations[0], iter(totals))
    flat_outputs = [tensors_of(outputs[i], label="result") for i in indices]
    stacks = [stack(list(entries), dim.name) for entries in zip(*flat_outputs)]
    return carry, sums, pack(outputs[0], stacks)


def _empty_scan(
    body: Callable[..., Any], init: Any, xs: Any, dim: Dimension
) -> tuple[Any, Any, Any]:
    """Returns the results of a scan without iterations: the initial carry, sums of zero, and
    empty stacks.

    The body is recorded to find the shapes of sums and stacks, and never runs.
    """
    init_tensors = tensors_of(init, label="carry")
    tensors = [*init_tensors, *tensors_of(xs, label="xs")]
    graph = current_executor()
    if not isinstance(graph, Graph):
        graph = Graph(tensors[0].mesh if tensors else None)
    with executing(graph):
        recorded_body, terms, outputs = record_iteration(body, init, xs, dim)
    specs = [result.spec for result in recorded_body.results]
    sums_start = len(init_tensors)
    stack_start = sums_start + len(leaves(terms))
    sum_specs = specs[sums_start:stack_start]
    source = Source.of_caller()
    stack_specs = [stacked_spec(spec, dim, source) for spec in specs[stack_start:]]
    mesh = recorded_body.graph.mesh
    zeros = []
    for spec in (*sum_specs, *stack_specs):
        zeros.append(full(mesh, spec.shape, value=0, dtype=spec.dtype))
    return pack_results(init, terms, outputs, [*init_tensors, *zeros])
