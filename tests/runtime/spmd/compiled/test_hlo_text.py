"""Programs parsed from HLO text."""

from __future__ import annotations

import pytest

from meshtf.runtime.spmd.compiled.hlo_text import HloArray, parse_hlo
from tests.runtime.spmd.compiled.hlo_texts import MATMUL, module


def test_an_instruction_has_operands_attributes_and_types():
    line = (
        "  ROOT %y.1 = (f32[4,8]{1,0:T(8,128)S(1)}, /*index=1*/pred[], s4[8]) "
        'custom-call(f32[2]{0:T(256)} %w, /*index=1*/%x), custom_call_target="f(x)", '
        'metadata={op_name="a/b" stack_frame_id=1}'
    )
    (instruction,) = parse_hlo(module(line)).entry.instructions[2:]
    assert (instruction.name, instruction.opcode) == ("y.1", "custom-call")
    assert instruction.operands == ["w", "x"]
    assert instruction.op_name == "a/b"
    assert instruction.is_root
    assert instruction.results == [
        HloArray("f32", (4, 8), on_chip=True),
        HloArray("pred", ()),
        HloArray("s4", (8,)),
    ]
    assert instruction.result_bytes == 4 * 8 * 4 + 1 + 8 / 2


def test_what_a_fusion_runs():
    program = parse_hlo(module(MATMUL))
    fusion = program.entry.by_name["matmul"]
    assert [x.opcode for x in program.all_called(fusion)] == ["parameter", "dot"]
    (product,) = program.called(fusion)
    assert product.root is not None
    assert product.root.name == "dot.1"
    assert [x.name for x in product.users["p0"]] == ["dot.1"]
    assert program.partitions == 8


@pytest.mark.parametrize(
    "attributes",
    [
        "branch_computations={%one, %two}",
        "true_computation=%one, false_computation=%two",
    ],
)
def test_all_branches_of_a_conditional(attributes):
    line = f"  %y = f32[4] conditional(%w, %x, %x), {attributes}"
    conditional = parse_hlo(module(line)).entry.by_name["y"]
    assert conditional.called() == ["one", "two"]


def test_trip_counts():
    condition = """
%test (state: (s32[])) -> pred[] {
  %state = (s32[]) parameter(0)
  %count = s32[] constant(12)
  %i = s32[] get-tuple-element(%state), index=0
  ROOT %less = pred[] compare(%i, %count), direction=LT
}
"""
    loop = "  %loop = (s32[]) while(%w), condition=%test, body=%body"
    known = f'{loop}, backend_config={{"known_trip_count":{{"n":"5"}}}}'

    def trip_count(line: str, computations: str) -> int:
        program = parse_hlo(module(line, computations))
        return program.trip_count(program.entry.by_name["loop"])

    assert trip_count(loop, condition) == 12
    assert trip_count(known, condition) == 5
    assert trip_count(loop, condition.replace("LT", "NE")) == 1
    assert trip_count(loop, "") == 1
