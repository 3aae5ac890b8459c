"""The SPMD runtime: one program for one replica, run by every device, with XLA's
collectives.

Contents:

    stablehlo_collectives   the table of reshards as StableHLO
    window_exchange         the exchange of elements between neighbours, by permutes
    replica                 a program on one replica
    stablehlo_module        a program as one StableHLO module
    exported_program        the module, and a description of its inputs and results
    runtime                 the runtime that mtf.function calls, which raises PlanError
    unsupported             the errors for calls and effects
    pjrt_client             runs modules by jaxlib
"""

from meshtf.runtime.spmd.exported_program import Export
from meshtf.runtime.spmd.stablehlo_module import export

__all__ = ["Export", "export"]
