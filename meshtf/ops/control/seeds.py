"""Seeds of random ops: `mtf.seed`, and the other inputs of a random op's key.

    with mtf.seed(run_seed, step):         # the step is an argument of the mtf.function
      h = mtf.dropout(h, 0.1)              # key: hash("encoder/dropout"), run_seed, step

A random op's numbers depend on the active seeds, on a hash of its path, and on the global
index of each element. The path is the names of the enclosing modules and of the op, such as
"encoder/dropout". There is no counter: adding a layer changes the numbers of no other layer,
and a recomputed block draws the same numbers. So two random ops of one path under one seed
are an error.

In the body of a loop the key includes the iterations of all enclosing loops, wherever
the seed is set, so each iteration draws different numbers. Only one branch of a `cond`
runs: both branches may have random ops of one path, which draw the same numbers.

A gradient rule may draw the numbers of the forward pass again, as `ForwardContext` has all
that they depend on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Context, ReadOp, Source, Tensor, context, current
from meshtf.graph.control_flow.body import BodyArgument
from meshtf.mesh import Mesh
from meshtf.names.arguments import as_text
from meshtf.ops.common.batch_dimensions import MicrobatchState, UnknownIndex
from meshtf.ops.variables.fill import full
from meshtf.ops.variables.read_write import path_hash, scalar_input

Seed: TypeAlias = int | Tensor | Sequence[int | Tensor] | None
# The attributes of the context that decide which random numbers are drawn, which variables
# are read, and which weights means divide by. Gradient rules have them from the forward
# pass, and all others from the backward pass.
CAPTURED = (
    "path",
    "seeds",
    "random_paths",
    "iterations",
    "microbatches",
    "batch_means",
    "random_indices",
    "layer_entries",
)


@contextlib.contextmanager
def seed(*values: Any) -> Iterator[None]:
    """Sets the seeds of the random ops in a `with` block.

    Args:
      *values: ints, or scalar int32 tensors or variables.

    Raises:
      PlanError: there is no value, or a value is no 32-bit integer.
    """
    if not values:
        raise PlanError(
            "mtf.seed() needs at least one value, such as mtf.seed(run_seed, step)."
        )
    with context(seeds=tuple(map(_as_seed, values)), random_paths=set()):
        yield


def _as_seed(value: Any) -> Any:
    """Returns a seed as an int in the range of int32, or as a scalar int32 tensor.

    Raises:
      PlanError: `value` is neither, or does not fit in 32 bits.
    """
    if not isinstance(value, Tensor) and hasattr(value, "tensor"):
        # A variable, such as a step counter.
        value = value.tensor()
    if isinstance(value, Tensor):
        if value.shape.names or value.dtype != "int32":
            raise PlanError(
                explain_error(
                    "a seed is a scalar of int32.",
                    tensor=repr(value),
                    way_out='Convert it: mtf.cast(x, "int32").',
                )
            )
        return value
    try:
        integer = operator.index(value)
    except TypeError:
        raise PlanError(
            f"a seed is an integer or a scalar int32 tensor, not {value!r}."
        ) from None
    if not -(2**31) <= integer < 2**32:
        raise PlanError(
            explain_error(
                f"the seed {integer} does not fit in 32 bits.",
                way_out="Give two: mtf.seed(value >> 32, value & 0xffffffff).",
            )
        )
    if integer >= 2**31:
        # The int32 of the same bits.
        return integer - 2**32
    return integer


def seeds_of(mesh: Mesh | None, seed: Seed, name: str) -> list[Tensor]:
    """Returns the key of a random op: the op's inputs, each int32 [].

    The inputs are a hash of the op's path, the seeds, and the iteration indices of all
    enclosing loops. Path and iterations are inputs like the seeds, not attributes of the op,
    so that ops of one shape are equal and traced once.

    Args:
      mesh: the mesh of the op.
      seed: one seed or several; None: the seeds of the enclosing `mtf.seed`.
      name: the name of the op, which is the last component of its path.

    Raises:
      PlanError: an enclosing module has no name yet.
    """
    name = as_text("name", name)
    path = "/".join((*_module_names(), name))
    if seed is None:
        seeds = _active_seeds(path)
    elif isinstance(seed, (tuple, list)):
        seeds = tuple(map(_as_seed, seed))
    else:
        seeds = (_as_seed(seed),)
    hash_of_path = _as_seed(zlib.crc32(path.encode()))
    inputs = [path_hash(mesh, hash_of_path)]
    for value in seeds:
        if not isinstance(value, Tensor):
            value = full(mesh, shape="", value=value, dtype="int32")
        inputs.append(value)
    for index in iterations():
        inputs.append(scalar_input(mesh, index, "int32"))
    return inputs


def _module_names() -> list[str]:
    """Returns the names of the enclosing modules. Raises PlanError if one is unknown."""
    names = []
    for component in current().path:
        # Otherwise a `runtime.module_paths.PendingName`, whose name comes with its attribute.
        name = component if isinstance(component, str) else component.name
        if name is None:
            raise PlanError(
                explain_error(
                    "a random op is in a module that has no name yet, and its numbers "
                    "depend on the names of the modules.",
                    **{"made by": component.source},
                    way_out='Pass name="..." to the module, or draw the numbers after its '
                    "constructor; variables may have any initializer.",
                )
            )
        names.append(name)
    return names


def iterations() -> tuple[Any, ...]:
    """Returns the iteration indices of all enclosing loops, from the outermost.

    Raises:
      PlanError: an index is ambiguous: see `batch_dimensions.index_in_batch`.
    """
    indices = current().iterations
    for index in indices:
        if isinstance(index, UnknownIndex):
            raise index.error
    return indices


@contextlib.contextmanager
def iteration(index: Any) -> Iterator[None]:
    """Declares that ops in a `with` block belong to iteration `index` of a loop.

    Args:
      index: an int, a scalar int32 tensor, or an `UnknownIndex`, for which a random op
        raises an error.
    """
    with context(iterations=(*current().iterations, index)):
        yield


@contextlib.contextmanager
def alternatives() -> Iterator[Callable[[], contextlib.AbstractContextManager[Any]]]:
    """Yields a function that returns a new context for each of several alternatives.

        with alternatives() as alternative:
          with alternative():
            x = then()
          with alternative():             # may have random ops of the same paths as `then`
            y = otherwise()

    Alternatives are the branches of a cond, or the iterations of a loop. Each starts with
    the paths that were used before the outer `with` block. After this block, the paths of
    all alternatives count as used.
    """
    used_paths = current().random_paths
    no_seed_is_set = used_paths is None
    if no_seed_is_set:
        yield contextlib.nullcontext
        return
    paths_before = set(used_paths)
    paths_of_alternatives: list[set[Any]] = []

    def alternative() -> contextlib.AbstractContextManager[Any]:
        paths = set(paths_before)
        paths_of_alternatives.append(paths)
        return context(random_paths=paths)

    yield alternative
    used_paths.update(*paths_of_alternatives)


def _active_seeds(path: str) -> tuple[Any, ...]:
    """Returns the seeds of the enclosing `with mtf.seed(...)`, and marks the path as used.

    Raises:
      PlanError: there are no seeds, or another random op of this path has used them.
    """
    seeds = current().seeds
    used_paths = current().random_paths
    if seeds is None:
        raise PlanError(
            explain_error(
                f"{path!r} needs a seed, and there is none.",
                source=Source.of_caller(),
                way_out="Write it inside of `with mtf.seed(run_seed, step):` (inside "
                "of the mtf.function, with the step as an argument), or pass seed=.",
            )
        )
    # In a loop a path draws different numbers than outside, so both may be used.
    path_at_depth = (len(current().iterations), path)
    if path_at_depth in used_paths:
        raise PlanError(
            explain_error(
                f"two random ops are called {path!r} under one seed: they would draw "
                "the same numbers.",
                source=Source.of_caller(),
                way_out="Give one of them another name=, or put each into its own "
                "`with mtf.seed(run_seed, step, i):`.",
            )
        )
    used_paths.add(path_at_depth)
    return seeds


@dataclasses.dataclass(frozen=True)
class ForwardContext:
    """The context in which a function was called, for its custom gradient rule.

    A rule may run code of the function again, or draw the function's random numbers. What
    these depend on is captured here as one value.

    Attributes:
      context: the context.
      drawn_paths: the paths of the random ops that drew numbers in the function or in its
        rule; the rule may draw these again.
    """

    context: Context
    drawn_paths: set[Any]

    @classmethod
    def after_call(cls, paths_before: Collection[Any]) -> ForwardContext:
        """Returns the context after a call of a function.

        Args:
          paths_before: the attribute `random_paths` of the context before the call.
        """
        caller = current()
        if caller.microbatches is not None:
            # Later code may make dimensions of the batch that are ambiguous.
            state = caller.microbatches
            state = MicrobatchState(state.microbatches, dict(state.digits_by_dim))
            caller = dataclasses.replace(caller, microbatches=state)
        return cls(caller, set(caller.random_paths or ()).difference(paths_before))

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Sets what random ops and variables take from the context of the call, for a `with`
        block of the gradient rule. If no seed was set, the seeds stay those of the block.
        """
        changes = {name: getattr(self.context, name) for name in CAPTURED}
        used_paths = self.context.random_paths
        if used_paths is None:
            changes["seeds"] = current().seeds
            changes["random_paths"] = current().random_paths
            with context(**changes):
                yield
            return
        paths_of_others = used_paths - self.drawn_paths
        paths = set(paths_of_others)
        with context(**{**changes, "random_paths": paths}):
            yield
        self.drawn_paths.update(paths - paths_of_others)
        used_paths.update(paths)

    @property
    def computed_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that random ops of the rule may read, and that were computed: seeds,
        and indices of loops and microbatches.
        """
        values = [*(self.context.seeds or ()), *self.context.iterations]
        if self.context.microbatches is not None:
            values += self.context.microbatches.indices
        return tuple(
            x
            for x in values
            if isinstance(x, Tensor)
            and not isinstance(x.node.op, BodyArgument | ReadOp)
        )
