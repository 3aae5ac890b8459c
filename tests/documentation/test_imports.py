"""Imports point one way: between packages, between folders, and never in a circle of files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documentation.test_house import ROOT, files, here, imports

pytestmark = pytest.mark.every_case

# Whoever imports stands above what it imports; equals, such as ops and partition, never
# meet.
RANKS = {
    "version": 0,
    "errors": 0,
    "display": 0,
    "deferred_tensorflow": 0,
    "garbage": 0,
    "command_line": 1,
    "unknown_name": 1,
    "late_names": 1,
    "names": 1,
    "mesh": 2,
    "hardware": 2,
    "graph": 3,
    "ops": 4,
    "partition": 4,
    "math": 5,
    "forecast": 5,
    "runtime": 5,
    "checkpoints": 6,
    "cluster": 6,
    "function": 6,
    "module": 6,
    "saved_model": 7,
    "layers": 7,
    "optimizers": 8,
    "decoding": 8,
    "pipeline": 8,
    "layout_search": 7,
    "testing": 9,
    "calibration": 9,
    "__init__": 10,
    "commands": 10,
    "__main__": 11,
    "tensorflow_import": 11,
    "keras": 12,
}
# Folders of ops and of the runtime: those after import those before.
FOLDERS = {
    "meshtf/graph": ("", "autodiff", "control_flow"),
    "meshtf/ops": (
        "common",
        "shapes",
        "variables",
        "elementwise",
        "reductions",
        "control",
        "slicewise",
        "indexing",
        "linear",
        "windows",
        "scans",
        "sorting",
        "nn",
        "random",
        "attention",
        "loops",
        "",
    ),
    "meshtf/runtime": (
        "tf_internals",
        "devices",
        "storage",
        "lowering/padding",
        "lowering",
        "placed/program",
        "placed/collectives",
        "placed/variables",
        "placed",
        "spmd/module",
        "spmd/live",
        "spmd/stages",
        "spmd/compiled",
        "spmd",
        "",
    ),
    "meshtf/layers": ("", "attention", "attention/context_parallel", "tables"),
}
TRANSFORMER_FOLDERS = (
    "experts",
    "models",
    "data",
    "cli",
    "inference",
    "training",
    "convert",
)
SEPARATE = {("meshtf/runtime", "placed", "spmd"), ("meshtf/runtime", "spmd", "placed")}
WITHOUT_TENSORFLOW = (
    "errors",
    "deferred_tensorflow",
    "display",
    "command_line",
    "names",
    "mesh",
    "graph",
    "partition",
    "forecast",
)


def part(path: Path) -> str:
    """Returns which part of meshtf a file belongs to."""
    return path.relative_to(ROOT / "meshtf").parts[0].removesuffix(".py")


def test_imports_point_one_way():
    wrong = []
    for path in files("meshtf"):
        for node, name in imports(path):
            top, *rest = name.split(".")
            if top == "meshtf" and rest and rest[0] != part(path):
                if RANKS.get(rest[0], 99) >= RANKS.get(part(path), -1):
                    wrong.append(f"{here(path, node)}: {part(path)} imports {name}")
    assert not wrong, "\n".join(wrong)


def folder(path: Path, top: str) -> str:
    """Returns the folder of a file within a package, such as "placed/collectives"."""
    inside = path.parent.relative_to(ROOT / top).as_posix()
    return "" if inside == "." else inside


def module_file(name: str) -> Path:
    """Returns the file of a module of this repository."""
    path = ROOT / name.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("top", FOLDERS)
def test_folders_import_one_way(top):
    order, wrong = FOLDERS[top], []
    for path in files(top):
        if path.name == "__init__.py":
            continue
        here_in = folder(path, top)
        for node, name in imports(path):
            if not name.startswith(top.replace("/", ".") + "."):
                continue
            there = folder(module_file(name), top)
            upwards = order.index(there) > order.index(here_in)
            if upwards or (top, here_in, there) in SEPARATE:
                wrong.append(f"{here(path, node)}: {here_in or top} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_folders_of_the_transformer_library_import_one_way():
    order, wrong = TRANSFORMER_FOLDERS, []
    for path in files("transformer"):
        here_in = path.relative_to(ROOT / "transformer").parts[0]
        if here_in not in order:
            continue  # a command, which may import all folders
        for node, name in imports(path):
            top, _, inner = name.partition(".")
            there = inner.partition(".")[0]
            if top == "transformer" and there != here_in:
                if there not in order[: order.index(here_in)]:
                    wrong.append(f"{here(path, node)}: {here_in} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_one_file_knows_all_runtimes():
    """Nobody but the table takes a runtime by its class; the front end of functions
    knows of the folders only what exports."""
    both = {
        here(path)
        for path in files("meshtf")
        if {"meshtf.runtime.placed.runtime", "meshtf.runtime.spmd.runtime"}
        & {name for _, name in imports(path)}
    }
    assert both == {"meshtf/runtime/runtimes.py"}
    wrong = [
        f"{here(path, node)}: {name}"
        for path in files("meshtf/function", "meshtf/checkpoints", "meshtf/ops")
        for node, name in imports(path)
        if re.match(r"meshtf\.runtime\.(placed|spmd\.|lowering)", name)
    ]
    assert not wrong, "\n".join(wrong)


def test_lowering_knows_no_runtime():
    wrong = [
        f"{here(path, node)}: {name}"
        for path in files("meshtf/runtime/lowering")
        for node, name in imports(path)
        if name.startswith(("meshtf.runtime.placed", "meshtf.runtime.spmd"))
    ]
    assert not wrong, "\n".join(wrong)


def test_ops_import_no_runtime():
    wrong = [
        f"{here(path, node)}: {name}"
        for path in files("meshtf/ops")
        for node, name in imports(path)
        if name.startswith("meshtf.runtime")
    ]
    assert not wrong, "\n".join(wrong)


# Files of a base class, whose members say which of its classes an object is: it imports them for
# types only.
BASES = ("meshtf/partition/steps/step.py",)


def test_no_files_import_each_other():
    """Late imports and those for types count as well, but for `BASES`."""
    arrows = {
        path: {module_file(name) for _, name in imports(path)} - {path}
        for path in files("meshtf", "transformer")
        if path.name != "__init__.py"
    }
    for path in (ROOT / base for base in BASES):
        arrows[path] -= set(path.parent.iterdir())
    left = dict(arrows)
    while left:
        free = [path for path, others in left.items() if not others & left.keys()]
        assert free, f"a circle among {sorted(map(here, left))}"
        for path in free:
            del left[path]


def test_every_part_of_the_library_has_a_rank():
    unknown = sorted({part(path) for path in files("meshtf")} - set(RANKS))
    assert not unknown, f"say in RANKS where these stand: {unknown}"


def test_nobody_inside_imports_the_root():
    wrong = [
        here(path, node)
        for path in files("meshtf")
        if part(path) != "__main__"
        for node, name in imports(path)
        if name == "meshtf"
    ]
    assert not wrong, wrong


def test_planning_needs_no_tensorflow():
    wrong = [
        here(path, node)
        for path in files("meshtf")
        if part(path) in WITHOUT_TENSORFLOW
        for node, name in imports(path)
        if name.split(".")[0] in ("tensorflow", "keras")
    ]
    assert not wrong, wrong


def test_checkpoints_know_storage_by_its_slots_alone():
    tensorflows = re.compile(
        r"tf\.Variable|DeviceSpec|/device:|\.handle\b|\.read_value|TensorFlowSlot"
        r"|VariableOp"
    )
    wrong = [
        f"{here(path)}:{number}: {line.strip()}"
        for path in files("meshtf/checkpoints")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if tensorflows.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_models_and_examples_use_the_front_door_only():
    wrong = [
        f"{here(path, node)}: {name}"
        for path in files("transformer", "examples")
        for node, name in imports(path)
        if name.startswith("meshtf.")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_library_knows_no_model_and_no_configuration():
    wrong = [
        f"{here(path, node)}: {name}"
        for path in files("meshtf")
        for node, name in imports(path)
        if name.split(".")[0] in ("gin", "transformer")
    ]
    assert not wrong, "\n".join(wrong)
