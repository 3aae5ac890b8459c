"""The SPMD runtime: one program for one replica, run by every device, with XLA's
collectives.

Contents:

    collectives   the table of moves as StableHLO
    windows       the exchange of neighbours' rows, as permutes
    replica       a program on one replica
    export        a program as one StableHLO module, with what a host needs to run it
    refusal       why TensorFlow does not run it here
"""

from meshtf.runtime.spmd.exported_program import Export
from meshtf.runtime.spmd.stablehlo_module import export
from meshtf.runtime.spmd.unsupported import refusal

__all__ = ["Export", "export", "refusal"]
