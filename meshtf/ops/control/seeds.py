"""Seeds in force: what a random op's numbers depend on besides its name and their
place.

    with mtf.seed(run_seed, step):         # the step as an argument of the mtf.function
      h = mtf.dropout(h, 0.1)              # seeds run_seed and step, salt hash("encoder/dropout")

Names, never counters: adding a layer changes no other layer's numbers, and a block that
is computed again finds its own. So two random ops of one path under one seed are an
error.

In a loop's body the numbers of the iterations of all loops around are part of the key
as well, wherever the seed is set, so each iteration draws its own. Of the branches of a
`cond` only one runs: both may have random ops of one path, which draw the same numbers.
"""

from __future__ import annotations

import contextlib
import operator
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Source, Tensor, context, current
from meshtf.mesh import Mesh
from meshtf.names.arguments import as_text
from meshtf.ops.common.batch_dimensions import UnknownIndex
from meshtf.ops.variables.fill import full
from meshtf.ops.variables.read_write import number, path_hash

Seed: TypeAlias = int | Tensor | Sequence[int | Tensor] | None


@contextlib.contextmanager
def seed(*values: Any) -> Iterator[None]:
    """Sets the seeds of the random ops in a `with` block: ints, or scalar int32
    tensors.

    Raises:
      PlanError: no value, or one that is no 32-bit integer.
    """
    if not values:
        raise PlanError(
            "mtf.seed() needs at least one value, such as mtf.seed(run_seed, step)."
        )
    with context(seeds=tuple(map(_checked, values)), seeded=set()):
        yield


def _checked(value: Any) -> Any:
    if not isinstance(value, Tensor) and hasattr(value, "tensor"):
        value = value.tensor()  # a variable, such as a step counter
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
        number = operator.index(value)
    except TypeError:
        raise PlanError(
            f"a seed is an integer or a scalar int32 tensor, not {value!r}."
        ) from None
    if not -(2**31) <= number < 2**32:
        raise PlanError(
            explain_error(
                f"the seed {number} does not fit in 32 bits.",
                way_out="Give two: mtf.seed(value >> 32, value & 0xffffffff).",
            )
        )
    return number - 2**32 if number >= 2**31 else number


def seeds_of(mesh: Mesh | None, seed: Seed, name: str) -> list[Tensor]:
    """Returns the inputs of a random op: a hash of its path of names, seeds, and
    iterations.

    Path and iterations are inputs like the seeds, so that ops of one shape are equal
    and traced once.
    """
    as_text("name", name)
    path = "/".join((*current().path, name))
    if seed is None:
        values = _in_force(path)
    else:
        values = tuple(
            _checked(v) for v in (seed if isinstance(seed, (tuple, list)) else (seed,))
        )
    salt = path_hash(mesh, _checked(zlib.crc32(path.encode())))
    return [
        salt,
        *(v if isinstance(v, Tensor) else full(mesh, "", v, "int32") for v in values),
        *(
            i if isinstance(i, Tensor) else number(mesh, i, "int32")
            for i in iterations()
        ),
    ]


def iterations() -> tuple[Any, ...]:
    """Returns the numbers of the iterations of all loops around, outer first.

    Raises:
      PlanError: one of them is not known: see `batch_dims.index_in_batch`.
    """
    around = current().iterations
    for index in around:
        if isinstance(index, UnknownIndex):
            raise index.error
    return around


@contextlib.contextmanager
def iteration(index: Any) -> Iterator[None]:
    """Says that what is made within is made in iteration `index` of a loop: int32,
    maybe a tensor.
    """
    with context(iterations=(*current().iterations, index)):
        yield


@contextlib.contextmanager
def alternatives() -> Iterator[Callable[[], contextlib.AbstractContextManager[Any]]]:
    """Gives what makes a context for each of several alternatives, such as the branches
    of a cond.

    Within each of them random ops count as met that were met before all of them. After
    all, those count that were met in any of them.
    """
    seeded = current().seeded
    before = None if seeded is None else set(seeded)
    found: list[set[Any]] = []

    def one() -> contextlib.AbstractContextManager[Any]:
        if before is None:
            return contextlib.nullcontext()
        found.append(set(before))
        return context(seeded=found[-1])

    yield one
    if seeded is not None:
        seeded.update(*found)


def _in_force(path: str) -> tuple[Any, ...]:
    """Returns the seeds of `with mtf.seed(...)`, once for each path."""
    seeds, seeded = current().seeds, current().seeded
    if seeds is None:
        raise PlanError(
            explain_error(
                f"{path!r} needs a seed, and none is in force.",
                **{"from": Source.of_caller()},
                way_out="Write it inside of `with mtf.seed(run_seed, step):` (inside "
                "of the mtf.function, with the step as an argument), or pass seed=.",
            )
        )
    met = (
        len(current().iterations),
        path,
    )  # ops in loops and outside of them draw other numbers
    if met in seeded:
        raise PlanError(
            explain_error(
                f"two random ops are called {path!r} under one seed: they would draw "
                "the same numbers.",
                **{"from": Source.of_caller()},
                way_out="Give one of them another name=, or put each into its own "
                "`with mtf.seed(run_seed, step, i):`.",
            )
        )
    seeded.add(met)
    return seeds
