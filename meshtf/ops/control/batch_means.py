"""Means over all microbatches of a batch: what the weighted loss of a microbatch is divided by.

    weight = mean_over_microbatches(mtf.reduce_sum(weights))    # equal in all microbatches
    loss = mtf.reduce_sum(losses * weights) / weight

The mean of such losses over the microbatches is the loss of the batch, since a microbatch
counts by its weight. The first microbatch needs the weights of all others. So they are
computed before: in a function that is recorded, by a loop with only those ops of a microbatch
that the weights depend on; in eager mode, by a forward pass.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from meshtf.errors import DTypeError, MicrobatchWarning, PlanError, explain_error
from meshtf.graph import (
    Body,
    Graph,
    Loop,
    Node,
    Source,
    Tensor,
    apply_all,
    context,
    current,
    current_executor,
)
from meshtf.graph.arguments import as_tensor
from meshtf.graph.control_flow.body import (
    BodyArgument,
    BodyGraph,
    dependencies,
    used_tensors,
)
from meshtf.graph.control_flow.scan_dimension import unused_dim_name
from meshtf.graph.op_kinds import GradientBarrier, ReadOp
from meshtf.graph.recorder import latest_version
from meshtf.names import Dimension, accumulation_dtype, has_gradient, is_floating
from meshtf.ops.control.microbatch import MICROBATCH
from meshtf.ops.control.nested_values import ITERATION
from meshtf.ops.elementwise.add_n import add_n
from meshtf.ops.elementwise.binary_op import Binary
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.shapes.reshape import rename_dim

_DIVISIONS = ("divide", "divide_no_nan")


def mean_over_microbatches(x: Tensor) -> Tensor:
    """Returns the mean of x [...] over all microbatches of the batch, in the shape of x; in
    code that has the entire batch, x itself.

    It is for what a microbatch must know about the others, such as the weight of the whole
    batch, by which `mtf.layers.weighted_mean` divides. What x depends on is computed once
    more, before the first microbatch: so x should depend on inputs, and not on the model.

    Args:
      x: a tensor of floats that all microbatches compute.

    Raises:
      DTypeError: x is not of floats.
      PlanError: x depends on what an inner loop or branch computes, or on another such mean.
    """
    x = as_tensor("x", x)
    if not is_floating(x.dtype):
        raise DTypeError(
            explain_error(
                f"a mean over microbatches is of floats, not of {x.dtype}.",
                tensor=repr(x),
                source=Source.of_caller(),
                way_out='Convert it: mtf.cast(x, "float32").',
            )
        )
    means: BatchMeans | None = current().batch_means
    if means is None:
        return x
    return cast(means.of(cast(x, accumulation_dtype(x.dtype))), x.dtype)


class BatchMeans(Protocol):
    """The means that the microbatches of a batch ask for: `Context.batch_means`."""

    def of(self, x: Tensor) -> Tensor:
        """Returns the mean over all microbatches of x, float32 or wider."""


class RecordedMeans:
    """The means that the recorded body of a microbatch asks for. It is made while the body is
    recorded.

    Attributes:
      graph: the graph of the body.
      terms: {symbolic tensor that stands for a mean: the term of a microbatch}.
      is_complete: whether no further mean can be asked for.
    """

    def __init__(self) -> None:
        graph = current_executor()
        assert isinstance(graph, BodyGraph)
        self.graph = graph
        self.terms: dict[Tensor, Tensor] = {}
        self.is_complete = False

    def of(self, x: Tensor) -> Tensor:
        """Returns a symbolic tensor for the mean of x; x itself if all microbatches compute
        the same.
        """
        arguments = [y for y in _ancestors(x, self.graph) if _is_argument(y)]
        if not arguments:
            return x
        if any(y.node.owner is not self.graph for y in arguments):
            raise _unknown_in_advance(
                x, "depends on what a loop or branch in the microbatch computes"
            )
        if self.is_complete:
            raise _unknown_in_advance(x, "is computed again in the backward pass")
        # It has the owner of tensors that the body captures, so it becomes a capture.
        node = Node(
            BodyArgument(x.spec),
            inputs=(),
            specs=(x.spec,),
            mesh=self.graph.mesh,
            source=Source.of_caller(),
            context=current(),
            owner=self.graph.outer,
        )
        (mean,) = node.outputs
        self.terms[mean] = x
        return mean

    def used_by(self, bodies: Sequence[Body]) -> list[Tensor]:
        """Returns the symbolic tensors of the means that bodies capture."""
        self.is_complete = True
        captures = {x for body in bodies for x in body.captures}
        return [mean for mean in self.terms if mean in captures]

    def body(self, results: Sequence[Tensor], arguments: Sequence[Tensor]) -> Body:
        """Returns the body that computes results, of the nodes of the body of a microbatch.

        Args:
          results: terms of means, or other tensors of the body.
          arguments: the arguments of the body; the new one has those that it needs.
        """
        needed: dict[Tensor, None] = {}
        for x in results:
            needed.update(_ancestors(x, self.graph))
        # Nodes of inner loops that depend on nothing in them are nodes of the new body.
        nodes = {x.node for x in needed if not _is_argument(x)}
        body = Body.of(
            self.graph,
            arguments=[x for x in arguments if x in needed],
            nodes=sorted(nodes, key=lambda node: node.serial),
            results=results,
        )
        if any(x in self.terms for x in body.captures):
            raise _unknown_in_advance(results[0], "depends on another such mean")
        return body

    def warn_of_divisors(self, loss: Tensor) -> None:
        """Warns if a loss is divided by a scalar of the microbatch, such as a sum of weights.

        Args:
          loss: the loss of the microbatch, a tensor of the body.
        """
        for x in _ancestors(loss, self.graph):
            op = x.node.op
            if not isinstance(op, Binary) or op.fn not in _DIVISIONS:
                continue
            divisor = x.node.inputs[1]
            if divisor.shape.names or not self._depends_on_inputs_only(divisor):
                continue
            warnings.warn(
                explain_error(
                    "the loss of a microbatch is divided by a sum over its own examples: the "
                    "mean over microbatches is the loss of the batch only if all sums are "
                    "equal.",
                    source=x.node.source,
                    way_out="Use mtf.layers.weighted_mean(losses, weights), or divide by "
                    "mtf.mean_over_microbatches(weight).",
                ),
                MicrobatchWarning,
                stacklevel=2,
            )

    def _depends_on_inputs_only(self, x: Tensor) -> bool:
        """Returns whether x depends on arguments of the body, and on no captures."""
        ancestors = _ancestors(x, self.graph)
        nodes = [y.node for y in ancestors if not _is_argument(y)]
        has_arguments = len(nodes) < len(ancestors)
        return has_arguments and all(y in ancestors for y in used_tensors(nodes, []))


def recorded_means(
    means: RecordedMeans, body: Body, inputs: Sequence[Tensor], microbatches: int
) -> dict[Tensor, Tensor]:
    """Returns {symbolic tensor: the mean} for the means that a recorded body captures.

    Args:
      means: the means that the body asks for.
      body: the body of a microbatch; its last arguments are entries of the inputs.
      inputs: what microbatches are made of, `[..., microbatch, ...]`.
      microbatches: the number of microbatches.
    """
    symbols = means.used_by([body])
    if not symbols:
        return {}
    arguments = body.arguments[-len(inputs) :]
    body_of_terms = means.body([means.terms[x] for x in symbols], arguments)
    stacked = dict(zip(arguments, inputs))
    xs = [stacked[x] for x in body_of_terms.arguments]
    dim = Dimension(MICROBATCH, microbatches)
    sums, _ = stack_and_sum(body_of_terms, xs, dim)
    return dict(zip(symbols, means_of_sums(sums, microbatches)))


def means_of_sums(sums: Sequence[Tensor], microbatches: int) -> list[Tensor]:
    """Returns means [...] over microbatches from sums [...] over them. If these are
    microbatches of a microbatch, the means are those of the whole batch.
    """
    return [mean_over_microbatches(x * (1.0 / microbatches)) for x in sums]


def stack_and_sum(
    body: Body, xs: Sequence[Tensor], dim: Dimension, num_sums: int | None = None
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Records a loop over a body, and returns sums [...] and stacks [dim, ...] of the body's
    results.

    Args:
      body: a body whose arguments are an entry of each input. Its results are the terms of
        sums, and then what is stacked.
      xs: the inputs, with dimension `dim`.
      dim: the dimension that the loop scans.
      num_sums: the number of sums; None: all results are.
    """
    if num_sums is None:
        num_sums = len(body.results)
    index = body.graph.new_argument(ITERATION)
    body = dataclasses.replace(body, arguments=(index, *body.arguments))
    loop_dim = Dimension(unused_dim_name(body, dim.name), dim.size)
    loop = Loop(
        body,
        num_carries=0,
        num_scanned=len(xs),
        num_sums=num_sums,
        dim=loop_dim,
    )
    loop_inputs = [rename_dim(x, dim, loop_dim) for x in xs]
    results = apply_all(loop, *loop_inputs, *body.captures)
    stacks = [rename_dim(y, loop_dim, dim) for y in results[num_sums:]]
    return results[:num_sums], stacks


class EagerMeans:
    """The means of a batch in eager mode.

    Args:
      run: computes a microbatch, by its index.
      microbatches: the number of microbatches.

    Attributes:
      caller: the context of the caller, in which microbatches are computed.
    """

    def __init__(self, run: Callable[[int], Any], microbatches: int) -> None:
        self._run = run
        self._microbatches = microbatches
        self.caller = current()

    @functools.cached_property
    def values(self) -> list[Tensor]:
        """The means, in the order in which a microbatch asks for them. The first that asks
        has all microbatches computed.
        """
        terms = []
        for index in range(self._microbatches):
            collected = _Terms()
            # The same ops draw random numbers again afterwards.
            changes = {"batch_means": collected, "random_paths": set()}
            with context(**{**vars(self.caller), **changes}):
                self._run(index)
            terms.append(collected.terms)
        sums = [add_n(list(terms_of_mean)) for terms_of_mean in zip(*terms)]
        with context(**vars(self.caller)):
            return means_of_sums(sums, self._microbatches)

    def again(self) -> BatchMeans:
        """Returns the means for one microbatch."""
        return _Values(self)


class _Terms:
    """Collects the terms of means that a microbatch in eager mode asks for."""

    def __init__(self) -> None:
        self.terms: list[Tensor] = []

    def of(self, x: Tensor) -> Tensor:
        """Returns x, in place of the mean that is not known yet."""
        self.terms.append(x)
        return x


class _Values:
    """Gives means in the order in which a microbatch asks for them."""

    def __init__(self, means: EagerMeans) -> None:
        self._means = means
        self._num_given = 0

    def of(self, x: Tensor) -> Tensor:
        """Returns the next mean."""
        values = self._means.values
        if self._num_given == len(values):
            raise _unknown_in_advance(x, "is computed again in the backward pass")
        self._num_given += 1
        return values[self._num_given - 1]


def stores_of(x: Tensor) -> list[Any]:
    """Returns the variables and arguments of a function that x [...] has gradients to."""
    stores = []
    visited = set()
    to_visit = [x]
    while to_visit:
        y = to_visit.pop()
        node = latest_version(y.node)
        if node in visited or not has_gradient(y.dtype):
            continue
        visited.add(node)
        if isinstance(node.op, ReadOp):
            stores.append(node.op.store)
        elif not isinstance(node.op, GradientBarrier):
            to_visit.extend(node.inputs)
    return stores


def _ancestors(x: Tensor, graph: Graph) -> dict[Tensor, None]:
    """Returns x and the tensors that it depends on, of a graph and of graphs in it."""
    ancestors: dict[Tensor, None] = {}
    to_visit = [x]
    while to_visit:
        y = to_visit.pop()
        if y in ancestors or not is_within(y.node.owner, graph):
            continue
        ancestors[y] = None
        to_visit.extend(dependencies(latest_version(y.node)))
    return ancestors


def is_within(owner: Any, graph: Any) -> bool:
    """Returns whether the owner of a node is a graph, or the graph of a body in it."""
    while owner is not None and owner is not graph:
        owner = getattr(owner, "outer", None)
    return owner is graph


def _is_argument(x: Tensor) -> bool:
    """Returns whether x is an argument of a body."""
    return isinstance(x.node.op, BodyArgument)


def _unknown_in_advance(x: Tensor, why: str) -> PlanError:
    """Returns the error of a mean that cannot be computed before the first microbatch."""
    return PlanError(
        explain_error(
            f"a weight, of which microbatches need the mean over the batch, {why}.",
            tensor=repr(x),
            source=Source.of_caller(),
            way_out="Sum losses and weights apart, return both sums from the loop, and divide "
            "after it: total / mtf.mean_over_microbatches(weight).",
        )
    )
