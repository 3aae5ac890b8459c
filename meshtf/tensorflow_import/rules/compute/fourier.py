"""Fourier transforms."""

from __future__ import annotations

from typing import Any

from meshtf.ops.linear.fourier import fft, ifft
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import Rule, rule

# How many of the last axes are transformed.
_TRANSFORMS = {
    "FFT": (fft, 1),
    "FFT2D": (fft, 2),
    "FFT3D": (fft, 3),
    "IFFT": (ifft, 1),
    "IFFT2D": (ifft, 2),
    "IFFT3D": (ifft, 3),
}


@rule(*_TRANSFORMS)
class Transform(Rule):
    """A Fourier transform of complex numbers along the last axes."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        function, count = _TRANSFORMS[node.kind]
        x = lowering.tensor(node.inputs[0])
        for axis in lowering.axes(node.inputs[0])[-count:]:
            x = lowering.along(x, axis, function)
        return x
