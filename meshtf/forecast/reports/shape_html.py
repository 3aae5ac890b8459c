"""Shapes as HTML: `[batch:8/data d_model:16] +model`, with sharded dimensions marked.

    html = ShapeHtml(["data", "model"], tensor_index)(tensor)

In this shape, dimension batch of global size 8 is sharded along mesh axis data, and the
tensor is a partial sum along model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from meshtf.forecast.report_data import PlacedTensor

_PARTIAL_SIGNS = {"sum": "+", "max": "max ", "min": "min "}


class ShapeHtml:
    """Returns the HTML of a tensor's shape; that of equal tensors is made once.

    Args:
      axes: the names of the mesh axes.
      tensor_index: returns the index of a tensor in the page's data.
    """

    def __init__(
        self, axes: Sequence[str], tensor_index: Callable[[PlacedTensor], int]
    ) -> None:
        self.axes = axes
        self._tensor_index = tensor_index
        self._cache: dict[PlacedTensor, str] = {}

    def __call__(self, tensor: PlacedTensor) -> str:
        """Returns the HTML of the tensor's shape."""
        if tensor not in self._cache:
            self._cache[tensor] = self._html(tensor)
        return self._cache[tensor]

    def _html(self, tensor: PlacedTensor) -> str:
        """Returns the HTML of a shape that is not cached yet."""
        dims = [
            self._dim(tensor, name, f"{name}:{size}") for name, size in tensor.shape
        ]
        # A dimension may be called "sum": then this state means that it is sharded.
        names = {name for name, _ in tensor.shape}
        signs = [
            f' <b class="partial-sum">{_PARTIAL_SIGNS[state]}{escape(axis)}</b>'
            for axis, state in zip(self.axes, tensor.states)
            if state in _PARTIAL_SIGNS and state not in names
        ]
        text = f"[{' '.join(dims)}]{''.join(signs)}"
        index = self._tensor_index(tensor)
        return f'<span class="shape" data-tensor="{index}">{text}</span>'

    def _dim(self, tensor: PlacedTensor, name: str, text: str) -> str:
        """Returns the HTML of one dimension, marked if mesh axes shard it."""
        axes = tensor.axes_of(name, self.axes)
        if not axes:
            return escape(text)
        sharded = "".join(f"/{axis}" for axis in axes)
        return f'<b class="sharded">{escape(text + sharded)}</b>'
