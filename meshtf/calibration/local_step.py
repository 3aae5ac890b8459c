"""A step as one device of a large mesh runs it, without communication, timed on devices that
are here.

    mesh = mtf.Mesh("data:32;model:8", layout, devices="abstract")
    measured = measure_local_step(
        train_step(mesh), batch, devices="spmd:cuda:1", hardware=profile
    )
    profile = dataclasses.replace(profile, local_steps=(measured,))

Each device that is here runs the program of one position of the abstract mesh, with its shards
of all variables and arguments. Collectives are left out, see
`stablehlo_collectives.without_communication`.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from meshtf.calibration.clock import clock_of
from meshtf.forecast.time.durations import Durations
from meshtf.forecast.time.local_sizes import local_sizes
from meshtf.forecast.time.schedule import Schedule
from meshtf.function.without_running import as_function
from meshtf.graph import Spec
from meshtf.hardware import Hardware, MeasuredLocalStep, as_hardware
from meshtf.mesh import Mesh, Placement
from meshtf.names.arguments import as_int, as_text, refuse
from meshtf.runtime.spmd.live.jax_host import jax_mesh, platform_of
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.module_call import ModuleCall
from meshtf.runtime.spmd.live.stacked_layout import StackedLayout
from meshtf.runtime.spmd.module.stablehlo_collectives import without_communication
from meshtf.runtime.spmd.module.stablehlo_module import lower

_AXIS = "replica"
_BLOCK = 1 << 20  # random values that are repeated
_WARM_UP = 2
_STEPS = 8


def measure_local_step(
    fn: Callable[..., Any],
    *args: Any,
    devices: str,
    hardware: Hardware,
    steps: int = _STEPS,
) -> MeasuredLocalStep:
    """Returns how much longer the ops of one device take than a profile predicts.

    Args:
      fn: a `mtf.function`, or a function of tensors, of an abstract mesh.
      *args: its arguments; only shapes and dtypes are read.
      devices: the devices, as `Mesh` takes them, with their count: "spmd:cpu:8". All run the
        program of one position at once.
      hardware: the profile; its own local steps do not count.
      steps: how many steps are timed; the median counts.

    Raises:
      ArgumentError: the devices are not of the SPMD runtime, or have no count.
      PlanError: XLA cannot compile an op, or the program has pipeline stages.
    """
    count = _count(devices)
    clock = clock_of(devices, count)
    step = LocalStep(fn, args, devices)
    seconds = []
    for i in range(_WARM_UP + as_int("steps", steps, least=1)):
        start = clock.now()
        step()
        if i >= _WARM_UP:
            seconds.append(clock.now() - start)
    return step.measured(statistics.median(seconds), as_hardware(hardware))


def _count(devices: str) -> int:
    """Returns the number at the end of the name of devices. Raises ArgumentError."""
    kind, _, count = as_text("devices", devices).rpartition(":")
    if not kind.startswith("spmd") or not count.isdigit():
        refuse("devices", devices, 'devices of the SPMD runtime, such as "spmd:cpu:8"')
    return int(count)


class LocalStep:
    """One position's computations of a call, on all devices of this process at once. The
    arguments are those of `measure_local_step`.

    Attributes:
      program: the planned program.
      arrays: the inputs of the next run: variables, then arguments.
    """

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], devices: str
    ) -> None:
        mesh = Mesh({_AXIS: _count(devices)}, devices=devices)
        function, args = as_function(fn, args)
        recording = function.record_call(args, {})
        with without_communication():
            lowered = lower(
                recording.recorded, recording.arguments, platform=platform_of(mesh)
            )
        self.program = program = lowered.program
        self._mesh = mesh
        inputs = [self._layout(x.spec, x.placement) for x in lowered.inputs]
        results = [self._layout(y.spec, y.placement) for y in program.results]
        self._indices = [lowered.inputs.index(store) for store in lowered.written]
        written = [inputs[i] for i in self._indices]
        self._call = ModuleCall(
            name="local_step",
            module=lowered.module,
            inputs=inputs,
            outputs=[*results, *written],
            mesh=jax_mesh(mesh),
            donated=self._indices,
        )
        self.arrays = [_array(layout) for layout in inputs]

    @property
    def hlo(self) -> str:
        """The optimized HLO of one device."""
        return self._call.hlo

    def measured(self, seconds: float, hardware: Hardware) -> MeasuredLocalStep:
        """Returns the sizes of the step, and its measured seconds over the predicted ones.

        Args:
          seconds: the measured time.
          hardware: the profile; its own local steps do not count.
        """
        rates = dataclasses.replace(hardware, local_steps=())
        durations = Durations(rates, self.program.mesh)
        schedule = Schedule(self.program, durations)
        predicted = float(schedule.totals.matmuls + schedule.totals.other_ops)
        sizes = local_sizes(self.program, durations)
        return MeasuredLocalStep(
            sizes={name: int(size) for name, size in sizes.items()},
            factor=seconds / predicted,
        )

    def _layout(self, spec: Spec | None, placement: Placement) -> StackedLayout:
        """Returns the layout of the shards that all devices have of an input or output."""
        assert spec is not None
        return StackedLayout.of(
            spec, placement, self.program.mesh, jax_mesh(self._mesh)
        )

    def __call__(self) -> None:
        """Runs the step once, and waits for all devices."""
        outputs = self._call(self.arrays)
        load_jax().block_until_ready(outputs)
        written = outputs[len(outputs) - len(self._indices) :]
        for i, array in zip(self._indices, written):
            self.arrays[i] = array


def _array(layout: StackedLayout) -> Any:
    """Returns an array of small random numbers on all devices; of zeros for integers."""
    sizes = layout.shard_sizes
    shard = np.zeros(sizes, layout.dtype)
    if layout.dtype.kind not in "biu":
        rng = np.random.default_rng(0)
        block = rng.random(min(shard.size, _BLOCK), np.float32) * 0.02
        shard = np.resize(block, sizes).astype(layout.dtype)
    return load_jax().make_array_from_callback(
        layout.global_sizes, layout.sharding, lambda _: shard
    )
