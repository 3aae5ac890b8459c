"""The house: imports point one way, files and functions stay short, and everything says
what it is.

Nearly everything is read with `ast`, so that it does not depend on what importing a
module would do.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from meshtf.graph import Spec
from meshtf.graph.tensor import tensor_of_value
from meshtf.names import Shape
from meshtf.partition import segments, steps

pytestmark = pytest.mark.every_case

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("meshtf", "transformer", "examples", "benchmarks")
MOST_FILES = 12  # of a folder, without __init__.py and __main__.py
MACHINE_PATHS = re.compile(r"/(work|root|home|Users|workspace|mnt)/\w|\b[A-Z]:\\\\")
PRIVATE_TENSORFLOW = re.compile(r"tensorflow[.](python|compiler)\b|_py[w]rap")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError\(\)")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def files(*folders: str) -> list[Path]:
    """Returns the Python files of some folders."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@functools.cache
def tree(path: Path) -> ast.Module:
    """Returns a file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def here(path: Path, node: ast.AST | None = None) -> str:
    """Returns "file:line", as editors open it."""
    name = path.relative_to(ROOT).as_posix()
    return name if node is None else f"{name}:{node.lineno}"


def imports(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Yields every module that a file imports, anywhere in it: `a.b` for
    `from a.b import c`.
    """
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{here(path, node)}: imports are absolute"
            for alias in node.names:
                below = ROOT / (node.module or "").replace(".", "/") / alias.name
                inner = below.is_dir() or below.with_suffix(".py").is_file()
                yield (
                    node,
                    f"{node.module}.{alias.name}" if inner else node.module or "",
                )


def functions(path: Path) -> Iterator[Function]:
    """Yields every function of a file, inner ones too."""
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def body_lines(function: Function) -> int:
    """Returns the lines of a body, without signature and docstring."""
    body = (
        function.body[1:] if ast.get_docstring(function) is not None else function.body
    )
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_folders_have_room():
    numbers = collections.Counter(
        path.parent.relative_to(ROOT).as_posix()
        for path in files(*PACKAGES, "tests")
        if path.name not in ("__init__.py", "__main__.py")
    )
    assert not {name: n for name, n in numbers.items() if n > MOST_FILES}


def test_no_module_that_is_run_holds_configurables():
    wrong = []  # run with -m it would be there twice, and gin would see both
    for path in files("transformer", "examples"):
        text = path.read_text(encoding="utf-8")
        if 'if __name__ == "__main__"' in text and re.search(
            r"@gin\.(configurable|register)", text
        ):
            wrong.append(here(path))
    assert not wrong, wrong


def test_files_are_short():
    lines = {
        path: len(path.read_text(encoding="utf-8").splitlines())
        for path in files(*PACKAGES, "tests")
    }
    long = {here(path): number for path, number in lines.items() if number > 400}
    assert not long, long
    ours = [number for path, number in lines.items() if "tests" not in path.parts]
    assert statistics.median(ours) < 150


def test_functions_are_short():
    bodies = {
        here(path, function): body_lines(function)
        for path in files(*PACKAGES, "tests")
        for function in functions(path)
    }
    long = {place: number for place, number in bodies.items() if number > 50}
    assert not long, long
    assert statistics.quantiles(bodies.values(), n=10)[-1] <= 25


def test_every_file_says_what_it_is():
    wrong = [
        here(path)
        for path in files(*PACKAGES, "tests")
        if not ast.get_docstring(tree(path))
    ]
    assert not wrong, wrong


def test_public_things_say_what_they_are():
    wrong = [
        f"{here(path, node)}: {node.name}"
        for path in files("meshtf", "transformer")
        for node in _public(tree(path))
        if not ast.get_docstring(node)
    ]
    assert not wrong, "\n".join(wrong)


def _public(scope: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    """Yields public functions, classes and methods. What a class takes over from a
    base, such as the methods of an op or a Protocol, is told there; so methods of a
    subclass may be without words."""
    for node in scope.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            if any(ast.unparse(d) == "overload" for d in node.decorator_list):
                continue  # types alone: the function that follows has the words
            yield node
            if isinstance(node, ast.ClassDef) and not node.bases:
                yield from _public(node)


def _op_classes() -> dict[str, tuple[Path, ast.ClassDef]]:
    """Returns the classes of meshtf/ops, ops and others, by name."""
    return {
        node.name: (path, node)
        for path in files("meshtf/ops")
        for node in tree(path).body
        if isinstance(node, ast.ClassDef)
    }


def class_lines(node: ast.ClassDef, text: str) -> int:
    """Returns the lines of code of a class, without docstrings, comments,
    and samples.
    """
    words = [
        item
        for item in ast.walk(node)
        if isinstance(item, ast.Expr)
        and isinstance(item.value, ast.Constant)
        and isinstance(item.value.value, str)
    ]
    words += [
        item
        for item in node.body
        if isinstance(item, ast.Assign)
        and ast.unparse(item.targets[0]) == "conformance_samples"
    ]
    left_out = {n for item in words for n in range(item.lineno, item.end_lineno + 1)}
    lines = enumerate(text.splitlines()[node.lineno : node.end_lineno], node.lineno + 1)
    return sum(
        n not in left_out and not re.match(r"\s*(#|$)", line) for n, line in lines
    )


def test_ops_are_short():
    classes = _op_classes()
    lines = {
        f"{path.stem}.{name}": class_lines(node, path.read_text(encoding="utf-8"))
        for name, (path, node) in classes.items()
        if _is_op(name, classes)
    }
    print(
        f"{len(lines)} classes of ops; lines: median "
        f"{statistics.median(lines.values()):g}, most {max(lines.values())}, "
        f"{max(lines, key=lines.get)}"
    )
    assert not {name: number for name, number in lines.items() if number > 50}
    assert statistics.median(lines.values()) < 25


def test_every_op_has_samples():
    ops = _op_classes()
    wrong = [
        f"{here(path, node)}: {name}"
        for name, (path, node) in ops.items()
        if _says(node, "local")
        and _is_op(name, ops)
        and not name.startswith("_")
        and not any(
            _says(c, "conformance_samples") or _says(c, "effect")
            for c in _lineage(name, ops)
        )
    ]
    assert not wrong, "the conformance suite would not try these:\n" + "\n".join(wrong)


def _says(node: ast.ClassDef, name: str) -> bool:
    """Returns whether a class itself defines a method or a value."""
    return any(
        isinstance(item, Function)
        and item.name == name
        or isinstance(item, ast.Assign)
        and any(ast.unparse(t) == name for t in item.targets)
        or isinstance(item, ast.AnnAssign)
        and item.value
        and ast.unparse(item.target) == name
        for item in node.body
    )


def _lineage(
    name: str, classes: dict[str, tuple[Path, ast.ClassDef]]
) -> Iterator[ast.ClassDef]:
    """Yields a class and those of its bases that are among `classes`."""
    if name in classes:
        yield classes[name][1]
        for base in classes[name][1].bases:
            yield from _lineage(ast.unparse(base).split(".")[-1], classes)


def _is_op(name: str, classes: dict[str, tuple[Path, ast.ClassDef]]) -> bool:
    return any(
        ast.unparse(base).split(".")[-1] == "Op"
        for node in _lineage(name, classes)
        for base in node.bases
    )


TEXTS = ("*.py", "*.md", "*.gin", "*.toml", "Makefile", ".ci/run", ".gitignore")


def lines_that_match(*patterns: re.Pattern[str]) -> list[str]:
    """Returns the lines of the repository's texts that match one of some patterns, each
    with its place; this file is left out.
    """
    found = []
    for pattern in TEXTS:
        for path in ROOT.glob(pattern if "/" in pattern else f"**/{pattern}"):
            inside = path.relative_to(ROOT)
            if path == Path(__file__) or inside.parts[0] in (
                ".venv",
                "build",
                "dist",
                "runs",
            ):
                continue
            for number, line in enumerate(
                path.read_text(encoding="utf-8").splitlines(), 1
            ):
                if any(pattern.search(line) for pattern in patterns):
                    found.append(f"{inside.as_posix()}:{number}: {line.strip()}")
    return found


def test_nothing_names_a_machine_or_is_left_unfinished():
    wrong = lines_that_match(MACHINE_PATHS, UNFINISHED)
    assert not wrong, "\n".join(wrong)


def test_private_tensorflow_has_one_place():
    wrong = [
        line
        for line in lines_that_match(PRIVATE_TENSORFLOW)
        if not line.startswith("meshtf/runtime/tf_internals/")
    ]
    assert not wrong, "\n".join(wrong)


CLASS = """@frozen
class A(Op):
  '''Says.

  More.'''

  dim: str
  conformance_samples = (Sample(1),
             Sample(2))

  def output_specs(self, x):
    '''Says.'''
    # why
    return (x,
            x)
"""


def test_lines_of_a_class_are_counted_without_words_and_samples():
    assert class_lines(ast.parse(CLASS).body[0], CLASS) == 4


@pytest.mark.parametrize(
    "text, lines",
    [
        ("def f():\n  '''Says.'''\n  return 1\n", 1),
        ("def f(a,\n      b):\n  x = a\n  return (x +\n          b)\n", 3),
        ("def f():\n  '''Says only.'''\n", 0),
    ],
)
def test_a_body_is_counted_without_signature_and_docstring(text, lines):
    assert body_lines(ast.parse(text).body[0]) == lines


def test_what_was_recorded_or_planned_never_changes():
    plans = (steps.Value, *get_args(steps.Step), steps.Program, segments.Segment)
    assert all(plan.__dataclass_params__.frozen for plan in plans)
    with pytest.raises(dataclasses.FrozenInstanceError):
        tensor_of_value(Spec(Shape(), "int32"), None, None).node.inputs = ()
    recorded = ("node", "step", "segment", "program")
    changed = [
        here(path, target)
        for path in files("meshtf")
        for node in ast.walk(tree(path))
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute)
        and ast.unparse(target.value).split(".")[-1] in recorded
        and ast.unparse(target.value) != "self"
    ]
    assert not changed, changed
