"""Constructors and functions name arguments that are missing, unknown or too many, and the
user's line.
"""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest

import meshtf as mtf


class Net(mtf.Module):
    def __init__(self, mesh, width=4):
        super().__init__()
        self.width = len(width) if width == 0 else width


CALLS = {
    "variable": (
        lambda mesh: mtf.Variable(mesh, "a:4"),
        r"Variable: missing .* 'initializer'.*takes +mesh, shape, initializer, name=None",
    ),
    "layer": (
        lambda mesh: mtf.layers.Dense(mesh, "d:8"),
        r"Dense: missing .* 'new_dims'.*takes +mesh, reduced_dims, new_dims,",
    ),
    "keyword": (
        lambda mesh: mtf.layers.MultiHeadAttention(
            mesh, "d:8", "heads:2", "key:4", kv_heads=1
        ),
        r"MultiHeadAttention: .* 'kv_heads'.*Did you mean kv_heads_dim",
    ),
    "own": (
        lambda mesh: Net(mesh, widht=4),
        r"Net: .* 'widht'.*takes +mesh, width=4.*Did you mean width",
    ),
    "count": (lambda mesh: Net(mesh, 4, 5), r"Net: too many positional arguments"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_that_does_not_fit_the_signature(kind):
    call, message = CALLS[kind]
    with pytest.raises(mtf.ArgumentError, match=f"(?s){message}") as caught:
        call(mtf.Mesh(""))
    assert "test_calls.py:" in str(caught.value)


def test_another_type_error_stays_as_it_is():
    with pytest.raises(TypeError, match="has no len") as caught:
        Net(mtf.Mesh(""), 0)
    assert not isinstance(caught.value, mtf.MeshtfError)


def tensors(mesh):
    x = mtf.asarray(mesh, np.ones((2, 4), "float32"), "batch; d")
    return x, mtf.asarray(mesh, np.ones((4, 3), "float32"), "d; e")


HABITS = {
    "method": (lambda x, y: x.mean(axis=0), 'mean: .*axis.*write dims="batch"'),
    "negative": (lambda x, y: x.max(axis=-1), 'write dims="d"'),
    "several": (lambda x, y: x.sum(axis=(0, 1)), 'write dims="batch;d"'),
    "named axis": (lambda x, y: mtf.reduce_sum(x, axis="d"), 'write dims="d"'),
    "reduce": (
        lambda x, y: mtf.reduce_mean(x, axis=0),
        r'reduce_mean: .*axis.*takes +x, dims=None.*\[batch:2 d:4\].*write dims="batch"',
    ),
    "softmax": (lambda x, y: mtf.softmax(x, axis=-1), 'write dim="d"'),
    "no dim": (lambda x, y: mtf.softmax(x), 'missing .*Name it: dim="d"'),
    "perm": (lambda x, y: mtf.transpose(x, perm=[1, 0]), 'write dims="d;batch"'),
    "keep": (lambda x, y: x.sum("d", keepdims=True), "keepdims.*Leave it out"),
    "index": (lambda x, y: x.mean(0), r"not indices: the shape is \[batch:2 d:4\]"),
    "math": (lambda x, y: mtf.math.cumprod(x, axis=1), 'write dim="d"'),
    "einsum": (
        lambda x, y: mtf.einsum("bd,de->be", x, y),
        r'mtf\.einsum\(\[x, y\], "batch;e"\)',
    ),
    "einsum of a list": (
        lambda x, y: mtf.einsum([x, y], "bd, de -> be"),
        r'not the equation .*mtf\.einsum\(\[x, y\], "batch;e"\)',
    ),
    "one by one": (
        lambda x, y: mtf.einsum(x, y, "batch;e"),
        r"in a list.*einsum\(\[x, y\]",
    ),
    "layers": (
        lambda x, y: mtf.layers.softmax_cross_entropy(x, x, axis=-1),
        "softmax_cross_entropy: .*'axis'",
    ),
}


@pytest.mark.parametrize("kind", HABITS)
def test_habits_of_other_libraries(kind):
    call, message = HABITS[kind]
    with pytest.raises(mtf.ArgumentError, match=f"(?s){message}") as caught:
        call(*tensors(mtf.Mesh("data:2", "batch:data")))
    assert "test_calls.py:" in str(caught.value)


def test_a_call_of_a_function_names_the_unknown_argument():
    @mtf.function(mesh=mtf.Mesh(""), x="batch", y="batch")
    def step(x, y):
        return x + y

    ids = np.ones(2, "float32")
    message = r"step: .*'yy'.*takes +x, y\n.*Did you mean y\?"
    with pytest.raises(mtf.ArgumentError, match=f"(?s){message}"):
        step(ids, yy=ids)
    with pytest.raises(mtf.ArgumentError, match="step: missing .* 'y'"):
        step(ids)
    with pytest.raises(mtf.ArgumentError, match="step: too many positional"):
        step(ids, ids, ids)
    with pytest.raises(mtf.ArgumentError, match="multiple values for argument 'x'"):
        step(ids, x=ids)


def test_public_functions_are_themselves():
    assert mtf.relu.__name__ == "relu"
    assert pickle.loads(pickle.dumps(mtf.relu)) is mtf.relu
    assert str(inspect.signature(mtf.softmax)).startswith("(x: ")


def test_errors_within_a_function_stay_as_they_are():
    def wrong(x):
        return len(0)

    with pytest.raises(TypeError, match="has no len") as caught:
        mtf.recompute(wrong)(tensors(mtf.Mesh(""))[0])
    assert not isinstance(caught.value, mtf.MeshtfError)
