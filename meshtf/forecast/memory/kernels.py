"""Which kernel of a device computes an op that multiplies matrices several times: attention.

    kernel_of(step, mesh, "cuda")       # Kernel("attention", "cuDNN"); None: no such op
    kernels_of(program, "tpu")          # ["attention of attend, model.py:12: blocks of 256 ..."]

A platform is what XLA compiles a program for, "cpu", "cuda" or "tpu"; "": any devices, or not XLA.
"""

from __future__ import annotations

from meshtf.graph import Spec
from meshtf.graph.op_kinds import FusedMatmulsOp, Kernel
from meshtf.mesh import Mesh
from meshtf.partition import Compute, Program, Step, walk
from meshtf.partition.cost import local_shape


def local_specs(step: Step, mesh: Mesh) -> list[Spec]:
    """Returns the specs of the inputs of an op, with local shapes."""
    return [
        Spec(local_shape(value.spec.shape, value.placement, mesh), value.spec.dtype)
        for value in step.inputs
        if value.spec is not None
    ]


def kernel_of(step: Compute, mesh: Mesh, platform: str) -> Kernel | None:
    """Returns what computes an op on one device; None: it is none of several products.

    Args:
      step: the op.
      mesh: the mesh that it was planned for.
      platform: the devices; see above.
    """
    op = step.node.op
    if not isinstance(op, FusedMatmulsOp):
        return None
    sharded = [factor for factor, _ in step.plan.factor_axes]
    return op.kernel(platform, sharded, *local_specs(step, mesh))


def writes_products(step: Compute, mesh: Mesh, platform: str) -> bool:
    """Returns whether an op writes products that are not among its outputs, and reads them. The
    arguments are those of `kernel_of`.
    """
    kernel = kernel_of(step, mesh, platform)
    return kernel is not None and bool(kernel.refusal)


def kernels_of(program: Program, platform: str) -> list[str]:
    """Returns a text for each line of code and kernel: what computes attention, and why it is not
    the kernel of the device's vendor.

    Args:
      program: the program.
      platform: the devices; see above.
    """
    texts: dict[str, None] = {}
    for step, _ in walk(program):
        if step.computation is None:
            continue
        kernel = kernel_of(step.computation, program.mesh, platform)
        if kernel is not None:
            reason = f": {kernel.refusal}" if kernel.refusal else ""
            source = step.computation.node.source
            texts[f"{kernel.work} of {source}: {kernel.name}{reason}."] = None
    return list(texts)
