"""Lines hold one statement, names are those of the field, and docstrings give shapes.

What is not so yet stands in a list with its reason. An entry that is no longer needed
fails as well, so the lists only shrink.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documentation.test_house import ROOT, Function, files, here, tree
from tests.house.allowances import (
    MIRRORS_NO_FILE,
    RETIRED_STILL_USED,
    WITHOUT_SHAPES,
)

pytestmark = pytest.mark.every_case

MAX_MEAN_DENSITY = 8.7  # syntax nodes a code line, over a package
MAX_FUNCTION_DENSITY = 20.0
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (ast.Module, ast.ClassDef, *FUNCTIONS)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

# Words that say nothing of the thing they name, and the field's words for it.
RETIRED = {
    "alike": "equal, identical",
    "apart": "separate",
    "around": "outer",
    "beside": "asynchronous",
    "bring": "reshard, send",
    "came": "received",
    "clash": "conflict",
    "cut": "sharded, truncate",
    "cuts": "sharded, truncate",
    "different": "distinct_NOUN",
    "found": "match, result, devices",
    "given": "arguments",
    "half": "say which",
    "halves": "say which",
    "held": "shards, stored_NOUN",
    "here": "context, local",
    "home": "device",
    "homes": "devices",
    "inside": "inner",
    "kept": "residuals, remaining",
    "later": "deferred_calls",
    "lists": "unstacked_values",
    "look": "attend",
    "made": "outputs, results",
    "mine": "local_NOUN",
    "more": "extra_NOUN",
    "most": "peak, maximum",
    "number": "count, index, step",
    "numbers": "scalars, values",
    "others": "other_NOUN",
    "outside": "outer",
    "own": "local_NOUN",
    "part": "shard, microbatch, section",
    "parts": "shards, sections",
    "place": "placement, index",
    "places": "placements, indices",
    "remember": "project_keys_values",
    "same": "equal, shared_attributes",
    "sight": "attention_mask",
    "slowly": "say what it does",
    "some": "subset, group",
    "spread": "to_positions",
    "taken": "captured_values",
    "there": "present",
    "told": "statistics",
    "turn": "iteration, step",
    "turned": "rotated, transposed",
    "turns": "iterations",
    "walked": "scanned_inputs",
    "want": "expected",
    "wanted": "required, expected",
    "what": "kind, label",
    "which": "indices",
    "whole": "global, replicated",
    "wish": "preferred_placement",
}


@dataclasses.dataclass
class Facts:
    """What one walk over the syntax tree of a file collects.

    Attributes:
      nodes: the number of syntax nodes.
      code_lines: the numbers of lines of code: no docstring, no comment, not empty.
      functions: each function with the number of its nodes.
      long_comprehensions: those with more than two loops.
      multiple_assignments: assignments to several attributes.
      names: variables, arguments, attributes, functions and classes that the file
        defines, without leading underscores.
    """

    code_lines: set[int]
    nodes: int = 0
    functions: list[tuple[Function, int]] = dataclasses.field(default_factory=list)
    long_comprehensions: list[ast.AST] = dataclasses.field(default_factory=list)
    multiple_assignments: list[ast.AST] = dataclasses.field(default_factory=list)
    names: set[str] = dataclasses.field(default_factory=set)


@functools.cache
def facts(path: Path) -> Facts:
    """Returns what a walk over a file collects."""
    lines = path.read_text(encoding="utf-8").splitlines()
    code = {i for i, line in enumerate(lines, 1) if line.strip() and not COMMENT(line)}
    collected = Facts(code)
    collected.nodes = collect(tree(path), collected)
    return collected


COMMENT = re.compile(r"\s*#").match


def collect(node: ast.AST, collected: Facts) -> int:
    """Adds what a tree has to `collected`, and returns the number of its nodes."""
    count = 1
    for child in ast.iter_child_nodes(node):
        count += collect(child, collected)
    kind = type(node)
    if kind is ast.Name or kind is ast.Attribute:
        if isinstance(node.ctx, ast.Store):
            name = node.id if kind is ast.Name else node.attr
            collected.names.add(name.strip("_"))
    elif kind is ast.arg:
        collected.names.add(node.arg.strip("_"))
    elif kind is ast.Assign:
        if sum(map(attribute_targets, node.targets)) > 1:
            collected.multiple_assignments.append(node)
    elif kind in COMPREHENSIONS:
        if len(node.generators) > 2:
            collected.long_comprehensions.append(node)
    elif kind in SCOPES:
        if ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines = range(docstring.lineno, docstring.end_lineno + 1)
            collected.code_lines.difference_update(lines)
        if kind is not ast.Module:
            collected.names.add(node.name.strip("_"))
        if isinstance(node, FUNCTIONS):
            collected.functions.append((node, count))
    return count


def attribute_targets(target: ast.expr) -> int:
    """Returns how many attributes an assignment to a target sets."""
    if isinstance(target, ast.Tuple | ast.List):
        return sum(map(attribute_targets, target.elts))
    if isinstance(target, ast.Starred):
        return attribute_targets(target.value)
    return int(isinstance(target, ast.Attribute))


def function_densities(path: Path) -> Iterator[tuple[Function, float]]:
    """Yields each function of a file with its syntax nodes a code line. Functions of one
    statement are left out: there the types of the arguments are most of the nodes.
    """
    code_lines = facts(path).code_lines
    for function, nodes in facts(path).functions:
        lines = range(function.lineno, function.end_lineno + 1)
        count = len(code_lines.intersection(lines))
        if count > 2:
            yield function, nodes / count


@pytest.mark.parametrize("package", ["meshtf", "transformer"])
def test_lines_hold_little(package):
    nodes = sum(facts(path).nodes for path in files(package))
    lines = sum(len(facts(path).code_lines) for path in files(package))
    assert nodes / lines <= MAX_MEAN_DENSITY


def test_no_function_is_dense():
    dense = [
        f"{here(path, function)}: {function.name} has {density:.1f} nodes a line"
        for path in files("meshtf", "transformer")
        for function, density in function_densities(path)
        if density > MAX_FUNCTION_DENSITY
    ]
    assert not dense, "name what the lines compute:\n" + "\n".join(dense)


def test_density_counts_nodes_of_code_lines(tmp_path):
    path = tmp_path / "a.py"
    text = 'def f(x):\n  """Says."""\n\n  # why\n  pass\n  return x\n'
    path.write_text(text, "utf-8")
    nodes = "FunctionDef arguments arg Expr Constant Pass Return Name Load".split()
    assert [density for _, density in function_densities(path)] == [len(nodes) / 3]


def test_a_line_assigns_one_attribute():
    wrong = [
        here(path, node)
        for path in files("meshtf", "transformer")
        for node in facts(path).multiple_assignments
    ]
    assert not wrong, "\n".join(wrong)


def test_comprehensions_have_at_most_two_loops():
    wrong = [
        here(path, node)
        for path in files("meshtf", "transformer")
        for node in facts(path).long_comprehensions
    ]
    assert not wrong, "\n".join(wrong)


TWO_OF_EACH = """
class A:
    def __init__(self, b, c):
        self.b, self.c = b, c
        self.pairs = [x for x in b for y in c for z in y]
"""


def test_a_walk_finds_what_lines_must_not_hold(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(TWO_OF_EACH, "utf-8")
    assert len(facts(path).multiple_assignments) == 1
    assert len(facts(path).long_comprehensions) == 1
    names = {"A", "init", "self", "b", "c", "pairs", "x", "y", "z"}
    assert facts(path).names == names


def test_names_are_those_of_the_field():
    used = {}
    for path in files("meshtf", "transformer"):
        words = RETIRED.keys() & facts(path).names
        if words:
            used[here(path)] = words
    wrong = [
        f"{place}: {word} -> {RETIRED[word]}"
        for place, words in used.items()
        for word in sorted(words - RETIRED_STILL_USED.get(place, set()))
    ]
    assert not wrong, "\n".join(wrong)
    done = no_longer_needed(RETIRED_STILL_USED, used)
    assert not done, f"take these out of RETIRED_STILL_USED: {done}"


def no_longer_needed(
    allowed: dict[str, set[str]], used: dict[str, set[str]]
) -> dict[str, set[str]]:
    """Returns the allowances of each file that it does not use."""
    unused = {}
    for place, words in allowed.items():
        rest = words - used.get(place, set())
        if rest:
            unused[place] = rest
    return unused


def mirrored(test: Path) -> list[Path]:
    """Returns the files that a test file may mirror."""
    folder = test.relative_to(ROOT / "tests").parent
    name = test.name.removeprefix("test_")
    return [
        ROOT / folder / name,
        ROOT / "meshtf" / folder / name,
        ROOT / folder / name.removesuffix(".py") / "__init__.py",
        ROOT / "meshtf" / folder / name.removesuffix(".py") / "__init__.py",
    ]


def test_test_files_mirror_files():
    without = {
        here(path)
        for path in files("tests")
        if path.name.startswith("test_")
        and not any(file.is_file() for file in mirrored(path))
    }
    unknown = [
        place
        for place in sorted(without)
        if not place.startswith(tuple(MIRRORS_NO_FILE))
    ]
    assert not unknown, "name these after the file that they test:\n" + "\n".join(
        unknown
    )
    done = [
        place
        for place in MIRRORS_NO_FILE
        if not any(name.startswith(place) for name in without)
    ]
    assert not done, f"take these out of MIRRORS_NO_FILE: {done}"


def public_functions(path: Path) -> Iterator[tuple[str, Function]]:
    """Yields the public functions of a file, and the methods of its public classes."""
    for node in tree(path).body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node.name, node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in node.body:
                is_public = isinstance(method, Function) and (
                    method.name == "__call__" or not method.name.startswith("_")
                )
                if is_public:
                    yield f"{node.name}.{method.name}", method


def has_tensors(function: Function) -> bool:
    """Returns whether a function takes or returns tensors, by its annotations."""
    arguments = function.args
    annotated = [*arguments.args, *arguments.kwonlyargs, arguments.vararg]
    annotations = [argument.annotation for argument in annotated if argument]
    return any(
        re.search(r"\bTensor(Like)?\b", ast.unparse(annotation))
        for annotation in (*annotations, function.returns)
        if annotation
    )


def gives_shape(docstring: str) -> bool:
    """Returns whether a docstring gives a shape such as `[batch, length]`, or says that
    the shape stays.
    """
    stays = r"\belementwise\b|\bbroadcast by names\b|\bshape of\b"
    return bool(re.search(rf"\[[^\]]*\]|{stays}", " ".join(docstring.split())))


def test_public_functions_give_shapes():
    without = {}
    for path in files("meshtf/ops", "meshtf/layers"):
        names = {
            name
            for name, function in public_functions(path)
            if has_tensors(function)
            and not any("overload" in ast.unparse(d) for d in function.decorator_list)
            # The methods of ops are those of `Op`.
            and not (path.is_relative_to(ROOT / "meshtf/ops") and "." in name)
            and not gives_shape(ast.get_docstring(function) or "")
        }
        if names:
            without[here(path)] = names
    wrong = no_longer_needed(without, WITHOUT_SHAPES)
    assert not wrong, f"docstrings give shapes, such as [batch, length]: {wrong}"
    done = no_longer_needed(WITHOUT_SHAPES, without)
    assert not done, f"take these out of WITHOUT_SHAPES: {done}"
