"""Small scheduled programs as text, for tests of what reads them."""

from __future__ import annotations

PRODUCT = """
%product (p0: f32[4096,4096]) -> f32[4096,4096] {
  %p0 = f32[4096,4096]{1,0} parameter(0)
  ROOT %dot.1 = f32[4096,4096]{1,0} dot(%p0, %p0), lhs_contracting_dims={1}
}
"""

OP_NAME = (
    "jit(step)/shard_map/call_exported/lm/block/wi/einsum.3/XlaCallModule/all-gather.0"
)


def module(entry: str, computations: str = PRODUCT) -> str:
    """Returns a program of eight devices with the lines of its entry computation, whose
    parameters are %w, a shard of a weight of 16 MiB, and %x.
    """
    return f"""HloModule step, is_scheduled=true, num_partitions=8
{computations}
ENTRY %main (w: f32[512,1024], x: f32[4096,4096]) -> f32[4096,4096] {{
  %w = f32[512,1024]{{1,0}} parameter(0)
  %x = f32[4096,4096]{{1,0}} parameter(1)
{entry}
}}
"""


# The gather of a weight: 14 MiB are received.
START = (
    "  %start = (f32[512,1024], f32[4096,1024]) all-gather-start(%w), dimensions={0}, "
    f'replica_groups=[1,8]<=[8], metadata={{op_name="{OP_NAME}"}}'
)
DONE = f'  %done = f32[4096,1024] all-gather-done(%start), metadata={{op_name="{OP_NAME}"}}'
MATMUL = "  %matmul = f32[4096,4096]{1,0} fusion(%x), kind=kOutput, calls=%product"
ADD = "  %add = f32[4096,4096]{1,0} add(%x, %x)"
