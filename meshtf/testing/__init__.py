"""Conformance: does an op declare correctly what sharding its dimensions does?

An op that has samples is run under every layout of small meshes, with inputs that are
replicated, sharded and unequal partial sums, forward and backward, and compared with one
device and with TensorFlow's gradient tape. It works for your own ops as well:

    from meshtf.testing import check_op

    def test_my_op():
      check_op(MyOp).require()      # AssertionError: sample, mesh, layout, difference

`check_op` runs eagerly, case by case. `check_program` runs all samples of an op as one
`mtf.function` for each layout, `check_live` the same on a mesh with devices="spmd",
`check_export` as one StableHLO module, which CPU devices run with XLA's collectives (both
need jax). All random values depend on `seed`, which failures print.
"""

from meshtf.testing.conformance.compare import difference
from meshtf.testing.conformance.eager_suite import check_op, check_sample
from meshtf.testing.conformance.exported_suite import check_export, check_live
from meshtf.testing.conformance.recorded_suite import check_program
from meshtf.testing.conformance.report import Report
from meshtf.testing.conformance.samples import MESHES, label, registered_ops

__all__ = [
    "MESHES",
    "Report",
    "check_export",
    "check_live",
    "check_op",
    "check_program",
    "check_sample",
    "difference",
    "label",
    "registered_ops",
]


def __dir__() -> list[str]:
    return sorted(__all__)
