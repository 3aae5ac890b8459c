"""Constructors name arguments that are missing, unknown or too many, and the user's line."""

from __future__ import annotations

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
