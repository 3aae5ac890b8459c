"""Attributes of the tensors of other libraries: the error says what to write."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest

import meshtf as mtf
from meshtf.names import other_libraries

WAYS_OUT = {
    "reshape": 'mtf.reshape(x, "rows:8")',
    "view": 'mtf.reshape(x, "rows:8")',
    "transpose": 'mtf.transpose(x, "d;batch")',
    "T": "a tensor has no T: operations find dimensions by name, in any order",
    "matmul": "mtf.matmul(x, ...)",
    "dot": 'mtf.einsum([x, y], "batch;d_ff")',
    "exp": "mtf.exp(x, ...)",
    "any": "mtf.reduce_any(x, ...)",
    "erf": "mtf.math.erf(x, ...)",
    "backward": "mtf.gradients([loss], variables)",
    "detach": "mtf.stop_gradient(x)",
    "item": "x.numpy()",
    "size": 'x.shape["batch"]',
    "squeeze": 'x["batch", 0]',
}


def tensor():
    return mtf.asarray(mtf.Mesh(""), np.ones((2, 4), "float32"), "batch; d")


@pytest.mark.parametrize("name", WAYS_OUT)
def test_the_error_says_what_to_write(name):
    message = re.escape(WAYS_OUT[name])
    with pytest.raises(AttributeError, match=message) as caught:
        getattr(tensor(), name)
    assert "test_other_libraries.py:" in str(caught.value)
    assert f"mtf.Tensor.{name}" in str(caught.value)


def test_variables_have_the_same_errors_but_do_change():
    v = mtf.Variable(mtf.Mesh(""), "batch:2; d:4", "ones", "v")
    with pytest.raises(AttributeError, match="a variable has no reshape"):
        v.reshape(8)
    with pytest.raises(AttributeError, match="'Variable' object has no attribute"):
        v.clone()


def test_other_names_are_unknown_as_ever():
    x = tensor()
    assert not hasattr(x, "zzz") and not hasattr(x, "__array_interface__")
    with pytest.raises(AttributeError) as caught:
        x.men()
    assert (
        caught.value.name == "men" and caught.value.obj is x
    )  # Python suggests `mean`


def test_what_is_advised_exists():
    """No attribute of the table is one that tensors have, and every function named exists."""
    x = tensor()
    for name in other_libraries._WAYS_OUT:
        assert not hasattr(x, name), name
        way_out = str(other_libraries.missing_attribute(name, x.shape, False))
        for path in re.findall(r"mtf\.(\w+)", way_out.split("\n")[-1]):
            assert hasattr(mtf, path), path


def test_scalars():
    loss = tensor().mean()
    with pytest.raises(AttributeError, match=r"float\(x\)"):
        loss.item()
    assert copy.copy(loss) is not None
