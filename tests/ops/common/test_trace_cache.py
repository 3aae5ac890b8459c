"""Numbers that Python calls equal are different numbers: 0.0 and -0.0, and 1, 1.0 and True."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

MESHES = {"placed": None, "live": "spmd:cpu:2"}
# Functions of ones and of a zero: the result has the sign of the zero.
OF_A_ZERO = {
    "multiply": lambda x, zero: x * zero,
    "divide": lambda x, zero: zero / x,
    "full": lambda x, zero: mtf.full(x.mesh, x.shape, zero),
    "where": lambda x, zero: mtf.where(x > 0.0, zero, 1.0),
    "clip": lambda x, zero: mtf.clip(x, low=-1.0, high=zero),
    "pad": lambda x, zero: mtf.pad(x, "c", 1, 0, value=zero)["c", 0],
    "shift": lambda x, zero: mtf.shift(x, "c", 1, fill=zero)["c", 0],
    "added": lambda x, zero: mtf.full(x.mesh, "", zero) + mtf.full(x.mesh, "", zero),
}


@pytest.mark.sampled(8, each="name")
@pytest.mark.parametrize("name", OF_A_ZERO)
@pytest.mark.parametrize("runtime", MESHES)
@pytest.mark.parametrize("size", [4, 300_000])  # live meshes run large ops themselves
def test_the_sign_of_zero_is_kept_by_every_call(runtime, name, size):
    mesh = mtf.Mesh("x:2", "b:x", devices=MESHES[runtime])
    ones = mtf.function(lambda: mtf.ones(mesh, f"b:{size};c:2"), mesh=mesh)()
    function = OF_A_ZERO[name]
    recorded = mtf.function(function, mesh=mesh)
    both = mtf.function(lambda x: [function(x, 0.0), function(x, -0.0)], mesh=mesh)
    for run in (function, recorded):
        for zero in (0.0, -0.0, 0.0):
            y = run(ones, zero).numpy()
            assert not y.any() and (np.signbit(y) == np.signbit(zero)).all()
    assert [np.signbit(y.numpy()).all() for y in both(ones)] == [False, True]


def test_arguments_of_another_sign_or_type_are_traced_anew():
    mesh = mtf.Mesh("")
    x = mtf.ones(mesh, "b:2")
    scaled = mtf.function(lambda x, by: x * by[0], mesh=mesh)
    for by in (0.0, -0.0, 0j.real, np.float32(-0.0)):
        sign = np.signbit(scaled(x, (by,)).numpy()).all()
        assert sign == np.signbit(by)
    kind = mtf.function(lambda x, by: x * len(str(by)), mesh=mesh)
    assert [kind(x, by).numpy()[0] for by in (1, 1.0, True)] == [1, 3, 4]
