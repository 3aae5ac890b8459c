"""Rules of indexing by name, of names from attributes, and of drawings, each with the
tests that must notice."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BY_NAME = "meshtf.ops.indexing.by_name"
MODULE_PATHS = "meshtf.runtime.module_paths"
TEST_BY_NAME = ("tests/ops/indexing/test_by_name.py",)
TEST_MODULE_PATHS = ("tests/runtime/test_module_paths.py",)

OBJECTS = (
    Mutant(
        "negative indices do not count from the end",
        BY_NAME,
        "_as_dim_index",
        "integer % size",
        "max(integer, 0)",
        TEST_BY_NAME,
    ),
    Mutant(
        "a slice with a step starts at the first entry",
        BY_NAME,
        "_entries_of_slice",
        "steps * entries.step + entries.start",
        "steps * entries.step",
        TEST_BY_NAME,
    ),
    Mutant(
        "what an index points to comes first",
        BY_NAME,
        "_entries_at",
        "[*names_before, *new_names, *names_after]",
        "[*new_names, *names_before, *names_after]",
        TEST_BY_NAME,
    ),
    Mutant(
        "what is made before the constructor of the base belongs to the module",
        MODULE_PATHS,
        "current_construction",
        "construction = construction.outer",
        "return None",
        TEST_MODULE_PATHS,
    ),
    Mutant(
        "a scope does not end names from attributes",
        MODULE_PATHS,
        "scope_of",
        "_state.construction = None",
        "pass",
        TEST_MODULE_PATHS,
    ),
    Mutant(
        "all entries of a list have one name",
        MODULE_PATHS,
        "_named_items",
        '_named_items(f"{name}_{i}", item)',
        "_named_items(name, item)",
        TEST_MODULE_PATHS,
    ),
    Mutant(
        "the axes of one dimension are not combined",
        "meshtf.display.mesh_grid",
        "_shard_label",
        "shards.get(state, (0, size, size))",
        "(0, size, size)",
        ("tests/display/test_mesh_grid.py",),
    ),
)
