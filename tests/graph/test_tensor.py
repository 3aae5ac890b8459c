"""Methods of tensors: reductions by name, types, len, formats, placement, and operators that
are refused."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

X = np.arange(24, dtype="float32").reshape(4, 6)


@pytest.fixture(params=["", "b:x", "b:x;d:y"])
def x(request):
    return mtf.asarray(mtf.Mesh("x:2;y:2", request.param), X, "b;d")


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("dims, axis", [(None, None), ("d", 1), (["b", "d"], (0, 1))])
def test_reductions_by_name(x, kind, dims, axis):
    def reduced(x):
        return getattr(x, kind)(dims) if dims else getattr(x, kind)()

    expected = getattr(X, kind)(axis)
    for y in (reduced(x), mtf.function(reduced)(x)):
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)
    function = getattr(mtf, f"reduce_{kind}")
    dx, expected_dx = (
        mtf.gradients([mtf.reduce_sum(y * 3.0)], [x])[0].numpy()
        for y in (reduced(x), function(x, dims))
    )
    np.testing.assert_array_equal(dx, expected_dx)
    assert dx.any()


def test_types_and_sizes(x):
    assert x.astype("bfloat16").dtype == "bfloat16"
    assert x.ndim == 2
    assert x.sum().ndim == 0
    v = mtf.Variable(x.mesh, "b:4;d:6", "ones", "v")
    assert (v.ndim, v.astype("int32").dtype, float(v.sum())) == (2, "int32", 24)


def test_len_counts_the_only_dimension(x):
    assert len(x["b", 0]) == 6
    for y in (x, x.sum()):
        with pytest.raises(mtf.ArgumentError, match=r"(?s)which dimension.*x.shape\["):
            len(y)


def test_formats_of_scalars(x):
    loss = x.mean()
    assert f"{loss:.3f}" == "11.500"
    assert f"{loss.astype('bfloat16'):5.1f}" == " 11.5"
    assert f"{x.astype('int32').max():03d}" == "023"
    assert f"{loss}" == str(loss)
    with pytest.raises(mtf.ArgumentError, match=r"(?s)'.3f' is for a scalar.*x.mean()"):
        f"{x:.3f}"

    def formatted(x):
        return f"{x.mean():.3f}"

    with pytest.raises(mtf.PlanError, match="a recorded tensor has no value yet"):
        mtf.function(formatted)(x)


def test_placements(x):
    states = x.mesh.states(x.placement)
    assert x.placement == x.sharded_value.placement
    assert set(states.values()) <= {"b", "d", ""}
    assert x.mesh.states(x.mesh.replicated) == {"x": "", "y": ""}

    def placement(x):
        return x.placement

    with pytest.raises(mtf.PlanError, match="(?s)no placement yet.*mtf.explain"):
        mtf.function(placement)(x)


@pytest.mark.parametrize(
    "product", [lambda x: x @ x, lambda x: x @ X, lambda x: 2 @ x, lambda x: X @ x]
)
def test_matmul_does_not_say_what_is_summed(x, product):
    with pytest.raises(
        mtf.ArgumentError, match=r"(?s)does not say.*mtf.einsum.*matmul"
    ):
        product(x)


def test_names_need_no_transposing(x):
    with pytest.raises(AttributeError, match="(?s)in any order.*mtf.transpose"):
        _ = x.T
    assert not hasattr(x, "T")


def test_sizes_have_names(x):
    with pytest.raises(mtf.ArgumentError, match="names, not indices"):
        x.shape[0]


def test_iteration_and_numpy_stay_as_they_are(x):
    np.testing.assert_array_equal(np.asarray(x), X)
    assert bool(x.max() > 3)
    with pytest.raises(TypeError, match="mtf.unstack"):
        list(x)


@pytest.mark.parametrize("scalar", [float, int, bool])
def test_python_scalars_are_of_one_element(x, scalar):
    assert scalar(x.max()) == scalar(23.0)
    with pytest.raises(mtf.ArgumentError, match=r"(?s)one element.*test_tensor\.py"):
        scalar(x)
