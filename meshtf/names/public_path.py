"""The public paths of functions, such as `mtf.einsum`, for errors.

>>> public_path("einsum"), public_path("erf")
('mtf.einsum', 'mtf.math.erf')
"""

from __future__ import annotations

# The functions of `mtf.math`; tests/documentation/test_public_names.py keeps it complete.
MATH_FUNCTIONS = frozenset(
    """
    acos angle asin atan atan2 complex conj cosh cummax cummin cumprod
    cumulative_logsumexp digamma divide_no_nan erf erfinv expm1 fft floormod ifft imag
    irfft lgamma linear_recurrence log1p logaddexp logical_xor nth_largest
    nth_smallest real reciprocal rfft segment_max segment_mean segment_min sinh
    squared_difference tan
    """.split()
)


TENSORFLOW = "TensorFlow"  # in place of a function, for lines that call TensorFlow's


def public_path(function: str) -> str:
    """Returns the path by which users call a public function of meshtf."""
    if function == TENSORFLOW:
        return function
    return f"mtf.math.{function}" if function in MATH_FUNCTIONS else f"mtf.{function}"
