"""A step answers for itself: nobody asks for its class but the tables of the runtimes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from meshtf.partition import Step
from tests.documentation.test_house import files, tree

pytestmark = pytest.mark.every_case


def classes(base: type) -> Iterator[type]:
    """Yields the classes that derive from a class."""
    for derived in base.__subclasses__():
        yield derived
        yield from classes(derived)


def test_no_one_asks_for_the_class_of_a_step():
    names = {"Step", *(x.__name__ for x in classes(Step))}
    found = []
    for path in files("meshtf", "transformer"):
        for call in ast.walk(tree(path)):
            is_question = (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id in ("isinstance", "issubclass")
            )
            if is_question:
                asked = {
                    x.id for x in ast.walk(call.args[1]) if isinstance(x, ast.Name)
                }
                if asked & names:
                    found.append(f"{path}:{call.lineno}")
    assert not found, "ask the step (`Step`), or add to its contract:\n" + "\n".join(
        found
    )
