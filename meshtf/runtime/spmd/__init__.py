"""The SPMD runtime: one program for one replica, run by every device, with XLA's
collectives.

Contents:

    stablehlo_collectives   the table of reshards as StableHLO
    window_exchange         the exchange of neighbours' elements, as permutes
    replica                 a program on one replica
    stablehlo_module        a program as one StableHLO module
    exported_program        the module with what a host needs to run it
    runtime                 what mtf.function calls: it refuses
    unsupported             why TensorFlow does not run it here
    pjrt_client             runs modules by jaxlib
"""

from meshtf.runtime.spmd.exported_program import Export
from meshtf.runtime.spmd.stablehlo_module import export

__all__ = ["Export", "export"]
