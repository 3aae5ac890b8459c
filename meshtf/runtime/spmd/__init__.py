"""The SPMD runtime: every device runs the program of one mesh position, with XLA's
collectives.

Contents:

    module/         a program as one StableHLO module of one mesh position
    live/           arrays, modules and variables of live meshes, whose devices belong to jax
    stages/         programs of live meshes: tasks for each pipeline stage
    compiled/       ahead-of-time compilation for devices that this machine lacks
    eager_programs  ops outside of functions, on the devices
    initial_values  initial values of variables, computed on the devices
    runtime         what mtf.function calls on meshes with devices="spmd"
"""

from meshtf.runtime.spmd.compiled.absent_devices import hardware_of
from meshtf.runtime.spmd.compiled.compile_for import (
    CompiledProgram,
    check_topology,
    compile_for,
)
from meshtf.runtime.spmd.compiled.exposed_communication import exposed_communication
from meshtf.runtime.spmd.module.exported_program import Export
from meshtf.runtime.spmd.module.stablehlo_module import export

__all__ = [
    "CompiledProgram",
    "Export",
    "check_topology",
    "compile_for",
    "export",
    "exposed_communication",
    "hardware_of",
]
