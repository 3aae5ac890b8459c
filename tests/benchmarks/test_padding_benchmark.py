"""benchmarks.padding on a tiny BERT."""

from __future__ import annotations

import pytest

from benchmarks.padding import __main__ as padding


@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
def test_each_step_is_timed_with_both_sizes(devices):
    sizes = {"d_model": 8, "d_ff": 10, "heads": 2, "d_kv": 4, "blocks": 1}
    seconds = padding.measure((30, 32), 2, devices, **sizes)
    assert len(seconds) == 2
    assert all(len(pair) == 2 and min(pair) > 0 for pair in seconds)
