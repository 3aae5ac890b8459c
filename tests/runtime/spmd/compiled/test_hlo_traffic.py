"""Bytes that kernels read and write, of small fused computations."""

from __future__ import annotations

import pytest

from meshtf.runtime.spmd.compiled.hlo_text import parse_hlo
from meshtf.runtime.spmd.compiled.hlo_traffic import memory_bytes
from tests.runtime.spmd.compiled.hlo_texts import module

STACK = "f32[12,1024]{1,0}"
ROW = "f32[1,1024]{1,0}"
ROW_BYTES = 1024 * 4
INDEX_BYTES = 4


def traffic(line: str, fused: str = "") -> float:
    """Returns the bytes of the instruction in `line`, which is named %kernel."""
    computations = f"\n%fused (p: f32[12,1024]) -> f32[1,1024] {{\n{fused}\n}}\n"
    operands = f"""  %stack = {STACK} parameter(2)
  %row = {ROW} parameter(3)
  %index = s32[] parameter(4)
"""
    program = parse_hlo(module(operands + line, computations))
    return memory_bytes(program.entry.by_name["kernel"], program.entry, program)


FUSION = f"  %kernel = {ROW} fusion(%stack, %row, %index), kind=kLoop, calls=%fused"
PARAMETERS = f"""  %p = {STACK} parameter(0)
  %r = {ROW} parameter(1)
  %i = s32[] parameter(2)
"""


def test_of_a_stack_the_slice_counts():
    fused = f"""{PARAMETERS}
  %slice = {ROW} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={{1,1024}}
  ROOT %sum = {ROW} add(%slice, %r)"""
    assert traffic(FUSION, fused) == 3 * ROW_BYTES + INDEX_BYTES
    # In another type and shape before it is sliced as well.
    fused = f"""{PARAMETERS}
  %half = bf16[12,1024]{{1,0}} convert(%p)
  %slice = bf16[1,1024]{{1,0}} dynamic-slice(%half, %i, %i), dynamic_slice_sizes={{1,1024}}
  ROOT %sum = {ROW} add(%slice, %r)"""
    assert traffic(FUSION, fused) == 3 * ROW_BYTES + INDEX_BYTES


def test_a_stack_that_is_read_in_full_counts_once():
    fused = f"""{PARAMETERS}
  %slice = {ROW} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={{1,1024}}
  ROOT %sum = {ROW} custom-call(%p, %slice), custom_call_target="sums\""""
    assert traffic(FUSION, fused) == 13 * ROW_BYTES + INDEX_BYTES


def test_of_a_stack_that_gets_a_row_the_row_counts():
    line = f"  %kernel = {STACK} fusion(%stack, %row, %index), kind=kLoop, calls=%fused"
    fused = f"""{PARAMETERS}
  %new = {ROW} negate(%r)
  ROOT %update = {STACK} dynamic-update-slice(%p, %new, %i, %i)"""
    assert traffic(line, fused) == 2 * ROW_BYTES + INDEX_BYTES
    view = fused.replace("ROOT %update", "%update")
    view += "\n  ROOT %view = f32[12288] bitcast(%update)"
    assert traffic(line, view) == 2 * ROW_BYTES + INDEX_BYTES


def test_a_fusion_in_a_fusion_passes_slices_on():
    inner = f"""  %q = {STACK} parameter(0)
  ROOT %copied = {STACK} copy(%q)
}}

%fused_2 (p: f32[12,1024]) -> f32[1,1024] {{
{PARAMETERS}
  %copy = {STACK} fusion(%p), kind=kLoop, calls=%fused
  ROOT %slice = {ROW} dynamic-slice(%copy, %i, %i), dynamic_slice_sizes={{1,1024}}"""
    line = FUSION.replace("calls=%fused", "calls=%fused_2")
    assert traffic(line, inner) == 2 * ROW_BYTES + INDEX_BYTES


def test_a_transposing_copy_reads_and_writes_all():
    fused = f"""{PARAMETERS}
  ROOT %copied = f32[12,1024]{{0,1}} copy(%p)"""
    line = f"  %kernel = {STACK} fusion(%stack, %row, %index), kind=kLoop, calls=%fused"
    assert traffic(line, fused) == 2 * 12 * ROW_BYTES


@pytest.mark.parametrize(
    "line, rows",
    [
        (f"  %kernel = {ROW} dynamic-slice(%stack, %index, %index)", 2),
        (f"  %kernel = {STACK} dynamic-update-slice(%stack, %row, %index, %index)", 2),
        (f"  %kernel = {STACK} add(%stack, %stack)", 36),
        ("  %kernel = f32[12,1024]{1,0:T(8,128)S(1)} negate(%stack)", 12),
        ("  %kernel = f32[12,1024]{1,0:T(8,128)S(5)} negate(%stack)", 24),
        ("  %kernel = s4[12,1024]{1,0} convert(%stack)", 13.5),
        ("  %kernel = pred[12,1024]{1,0} compare(%stack, %stack), direction=LT", 27),
    ],
)
def test_kernels_that_are_no_fusions(line, rows):
    assert traffic(line) == rows * ROW_BYTES
