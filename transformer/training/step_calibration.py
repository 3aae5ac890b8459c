"""Times training steps of a configuration, to adjust a profile of hardware to its work.

hardware = calibrate_steps(hardware, "spmd:cpu:8", configure, max_meshes=4, num_steps=12)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gin

import meshtf as mtf
from transformer.training.trainer import Trainer
from transformer.training.training_run import Run

_WARM_UP = 2  # steps that are not timed: the first one compiles


def configured_mesh() -> tuple[str | None, int]:
    """Returns the devices and the size of the mesh that gin's settings describe."""
    bindings = gin.get_bindings("Mesh")
    abstract = mtf.Mesh(bindings.get("axes", ""), devices="abstract")
    return bindings.get("devices"), abstract.size


def calibrate_steps(
    hardware: Any,
    devices: str | None,
    configure: Callable[..., None],
    max_meshes: int,
    num_steps: int,
    report: Callable[[str], None] = print,
) -> Any:
    """Returns a profile with the factors of a configuration: see `mtf.calibration.adjust`.

    Args:
      hardware: the measured profile.
      devices: the devices, as `mtf.Mesh` takes them.
      configure: a function that binds gin's settings, with further ones as arguments.
      max_meshes: on how many meshes steps are timed.
      num_steps: how many steps are timed on each.
      report: is called with each line of progress.
    """
    axes = dict(mtf.Mesh(gin.query_parameter("Mesh.axes"), devices="abstract").axes)
    report("steps of the configuration: predicted, measured")
    steps = []
    for sizes in list(meshes_like(axes))[:max_meshes]:
        text = ";".join(f"{axis}:{size}" for axis, size in sizes.items())
        gin.clear_config()
        configure(f'Mesh.axes = "{text}"', f"Mesh.devices = {devices!r}")
        run = Run()
        batch = next(iter(run.data.batches(run.batch_size).take(1)))
        forecast = run.explain(hardware=hardware)
        if forecast.error is not None:
            report(f"  {text}: {forecast.error.partition(chr(10))[0]}")
            continue
        seconds = step_seconds(run.trainer, batch, num_steps)
        steps.append(mtf.calibration.MeasuredStep(forecast, seconds))
        assert forecast.time is not None
        report(
            f"  {text:24} {forecast.time.seconds * 1e3:8.1f} ms {seconds * 1e3:8.1f} ms"
        )
    return mtf.calibration.adjust(hardware, steps) if steps else hardware


def meshes_like(axes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yields meshes with the same axes and as many positions: the given one first, then all
    others whose sizes are powers of 2.
    """
    yield dict(axes)
    total = 1
    for size in axes.values():
        total *= size
    for sizes in _factorizations(total, len(axes)):
        mesh = dict(zip(axes, sizes))
        if mesh != dict(axes):
            yield mesh


def _factorizations(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yields the ways to write a count as a product of so many divisors."""
    if count <= 1:
        yield (total,) * count
        return
    for size in range(1, total + 1):
        if total % size == 0:
            for rest in _factorizations(total // size, count - 1):
                yield (size, *rest)


def step_seconds(trainer: Trainer, batch: Mapping[str, Any], num_steps: int) -> float:
    """Returns the median time of a training step, with the loss read after each.

    Args:
      trainer: the model and its optimizer.
      batch: the arrays of a batch, by feature.
      num_steps: how many steps are timed.
    """
    seconds = []
    for i in range(_WARM_UP + num_steps):
        start = time.perf_counter()
        loss, _norm = trainer.step(batch)
        float(loss)
        if i >= _WARM_UP:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
