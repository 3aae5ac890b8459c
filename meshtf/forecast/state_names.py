"""What a forecast says of states along mesh axes, and of shapes."""

from __future__ import annotations

from meshtf.graph import Spec
from meshtf.mesh import OnStage, Partial, Sharded, State


def has_shape_of(spec: Spec | None, other: Spec) -> bool:
    """Returns whether a tensor has the dimensions of another, in any order."""
    return spec is not None and set(spec.shape) == set(other.shape)


def state_name(state: State) -> str:
    """Returns a dimension, "at N" of a stage, a kind of partial sum, or "whole"."""
    if isinstance(state, Sharded):
        return state.dim
    if isinstance(state, OnStage):
        return f"at {state.coordinate}"
    return state.kind if isinstance(state, Partial) else "whole"
