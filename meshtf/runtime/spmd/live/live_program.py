"""A recorded function on the devices of a live mesh: the SPMD runtime's `Executable`.

    program = LiveProgram(recorded, arguments)
    program(arrays)                              # a `ShardedValue` of each result

A call does not wait: results and variables are `jax.Array`s, which the devices compute
while Python goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.graph import ShardedValue, Store
from meshtf.graph.recorder import Recorded
from meshtf.runtime.lowering.program_summary import (
    ProgramMemory,
    collectives_of,
    memory_of,
)
from meshtf.runtime.spmd.live.device_arrays import ArrayLayout, DeviceShards
from meshtf.runtime.spmd.live.jax_host import jax_mesh
from meshtf.runtime.spmd.live.jax_slot import variable_array
from meshtf.runtime.spmd.live.module_call import ModuleCall
from meshtf.runtime.spmd.module.stablehlo_module import lower
from meshtf.runtime.storage.argument_storage import ArrayStore


class LiveProgram:
    """A recorded function for one combination of argument specs, compiled by its first
    call.

    Args:
      recorded: the function.
      stores: the stores of the arguments, in order; each call fills them from the flat
        list of its tensors.
    """

    def __init__(self, recorded: Recorded, stores: Sequence[Any]) -> None:
        self.mesh = recorded.mesh
        self.stores = stores
        self._lowered = lower(recorded, stores)
        self.program = self._lowered.program
        self._inputs = [self._layout(store) for store in self._lowered.inputs]
        self._results = [
            ArrayLayout(result.spec, value.placement, self.mesh)
            for result, value in zip(recorded.results, self.program.results)
        ]
        self._host_inputs = [
            ArrayLayout(value.spec, value.placement, self.mesh)
            for step in self._lowered.host_steps
            for value in step.values
            if value.spec is not None
        ]
        self._module_call: ModuleCall | None = None

    def __call__(self, flat: Sequence[Any]) -> list[ShardedValue]:
        """Runs the program on the arguments' tensors and returns the results' shards."""
        remaining = list(flat)
        for store in self.stores:
            store.fill(remaining)
        if self._module_call is None:
            self._module_call = self._compile()
        variables = {store: variable_array(store) for store in self._lowered.variables}
        inputs = []
        for store, layout in zip(self._lowered.inputs, self._inputs):
            if store in variables:
                inputs.append(variables[store].array)
            else:
                inputs.append(_argument_array(store, layout))
        outputs = self._module_call(inputs)
        written = self._lowered.written
        for store, array in zip(written, outputs[len(outputs) - len(written) :]):
            variables[store].array = array
        self._run_on_host(outputs[len(self._results) :])
        return [
            ShardedValue(layout.placement, DeviceShards(array, layout))
            for layout, array in zip(self._results, outputs)
        ]

    @property
    def collectives(self) -> list[str]:
        """All collectives of one call."""
        return collectives_of(self.program)

    @property
    def memory(self) -> ProgramMemory:
        """The bytes of variables, arguments and results on one device."""
        return memory_of(self.program, self.stores)

    def _run_on_host(self, outputs: Sequence[Any]) -> None:
        """Runs the ops that print or write summaries, in order. Waits for their inputs.

        Args:
          outputs: the outputs of the module after the results.
        """
        arrays = iter(zip(outputs, self._host_inputs))
        for step in self._lowered.host_steps:
            inputs = [DeviceShards(*next(arrays))[0] for _ in step.values]
            step.host_op.run_on_host(*inputs)

    def _layout(self, store: Store) -> ArrayLayout:
        """Returns how the shards of an input are one array."""
        return ArrayLayout(store.spec, store.placement, self.mesh)

    def _compile(self) -> ModuleCall:
        """Returns the compiled module."""
        lowered = self._lowered
        return ModuleCall(
            name="meshtf_program",
            module=lowered.module,
            inputs=self._inputs,
            outputs=[
                *self._results,
                *self._host_inputs,
                *map(self._layout, lowered.written),
            ],
            mesh=jax_mesh(self.mesh),
            donated=[lowered.variables.index(store) for store in lowered.written],
        )


def _argument_array(store: Store, layout: ArrayLayout) -> Any:
    """Returns the `jax.Array` of an argument or of a captured tensor."""
    if isinstance(store, ArrayStore):
        return layout.global_array(store.array)
    shards = store.read()
    if isinstance(shards, DeviceShards):
        return shards.array
    return layout.array(shards)
