"""docs/explain/mesh_tensorflow.md: a row for every name of Mesh-TensorFlow, and every row is
true.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import meshtf as mtf
from meshtf.testing import label, registered_ops

pytestmark = pytest.mark.every_case

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explain" / "mesh_tensorflow.md").read_text(encoding="utf-8")
NAMES = [
    line
    for line in (ROOT / "tests" / "data" / "mesh_tensorflow_names.txt")
    .read_text(encoding="utf-8")
    .splitlines()
    if not line.startswith("#")
]
OPS = {label(op) for op in registered_ops() if op.conformance_samples}
REASON = re.compile(r"(not needed|not here|gone): \w+(\W+\w+){4}")


class Row(NamedTuple):
    """A row of the tables."""

    old: str
    here: str
    tests: str

    def snippets(self) -> list[str]:
        """Returns the code of the second column."""
        return code(self.here)

    def natives(self) -> list[str]:
        """Returns the native names of the second column, such as "mtf.layers.Dense"."""
        return [
            name
            for text in self.snippets()
            for name in re.findall(r"\bmtf(?:\.\w+)+", text)
        ]


def code(cell: str) -> list[str]:
    """Returns what stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def rows(page: str) -> list[Row]:
    """Returns the rows of all tables of a page."""
    cells = [
        [c.replace(r"\|", "|").strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in page.splitlines()
        if line.startswith("|")
    ]
    return [Row(*c) for c in cells if code(c[0])]


def missing(table: list[Row], names: list[str]) -> Iterator[str]:
    """Yields what has no row, or several, and rows of what never was."""
    there = Counter(name for row in table for name in code(row.old))
    for name in names:
        if there[name] != 1:
            yield f"{name} has {there[name]} rows"
    for name in there:
        if name not in names and name.rpartition(".")[0] not in names:
            yield f"there is no {name} in Mesh-TensorFlow"


def wrong(row: Row) -> Iterator[str]:
    """Yields what is wrong with a row."""
    if not row.natives() and not REASON.match(row.here):
        yield f"{row.here!r} names nothing, and gives no reason"
    for name in row.natives():
        if found(name) is None:
            yield f"there is no {name}"
    for text in row.snippets():
        if "mtf." in text:
            yield from misused(text)
    yield from untested(row)


def found(name: str) -> Any:
    """Returns what "mtf.layers.Dense" is, or None."""
    return functools.reduce(
        lambda x, part: getattr(x, part, None), name.split(".")[1:], mtf
    )


def misused(text: str) -> Iterator[str]:
    """Yields calls in a snippet with arguments that there are not."""
    try:
        tree = ast.parse(text.lstrip("@") + (" pass" if text.endswith(":") else ""))
    except SyntaxError:
        yield f"{text!r} is no Python"
        return
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        if name.startswith("mtf.") and found(name) is not None:
            parameters = inspect.signature(found(name))
            try:
                parameters.bind_partial(
                    *call.args, **{k.arg: None for k in call.keywords if k.arg}
                )
            except TypeError as error:
                yield f"{text!r}: {error}"


def untested(row: Row) -> Iterator[str]:
    """Yields tests that there are not, and native names that none of the tests uses."""
    texts, last = [], [name.rpartition(".")[2] for name in row.natives()]
    for test in code(row.tests):
        op = re.fullmatch(r"conformance\[(.+)\]", test)
        file, _, function = test.partition("::")
        path = ROOT / "tests" / file
        if op:
            if op[1] not in OPS:
                yield f"the conformance suite has no {op[1]}"
        elif not path.is_file():
            yield f"there is no {test}"
        else:
            texts.append(path.read_text(encoding="utf-8"))
            if function and not re.search(
                rf"^def {function}\(", texts[-1], re.MULTILINE
            ):
                yield f"there is no {test}"
    if not code(row.tests) and not REASON.match(row.here):
        yield "no test"
    if (
        last
        and len(texts) == len(code(row.tests)) > 0
        and not any(re.search(rf"\b{name}\b", text) for name in last for text in texts)
    ):
        yield f"no test speaks of {' or '.join(last)}"


TABLE = rows(PAGE)


def test_every_name_has_a_row():
    assert not list(missing(TABLE, NAMES))
    assert len(NAMES) == len(set(NAMES)) == 288


def test_every_row_is_true():
    faults = [f"{row.old}: {text}" for row in TABLE for text in wrong(row)]
    assert not faults, "\n".join(faults)


def test_the_program_on_the_page_runs():
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {"mtf": mtf}
    exec(program, names)
    x = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    np.testing.assert_allclose(
        names["forward"](x).numpy(), np.maximum(x @ names["w"].numpy(), 0), atol=1e-5
    )


GOOD = "| `sin` | `mtf.sin(x)` | `conformance[unary_op.Unary]` |"


@pytest.mark.parametrize(
    "line, words",
    [
        (GOOD.replace("`sin`", "`cos`"), "sin has 0 rows"),
        (GOOD + "\n" + GOOD, "sin has 2 rows"),
        (GOOD.replace("`sin`", "`sin`, `sine`"), "no sine in Mesh-TensorFlow"),
        (GOOD.replace("mtf.sin", "mtf.sine"), "there is no mtf.sine"),
        (GOOD.replace("mtf.sin", "mtf.layers.Sin"), "there is no mtf.layers.Sin"),
        (GOOD.replace("(x)", "(x, name='y')"), "unexpected keyword argument 'name'"),
        (GOOD.replace("(x)", "(x"), "is no Python"),
        (GOOD.replace("unary_op.Unary", "elementwise.Sin"), "no elementwise.Sin"),
        (
            GOOD.replace("conformance[unary_op.Unary]", "ops/test_sine.py"),
            "no ops/test_sine.py",
        ),
        (
            GOOD.replace(
                "conformance[unary_op.Unary]", "function/test_tiny.py::test_sine"
            ),
            "no function/test_tiny.py::test_sine",
        ),
        (
            GOOD.replace("conformance[unary_op.Unary]", "function/test_tiny.py"),
            "no test speaks of sin",
        ),
        (GOOD.replace("`conformance[unary_op.Unary]`", "-"), "no test"),
        ("| `sin` | | - |", "gives no reason"),
        ("| `sin` | not needed: why | - |", "gives no reason"),
    ],
)
def test_what_is_missing_or_wrong_is_found(line, words):
    table = rows(line)
    faults = [*missing(table, ["sin"]), *(text for row in table for text in wrong(row))]
    assert any(words in text for text in faults), faults


def test_a_good_row_passes():
    assert not [*missing(rows(GOOD), ["sin"]), *wrong(*rows(GOOD))]
