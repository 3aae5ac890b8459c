"""Lines hold one statement, names are those of the field, and docstrings give shapes.

What is not so yet stands in a list with its reason. An entry that is no longer needed
fails as well, so the lists only shrink.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documentation.test_house import PACKAGES, ROOT, Function, files, here, tree

MAX_MEAN_DENSITY = 8.7  # syntax nodes a code line, over a package
MAX_FUNCTION_DENSITY = 20.0
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}

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
# Files in which such words still are names.
RETIRED_STILL_USED: dict[str, set[str]] = {}
# Public functions whose docstring gives no shape.
WITHOUT_SHAPES: dict[str, set[str]] = {}
# Tests of what no single file does, by file or folder.
MIRRORS_NO_FILE: dict[str, str] = {}


def docstring_lines(scope: ast.AST) -> set[int]:
    """Returns the numbers of the lines that are docstrings."""
    lines: set[int] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            if ast.get_docstring(node, clean=False) is not None:
                docstring = node.body[0]
                lines.update(range(docstring.lineno, docstring.end_lineno + 1))
    return lines


@functools.cache
def code_lines(path: Path) -> frozenset[int]:
    """Returns the numbers of the lines of code: no docstring, no comment, not empty."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return frozenset(lines - docstring_lines(tree(path)))


@functools.cache
def nodes_below(node: ast.AST) -> int:
    """Returns the number of syntax nodes of a tree, its root included."""
    return 1 + sum(nodes_below(child) for child in ast.iter_child_nodes(node))


def function_densities(path: Path) -> Iterator[tuple[Function, float]]:
    """Yields each function of a file with its syntax nodes a code line."""
    lines = code_lines(path)
    for node in ast.walk(tree(path)):
        if isinstance(node, Function):
            count = len(lines & set(range(node.lineno, node.end_lineno + 1)))
            yield node, nodes_below(node) / max(count, 1)


@pytest.mark.parametrize("package", ["meshtf", "transformer"])
def test_lines_hold_little(package):
    nodes = sum(nodes_below(tree(path)) for path in files(package))
    lines = sum(len(code_lines(path)) for path in files(package))
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
    path.write_text('def f(x):\n  """Says."""\n\n  # why\n  return x\n', "utf-8")
    nodes = "FunctionDef arguments arg Expr Constant Return Name Load".split()
    assert [density for _, density in function_densities(path)] == [len(nodes) / 2]


def attribute_targets(target: ast.expr) -> int:
    """Returns how many attributes an assignment to a target sets."""
    if isinstance(target, ast.Tuple | ast.List):
        return sum(map(attribute_targets, target.elts))
    if isinstance(target, ast.Starred):
        return attribute_targets(target.value)
    return int(isinstance(target, ast.Attribute))


def test_a_line_assigns_one_attribute():
    wrong = [
        here(path, node)
        for path in files("meshtf", "transformer")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Assign)
        and sum(map(attribute_targets, node.targets)) > 1
    ]
    assert not wrong, "\n".join(wrong)


def test_comprehensions_have_at_most_two_loops():
    wrong = [
        here(path, node)
        for path in files(*PACKAGES)
        for node in ast.walk(tree(path))
        if isinstance(node, COMPREHENSIONS) and len(node.generators) > 2
    ]
    assert not wrong, "\n".join(wrong)


def defined_names(path: Path) -> Iterator[str]:
    """Yields the names that a file defines: variables, arguments, attributes,
    functions and classes, without leading underscores.
    """
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id.strip("_")
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr.strip("_")
        elif isinstance(node, ast.arg):
            yield node.arg.strip("_")
        elif isinstance(node, ast.ClassDef | Function):
            yield node.name.strip("_")


def test_names_are_those_of_the_field():
    used = {
        here(path): words
        for path in files("meshtf", "transformer")
        if (words := RETIRED.keys() & set(defined_names(path)))
    }
    wrong = [
        f"{place}: {word} -> {RETIRED[word]}"
        for place, words in used.items()
        for word in sorted(words - RETIRED_STILL_USED.get(place, set()))
    ]
    assert not wrong, "\n".join(wrong)
    done = {
        place: words - used.get(place, set())
        for place, words in RETIRED_STILL_USED.items()
        if words - used.get(place, set())
    }
    assert not done, f"take these out of RETIRED_STILL_USED: {done}"


def mirrored(test: Path) -> list[Path]:
    """Returns the files that a test file may mirror."""
    folder = test.relative_to(ROOT / "tests").parent
    name = test.name.removeprefix("test_")
    return [
        ROOT / folder / name,
        ROOT / "meshtf" / folder / name,
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
        if place not in MIRRORS_NO_FILE
        and f"{Path(place).parent}/" not in MIRRORS_NO_FILE
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
                if isinstance(method, Function) and not method.name.startswith("_"):
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
            # The methods of ops are those of `Op`.
            and not (path.is_relative_to(ROOT / "meshtf/ops") and "." in name)
            and not gives_shape(ast.get_docstring(function) or "")
        }
        if names:
            without[here(path)] = names
    wrong = {
        place: names - WITHOUT_SHAPES.get(place, set())
        for place, names in without.items()
        if names - WITHOUT_SHAPES.get(place, set())
    }
    assert not wrong, f"docstrings give shapes, such as [batch, length]: {wrong}"
    done = {
        place: names - without.get(place, set())
        for place, names in WITHOUT_SHAPES.items()
        if names - without.get(place, set())
    }
    assert not done, f"take these out of WITHOUT_SHAPES: {done}"
