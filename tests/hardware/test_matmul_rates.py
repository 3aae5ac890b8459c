"""Times of matmuls against numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest

from meshtf.hardware import Hardware, Link, MatmulShape, MatmulTimes, MeasuredMatmul

LINK = Link("all", None, 1e9, 0.0)


def hardware(**settings) -> Hardware:
    """Returns hardware of 1 TFLOP/s and 100 GB/s."""
    return Hardware("a", {"float32": 1e12}, 1e11, (LINK,), **settings)


def seconds(profile: Hardware, *sizes, num_bytes: float = 0.0):
    """Returns the seconds of a matmul [batch, m, n, k] of float32."""
    return MatmulTimes(profile).seconds(MatmulShape(*sizes, "float32"), num_bytes)


def test_a_large_matmul_takes_its_flops_over_a_fraction_of_the_peak():
    expected = 2 * 3 * 1000 * 500 * 200 / (1e12 * 0.5)
    profile = hardware(matmul_efficiency=0.5)
    assert seconds(profile, 3, 1000, 500, 200) == pytest.approx(expected)


def test_rows_and_columns_are_padded_to_tiles():
    profile = hardware(matmul_tile=128)
    # 130 rows are two tiles, 100 columns are one.
    expected = 2 * 256 * 128 * 64 / 1e12
    assert seconds(profile, 1, 130, 100, 64) == pytest.approx(expected)


def test_a_small_matmul_takes_the_time_of_its_bytes():
    assert seconds(hardware(), 1, 8, 8, 8, num_bytes=1e9) == pytest.approx(1e-2)


def test_bytes_of_a_matmul_reach_the_same_fraction_of_the_bandwidth_as_others():
    profile = hardware(memory_efficiency=0.5)
    assert seconds(profile, 1, 8, 8, 8, num_bytes=1e9) == pytest.approx(2e-2)


def test_sizes_may_be_arrays():
    rows = np.array([128, 256, 512])
    expected = 2 * rows * 64 * 64 / 1e12
    np.testing.assert_allclose(seconds(hardware(), 1, rows, 64, 64), expected)


# 2e9 FLOPs in 4 ms: half of the peak. 2e6 FLOPs in 20 us: a tenth.
MEASURED = (
    MeasuredMatmul(1, 1000, 1000, 1000, "float32", seconds=4e-3),
    MeasuredMatmul(1, 100, 100, 100, "float32", seconds=2e-5),
)


def test_a_measured_matmul_takes_the_measured_time():
    profile = hardware(matmuls=MEASURED)
    assert seconds(profile, 1, 1000, 1000, 1000) == pytest.approx(4e-3)
    # Transposed, with m and n swapped, and bytes are in the measured time.
    profile = hardware(matmuls=MEASURED[:1])
    assert seconds(profile, 1, 500, 2000, 1000, num_bytes=1e12) == pytest.approx(4e-3)


def test_between_two_measured_matmuls_the_fraction_of_the_peak_is_between():
    profile = hardware(matmuls=MEASURED)
    size = int(round(np.sqrt(1000 * 100)))
    fraction = 2 * size**3 / 1e12 / seconds(profile, 1, size, size, size)
    # At equal distance from both in log space: the geometric mean of .5 and .1.
    assert fraction == pytest.approx(np.sqrt(0.5 * 0.1), rel=1e-2)


def test_a_similar_matmul_is_covered():
    times = MatmulTimes(hardware(matmuls=MEASURED))
    near = MatmulShape(1, 1500, 1000, 1000, "float32")
    far = MatmulShape(1, 8000, 1000, 1000, "float32")
    other_dtype = MatmulShape(1, 1000, 1000, 1000, "bfloat16")
    assert times.is_covered(near)
    assert not times.is_covered(far)
    assert not times.is_covered(other_dtype)
