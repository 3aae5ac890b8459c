"""Shapes as text and as HTML: `[batch:8/data d_model:16] +model`.

In this shape, dimension batch of global size 8 is sharded along mesh axis data, and the
tensor is a partial sum along model, not yet reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape

from meshtf.forecast.report_data import PlacedTensor

_PARTIAL_SIGNS = {"sum": "+", "max": "max ", "min": "min "}


def _plain(text: str, kind: str) -> str:
    """Returns a part of a shape as text."""
    return text


def _marked(text: str, kind: str) -> str:
    """Returns a part of a shape as HTML; `kind` is its CSS class, "" for none."""
    return f'<b class="{kind}">{escape(text)}</b>' if kind else escape(text)


def shape_text(
    tensor: PlacedTensor,
    axes: Iterable[str],
    mark: Callable[[str, str], str] = _plain,
) -> str:
    """Returns a shape and how it is sharded, such as "[batch:64/data d_ff:8] +model".

    Args:
      tensor: the tensor.
      axes: the names of the mesh axes.
      mark: returns what is written for a part of the text, given the part and "sharded",
        "partial-sum" or "".
    """
    axes = tuple(axes)
    dims = []
    for name, size in tensor.shape:
        sharding_axes = tensor.axes_of(name, axes)
        text = "/".join((f"{name}:{size}", *sharding_axes))
        dims.append(mark(text, "sharded" if sharding_axes else ""))
    # A dimension may be called "sum": then this state means that it is sharded.
    names = {name for name, _ in tensor.shape}
    partial = ""
    for axis, state in zip(axes, tensor.states):
        if state in _PARTIAL_SIGNS and state not in names:
            partial += " " + mark(f"{_PARTIAL_SIGNS[state]}{axis}", "partial-sum")
    return f"[{' '.join(dims)}]{partial}"


class ShapeHtml:
    """Returns the HTML of a tensor's shape; that of equal tensors is made once.

    Args:
      axes: the names of the mesh axes.
      tensor_index: returns the index of a tensor in the page's data, by which the page's
        script shows which device has which shard.
    """

    def __init__(
        self, axes: Iterable[str], tensor_index: Callable[[PlacedTensor], int]
    ) -> None:
        self._axes = tuple(axes)
        self._tensor_index = tensor_index
        self._cache: dict[PlacedTensor, str] = {}

    def __call__(self, tensor: PlacedTensor) -> str:
        """Returns the HTML of the tensor's shape."""
        if tensor not in self._cache:
            text = shape_text(tensor, self._axes, _marked)
            index = self._tensor_index(tensor)
            self._cache[tensor] = (
                f'<span class="shape" data-tensor="{index}">{text}</span>'
            )
        return self._cache[tensor]
