"""A recorded function on the devices of a live mesh, which belong to jax: the SPMD runtime's
`Executable`.

    program = LiveProgram(recorded, stores)
    program(tensors)                             # a `ShardedValue` of each result

A call does not wait: results and variables are `jax.Array`s, which the devices compute
while Python goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.graph import ShardedValue, Store
from meshtf.graph.recorder import Recorded
from meshtf.ops.variables.read_write import ScalarStore
from meshtf.runtime.lowering.op_errors import explained
from meshtf.runtime.lowering.program_summary import ProgramSummary
from meshtf.runtime.spmd.live.compile_notice import CompileNotice
from meshtf.runtime.spmd.live.device_arrays import ArrayLayout, DeviceShards
from meshtf.runtime.spmd.live.jax_errors import memory_errors
from meshtf.runtime.spmd.live.jax_host import jax_mesh, runs_on_cpus
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.jax_slot import VariableArray, variable_array
from meshtf.runtime.spmd.live.join_processes import native_output_to_stderr
from meshtf.runtime.spmd.live.module_call import QUICK, ModuleCall
from meshtf.runtime.spmd.live.run_checks import (
    RunChecks,
    add_run,
    raise_ready,
    result_check,
)
from meshtf.runtime.spmd.module.index_checks import (
    NO_FAILURE,
    RECORD_SPEC,
    IndexChecks,
)
from meshtf.runtime.spmd.module.stablehlo_module import lower
from meshtf.runtime.storage.argument_storage import ArrayStore


class LiveProgram(ProgramSummary):
    """A recorded function for one combination of argument specs, compiled by its first
    call.

    Args:
      recorded: the function.
      stores: the storage of each argument, in order, which each call fills.
      runs_once: whether a short compile time matters more than fast code.
    """

    def __init__(
        self, recorded: Recorded, stores: Sequence[Any], runs_once: bool = False
    ) -> None:
        self._runs_once = runs_once
        self.mesh = recorded.mesh
        self._name = recorded.name
        self.stores = stores
        self._compile_notice = CompileNotice(self._name, self.mesh.size)
        with self._compile_notice.watch():
            self._lowered = lower(
                recorded, stores, IndexChecks(), on_cpus=runs_on_cpus(self.mesh)
            )
        self.program = self._lowered.program
        self._inputs = [self._layout(store) for store in self._lowered.inputs]
        self._results = [
            ArrayLayout(result.spec, value.placement, self.mesh)
            for result, value in zip(recorded.results, self.program.results)
        ]
        self._host_inputs = [
            ArrayLayout(value.spec, value.placement, self.mesh)
            for step in self._lowered.host_steps
            for value in step.inputs
            if value.spec is not None
        ]
        self._record: ArrayLayout | None = None
        if self._lowered.checks is not None:
            self._record = ArrayLayout(RECORD_SPEC, self.mesh.replicated, self.mesh)
        self._module_call: ModuleCall | None = None

    def __call__(self, flat: Sequence[Any]) -> list[ShardedValue]:
        """Starts the program on the tensors of all arguments, a flat list, and returns the
        results' shards.
        """
        self.fill_stores(flat)
        raise_ready(self.mesh)
        with memory_errors(self._name):
            variables = {
                store: variable_array(store) for store in self._lowered.variables
            }
            outputs = self._start(variables)
        run = self._run_checks(outputs)
        written = self._lowered.written
        for store, array in zip(written, outputs[len(outputs) - len(written) :]):
            variables[store].array = array
        self._run_on_host(outputs[len(self._results) :])
        check = result_check(self.mesh, run)
        return [
            ShardedValue(layout.placement, DeviceShards(array, layout, check))
            for layout, array in zip(self._results, outputs)
        ]

    def _start(self, variables: Mapping[Store, VariableArray]) -> list[Any]:
        """Starts the module, and returns its outputs. The first call compiles it, and waits
        for the outputs.
        """
        if self._module_call is not None:
            return self._module_call(self._input_arrays(variables))
        with self._compile_notice.watch():
            module_call = self._compile()
        with native_output_to_stderr():
            outputs = module_call(self._input_arrays(variables))
            # If memory does not suffice, it is this call that fails. If other processes still
            # compile, a supervisor allows more time here than for reading a result.
            load_jax().block_until_ready(outputs)
        self._module_call = module_call
        return outputs

    @property
    def has_checks(self) -> bool:
        """Whether the devices check indices while the program runs."""
        return self._lowered.checks is not None

    @property
    def peak_memory(self) -> int:
        """The bytes of a device at the peak of a call, by XLA; compiles the program if no
        call has done so.
        """
        if self._module_call is None:
            self._module_call = self._compile()
        return self._module_call.peak_memory

    def _input_arrays(self, variables: Mapping[Store, VariableArray]) -> list[Any]:
        """Returns the inputs of the module, as `jax.Array`s.

        Args:
          variables: the current array of each variable of the program.
        """
        arrays = []
        for store, layout in zip(self._lowered.inputs, self._inputs):
            if store in variables:
                arrays.append(variables[store].array)
            else:
                arrays.append(_argument_array(store, layout))
        if self._record is not None:
            arrays.append(self._no_failure)
        return arrays

    @functools.cached_property
    def _no_failure(self) -> Any:
        """The record of failed checks before a run, as a `jax.Array`."""
        assert self._record is not None
        return self._record.global_array(NO_FAILURE)

    def _run_checks(self, outputs: list[Any]) -> RunChecks | None:
        """Removes the record of failed checks from the outputs of a run, and returns the
        run's checks; None: the program checks no indices.
        """
        if self._lowered.checks is None:
            return None
        records = [(self._lowered.checks, outputs.pop())]
        run = RunChecks(records, writes=bool(self._lowered.written))
        add_run(self.mesh, run)
        return run

    def _run_on_host(self, outputs: Sequence[Any]) -> None:
        """Runs the ops that print or write summaries, in order. Waits for their inputs.

        Args:
          outputs: the outputs of the module after the results.
        """
        arrays = iter(zip(outputs, self._host_inputs))
        for step in self._lowered.host_steps:
            inputs = [DeviceShards(*next(arrays))[0] for _ in step.inputs]
            assert step.host_op is not None and step.node is not None
            with explained(step.node):
                step.host_op.run_on_host(*inputs)

    def _layout(self, store: Store) -> ArrayLayout:
        """Returns how the shards of an input form one `jax.Array`."""
        return ArrayLayout(store.spec, store.placement, self.mesh)

    def _compile(self) -> ModuleCall:
        """Returns the compiled module."""
        lowered = self._lowered
        record = [] if self._record is None else [self._record]
        device_mesh = jax_mesh(self.mesh)
        is_quick = self._runs_once and device_mesh.devices.flat[0].platform == "cpu"
        return ModuleCall(
            name=self._name,
            module=lowered.module,
            inputs=[*self._inputs, *record],
            outputs=[
                *self._results,
                *self._host_inputs,
                *map(self._layout, lowered.written),
                *record,
            ],
            mesh=device_mesh,
            options=QUICK if is_quick else None,
            donated=[lowered.variables.index(store) for store in lowered.written],
        )


def _argument_array(store: Store, layout: ArrayLayout) -> Any:
    """Returns the `jax.Array` of an argument or of a captured tensor."""
    if isinstance(store, ArrayStore):
        return layout.global_array(store.array)
    if isinstance(store, ScalarStore):
        return layout.global_array(np.asarray(store.value, layout.dtype))
    shards = store.read()
    if isinstance(shards, DeviceShards):
        return shards.array
    return layout.array(shards)
