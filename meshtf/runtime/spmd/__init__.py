"""The SPMD runtime: every device runs the program of one mesh position, with XLA's
collectives.

Contents:

    stablehlo_collectives   the table of reshards as StableHLO
    window_exchange         the exchange of neighbours' elements, as permutes
    replica                 a program on one mesh position
    portable_module         TensorFlow's StableHLO as a portable artifact
    stablehlo_module        a program as one StableHLO module
    exported_program        the module with what a host needs to run it
    jax_host                jax, imported when it is needed, and its devices
    device_arrays           the shards of a value as one jax.Array
    module_call             a module, compiled for the devices of a mesh
    live_program, runtime   what mtf.function calls on meshes with devices="spmd"
    jax_slot                the storage of variables there
    compiled/               programs compiled for devices that are not there
    module_runner           runs exported modules on CPU devices, for tests
    unsupported             what no module can do
"""

from meshtf.runtime.spmd.compiled.compile_for import CompiledForecast, compile_for
from meshtf.runtime.spmd.module.exported_program import Export
from meshtf.runtime.spmd.module.stablehlo_module import export

__all__ = ["CompiledForecast", "Export", "compile_for", "export"]
