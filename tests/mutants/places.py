"""Modules with rules that are broken, and the tests that stand nearest to them."""

from __future__ import annotations

PLAN = "meshtf.partition.planner"
MOVES = "meshtf.partition.reshard_table"
ORDERS = "meshtf.mesh.placement"
PROGRAM = "meshtf.partition.builder"
COST = "meshtf.partition.cost"
GRADIENTS = "meshtf.graph.autodiff.gradients"
BITS = "meshtf.ops.random.counter_bits"
RING = "meshtf.runtime.placed.collectives.ring"
HIERARCHY = "meshtf.runtime.placed.collectives.hierarchical"

TEST_PLAN = ("tests/partition/test_planner.py",)
TEST_MOVES = ("tests/partition/test_reshard_table.py",)
TEST_PROGRAM = ("tests/partition/test_build.py",)
TEST_GRADIENTS = ("tests/graph/autodiff/test_gradients.py",)
TEST_HALF_SUMS = ("tests/graph/autodiff/test_cotangents.py",)
TEST_RANDOM = ("tests/ops/random/test_random.py",)
TEST_COLLECTIVES = ("tests/runtime/placed/collectives/test_collectives.py",)
TEST_HIERARCHY = ("tests/runtime/placed/collectives/test_hierarchical.py",)
TEST_WRITER = ("tests/runtime/placed/program/test_program_writer.py",)
TEST_PLACED = ("tests/runtime/placed/test_executor.py",)
TEST_WINDOWS = (
    "tests/runtime/placed/test_executor.py::test_windows_may_be_longer_than_slices",
    "tests/ops/windows/test_halo.py",
)
TEST_LOOPS = ("tests/ops/loops/test_scan.py::test_a_loop_computes_what_python_would",)
