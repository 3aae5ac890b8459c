"""Checks of the arguments of `mtf.gradients`.

    check_owners(ys)                          # raises PlanError
    cotangents = as_cotangents(ys, grad_ys)

The errors say which argument is wrong, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.graph.apply import current_executor
from meshtf.graph.arguments import as_tensor
from meshtf.graph.tensor import Tensor
from meshtf.names import Source, has_gradient
from meshtf.names.arguments import as_sequence


def check_owners(ys: Sequence[Tensor]) -> None:
    """Raises PlanError for a tensor that was recorded in another function, or in the body
    of a loop or branch whose recording has ended.
    """
    owners = set(with_outer(current_executor()))
    for y in ys:
        if y.sharded_value is None and y.node.owner not in owners:
            raise PlanError(
                explain_error(
                    "a recorded tensor is used outside of the function, or the body of "
                    "a loop or branch, that made it, so it has no gradient here.",
                    tensor=repr(y),
                    **{"made by": y.node.source},
                    way_out="Return it from that function or body.",
                )
            )


def as_cotangents(ys: Sequence[Tensor], grad_ys: Any) -> list[Tensor | None]:
    """Returns a user's `grad_ys` as a list of tensors and None.

    Raises:
      ArgumentError: an element is neither a tensor nor None.
      PlanError: there are more or fewer cotangents than ys.
    """
    cotangents = [
        None if dy is None else as_tensor("grad_ys", dy)
        for dy in as_sequence("grad_ys", grad_ys, "a list of tensors")
    ]
    if len(cotangents) != len(ys):
        raise PlanError(
            explain_error(
                f"there are {len(ys)} tensors, and {len(cotangents)} cotangents.",
                source=Source.of_caller(),
                way_out="Give one for each of ys, None where it is ones.",
            )
        )
    return cotangents


def check_cotangent(y: Tensor, dy: Tensor | None) -> None:
    """Checks a tensor to differentiate, and the cotangent of the tensor.

    Raises:
      PlanError: y has no gradient, as its dtype is neither floating nor complex.
      ShapeError: dy has other dimensions than y.
    """
    if not has_gradient(y.dtype):
        raise PlanError(
            explain_error(
                "only floating tensors have gradients.",
                tensor=repr(y),
                **{"made by": y.node.source},
            )
        )
    if dy is not None and set(dy.shape) != set(y.shape):
        raise ShapeError(
            explain_error(
                "a cotangent has the dimensions of its tensor, in any order.",
                tensor=repr(y.shape),
                cotangent=repr(dy.shape),
                **{"made by": y.node.source},
                way_out="Repeat it along names that it lacks: mtf.broadcast(dy, "
                "y.shape).",
            )
        )


def with_outer(executor: Any) -> Iterator[Any]:
    """Yields an executor and its outer executors: gradients in the body of a loop flow
    through nodes outside of the loop as well.
    """
    while executor is not None:
        yield executor
        executor = getattr(executor, "outer", None)
