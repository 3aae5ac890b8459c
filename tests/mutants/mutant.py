"""Mutants: one rule of the library broken, for one process; nothing on disk changes.

A mutant names a function and an expression or statement in it, and what takes its
place. Both are compared as syntax trees, so spaces and line breaks do not matter:

    Mutant("sum dropped", "meshtf.graph.autodiff.cotangents", "Cotangents.add",
           "total + dx", "dx", ("tests/graph/autodiff/test_gradients.py",))

`install` makes the next import of that module take a changed copy.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    """A rule that is broken."""

    name: str
    module: str
    function: str  # qualified, such as "Builder.reshard_to"
    old: str  # an expression or one statement, which the function has exactly once
    new: str
    tests: tuple[str, ...]  # what must notice it: files, or single tests of them

    @property
    def slug(self) -> str:
        """The name as one word, for a command line."""
        return self.name.replace(" ", "-")


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """Returns the syntax tree of a module with the mutant's change.

    Raises:
      LookupError: the module lacks the function, or the function has `old` not exactly
        once.
    """
    tree = ast.parse(source)
    function = _find_function(tree, mutant)
    replacer = _Replacer(_parse(mutant.old), _parse(mutant.new))
    replacer.visit(function)
    if replacer.count != 1:
        raise LookupError(
            f"mutant {mutant.name!r}: {mutant.module}.{mutant.function} has "
            f"`{mutant.old}` {replacer.count} times, not once. Bring it up to date."
        )
    return ast.fix_missing_locations(tree)


def install(mutant: Mutant) -> None:
    """Lets this process import the mutant's module with its change."""
    if mutant.module in sys.modules:
        raise RuntimeError(
            f"{mutant.module} was imported before its mutant was installed."
        )
    sys.meta_path.insert(0, _Finder(mutant))


def _find_function(tree: ast.Module, mutant: Mutant) -> ast.AST:
    scope: Any = tree
    for name in mutant.function.split("."):
        definitions = [n for n in scope.body if getattr(n, "name", None) == name]
        if not definitions:
            raise LookupError(
                f"mutant {mutant.name!r}: {mutant.module} has no {mutant.function}. "
                "Bring it up to date."
            )
        scope = definitions[-1]
    return scope


def _parse(text: str) -> ast.AST:
    """Returns an expression, or else a statement."""
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        (statement,) = ast.parse(text).body
        return statement


class _Replacer(ast.NodeTransformer):
    """Replaces what is equal to `old`, and counts how often."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old = ast.dump(old)
        self._new = new
        self.count = 0

    def visit(self, node: ast.AST) -> Any:
        if ast.dump(node) == self._old:
            self.count += 1
            return self._new
        return self.generic_visit(node)


class _Finder(importlib.abc.MetaPathFinder):
    """Has the mutant's module loaded from a changed copy of its file.

    A copy, since AutoGraph compiles functions anew from the file that they came from.
    """

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._folder = tempfile.TemporaryDirectory(prefix="mutant")

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> Any:
        if fullname != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).read_text(encoding="utf-8")
        copy = Path(self._folder.name, Path(spec.origin).name)
        copy.write_text(ast.unparse(mutated(source, self._mutant)), encoding="utf-8")
        return importlib.util.spec_from_file_location(fullname, copy)
