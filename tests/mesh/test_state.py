"""A state exists once for each value."""

from __future__ import annotations

import copy
import pickle

import pytest

from meshtf.mesh import OnStage, Partial, Replicated, Sharded

STATES = (Sharded("d"), Partial("sum"), OnStage(2), Replicated)


def test_equal_states_are_one_object():
    assert Sharded("d") is Sharded(dim="d")
    assert Partial(kind="sum") is Partial("sum")
    assert OnStage(2) is OnStage(coordinate=2)


def test_other_states_differ():
    assert len({*STATES, Partial("max"), OnStage(1), Sharded("e")}) == len(STATES) + 3


@pytest.mark.parametrize("state", STATES)
def test_copies_are_the_state_itself(state):
    assert copy.copy(state) is state
    assert copy.deepcopy(state) is state
    assert pickle.loads(pickle.dumps(state)) is state
