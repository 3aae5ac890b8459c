"""What the benchmark of Keras models finds to shard."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "name, batches", [("graph", ["batch", "batch_2"]), ("transformer", ["batch"])]
)
def test_work_of_small_models(name, batches):
    pytest.importorskip("keras")
    # These import Keras.
    from benchmarks.keras_models.configurations import CONFIGURATIONS
    from benchmarks.keras_models.measure import traced_step
    from benchmarks.keras_models.sharding import Work

    (configuration,) = [c for c in CONFIGURATIONS if c.name == name]
    step, batch = traced_step(configuration)

    work = Work(step, batch)

    # Edges of graphs are a batch of their own.
    assert work.batches == batches
    assert work.by_batch > 0.9
    assert work.by_model > 0.9
    assert set(work.names) < set(step.program.names.values())
