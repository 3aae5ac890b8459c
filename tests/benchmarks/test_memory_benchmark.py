"""What the memory benchmark reads in TensorFlow's log, and that a forecast is
near it.
"""

from __future__ import annotations

import pytest

from benchmarks.memory.__main__ import measure, peak


def allocation(allocation_id, size, kernel="model/MatMul_3"):
    return (
        f"x] __LOG_MEMORY__ MemoryLogTensorAllocation {{ step_id: 5 kernel_name: "
        f'"{kernel}" tensor {{ dtype: DT_FLOAT shape {{ dim {{ size: {size // 4} }} }} '
        f"allocation_description {{ requested_bytes: {size} allocated_bytes: 4096 "
        f'allocator_name: "bfc" allocation_id: {allocation_id} ptr: 7 }} }} }}'
    )


def freed(allocation_id):
    return f"x] __LOG_MEMORY__ MemoryLogTensorDeallocation {{ allocation_id: {allocation_id} }}"


def test_the_peak_is_the_most_at_once_of_what_the_step_allocates():
    peak_bytes, then = peak(
        [
            allocation(1, 400),
            "begin",
            allocation(2, 40),
            allocation(2, 40),
            freed(1),
            allocation(3, 80),
            freed(2),
            allocation(4, 60, "Sum"),
            freed(3),
            allocation(5, 16),
            "end",
            allocation(6, 4000),
        ]
    )
    assert peak_bytes == 140
    assert [(t.kernel, t.sizes, t.bytes) for t in then] == [
        ("MatMul", "20", 80),
        ("Sum", "15", 60),
    ]


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["one position", "FSDP", "ZeRO-1"])
def test_a_language_model_holds_what_is_forecast(name):
    measured, _ = measure(name, dropout=0.0, batch=8)
    assert measured["variables"] == measured["forecast variables"]
    assert measured["forecast peak"] == pytest.approx(measured["peak"], rel=0.1)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"scanned": True},
        {"scanned": True, "recompute": True},
        {"microbatches": 2},
        {"scanned": True, "microbatches": 2},
    ],
    ids=str,
)
def test_loops_hold_what_is_forecast(settings):
    """Iterations that carry nothing, such as microbatches, do not hold their tensors at
    once.
    """
    measured, _ = measure("one position", dropout=0.0, batch=8, **settings)
    assert measured["variables"] == measured["forecast variables"]
    assert measured["forecast peak"] == pytest.approx(measured["peak"], rel=0.1)
