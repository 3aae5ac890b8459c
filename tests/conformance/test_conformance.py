"""Every op of the library, under every layout, against one device and against
TensorFlow's tape.
"""

from __future__ import annotations

import functools

import pytest

from meshtf.graph import EffectOp
from meshtf.testing import (
    check_export,
    check_program,
    check_sample,
    label,
    registered_ops,
)
from tests.support.subprocesses import Apart

OPS = [op for op in registered_ops() if op.conformance_samples]
SAMPLES = [
    pytest.param(op, i, id=f"{label(op)}-{i}")
    for op in OPS
    for i in range(len(op.conformance_samples))
]


# So many of the layouts are drawn for each mesh.
CHECK_PROGRAM = functools.partial(check_program, max_programs=4)


@pytest.fixture(scope="module")
def outside_of_cases():
    """Returns what runs a check in another process."""
    with Apart(tasks=24) as run:
        yield run


def test_every_op_has_samples():
    silent = [
        label(op)
        for op in registered_ops()
        if not op.conformance_samples and not issubclass(op, EffectOp)
    ]
    assert not silent, f"ops without samples: {silent}"


@pytest.mark.sampled(110)
@pytest.mark.slow
@pytest.mark.parametrize("op, index", SAMPLES)
def test_eager(op, index, seed, record):
    record("eager", check_sample(op, index, seed, max_layouts=3))


@pytest.mark.sampled(14)
@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=label)
def test_function(op, seed, record, outside_of_cases):
    record("mtf.function", outside_of_cases(CHECK_PROGRAM, op, seed))


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=label)
def test_export(op, seed, record, outside_of_cases):
    record("one StableHLO module", outside_of_cases(check_export, op, seed))
