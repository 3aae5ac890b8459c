"""Makes a program that fails smaller, statement by statement.

Hypothesis shrinks what was drawn, and a statement that goes away changes what all later
draws mean; this shrinks the program itself, which takes seconds. Whether a candidate
still makes sense is asked of the judge: what it cannot run is no program.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import time
from collections.abc import Callable, Iterator

from tests.fuzz.models.training import Training
from tests.fuzz.program import Assign, Define, Inside, Mesh, Program, Statement

Fails = Callable[[Program], bool]
EDITS = (
    (r"mtf\.recompute\((body\w+|again\w+)\)", r"\1"),
    (r"mtf\.function\((\w+), mesh=mesh\)", r"\1"),
    (r"RecordedLayer\(", "Layer("),
    (", recomputed=True", ""),
    (", reverse=True", ""),
    ("recompute=True", "recompute=False"),
    ("'1f1b'", "'gpipe'"),
    (r"^mtf\.cond\(.*, (\w+), (\w+)\)$", r"\1()"),
    (r"^mtf\.cond\(.*, (\w+), (\w+)\)$", r"\2()"),
    (r"^mtf\.tanh\((\w+) \* 0\.3\)$", r"\1 * 1.0"),
    (r"^(\w+) \+ 0\.3 \* mtf\.sin\((.*)\)$", r"\1 + \2"),
)


def reduced(program: Program, fails: Fails, seconds: float = 60) -> Program:
    """Returns a smaller program that fails as well.

    Args:
      program: which fails.
      fails: whether a program fails in the same way; False for what is no program.
      seconds: how long to try.
    """
    end = time.time() + seconds
    before = None
    while before != program and time.time() < end:
        before = program
        for family in (_settings, _leaves, _unwrapped, _replaced, _edited, _leaves):
            program = _greedy(program, family, fails, end)
    return program


def simplify(run: Training, fails: Callable[[Training], bool], seconds: float) -> None:
    """Takes differences from the defaults of a training run away, as long as it fails."""
    end = time.time() + seconds
    candidates = run.simpler()
    while time.time() < end and (simpler := next(candidates, None)) is not None:
        if fails(simpler):
            candidates = simpler.simpler()


def _greedy(
    program: Program,
    family: Callable[[Program], Iterator[Program]],
    fails: Fails,
    end: float,
) -> Program:
    """Returns what is left when no candidate of a family fails any more."""
    index = 0
    candidates = family(program)
    while time.time() < end and (smaller := next(candidates, None)) is not None:
        smaller = smaller.trimmed()
        index = index + 1
        if smaller != program and fails(smaller):
            program = smaller
            index = index - 1
            candidates = itertools.islice(family(program), index, None)
    return program


def _settings(program: Program) -> Iterator[Program]:
    """Yields programs that run more simply."""
    mesh = program.mesh
    meshes = [
        dataclasses.replace(mesh, devices=""),
        dataclasses.replace(mesh, variable_layout=""),
    ]
    rules = mesh.layout.split(";")
    meshes += [
        dataclasses.replace(mesh, layout=";".join(r for r in rules if r != rule))
        for rule in rules
    ]
    if mesh.axes.count(";") or mesh.axes:
        meshes += [Mesh("")] if "stage" not in mesh.axes else [Mesh("stage:2")]
    yield from (dataclasses.replace(program, mesh=m) for m in meshes if m != mesh)
    yield from (dataclasses.replace(program, order=n) for n in range(program.order))
    yield dataclasses.replace(program, copied=False)
    if program.dtype == "float64":
        return
    yield dataclasses.replace(program, dtype="float64")


def _leaves(program: Program) -> Iterator[Program]:
    """Yields programs that compare fewer values."""
    if len(program.values) > 1 and not program.loss:
        yield from (dataclasses.replace(program, values=(x,)) for x in program.values)
        yield from (
            dataclasses.replace(
                program, values=tuple(y for y in program.values if y != x)
            )
            for x in program.values
        )
    if len(program.variables) > 1:
        yield from (
            dataclasses.replace(
                program, variables=tuple(y for y in program.variables if y != x)
            )
            for x in program.variables
        )


def _statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    for s in body:
        yield s
        if not isinstance(s, Assign):
            yield from _statements(s.body)


def _all(program: Program) -> list[Statement]:
    return list(_statements((*program.modules, *program.body)))


def _put(program: Program, old: Statement, new: tuple[Statement, ...]) -> Program:
    def walk(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        statements: list[Statement] = []
        for s in body:
            if s is old:
                statements += new
            else:
                statements.append(
                    s
                    if isinstance(s, Assign)
                    else dataclasses.replace(s, body=walk(s.body))
                )
        return tuple(statements)

    return dataclasses.replace(
        program, modules=walk(program.modules), body=walk(program.body)
    )


def _unwrapped(program: Program) -> Iterator[Program]:
    """Yields programs without one `with`."""
    for s in _all(program):
        if isinstance(s, Inside):
            yield _put(program, s, s.body)


def _edited(program: Program) -> Iterator[Program]:
    """Yields programs in which one expression is simpler."""
    for s in _all(program):
        for pattern, simpler in EDITS if isinstance(s, Assign) else ():
            expression = re.sub(pattern, simpler, s.expression)
            if expression != s.expression:
                yield _put(program, s, (dataclasses.replace(s, expression=expression),))


def _replaced(program: Program) -> Iterator[Program]:
    """Yields programs in which an earlier value of the same dimensions stands for a
    value.
    """
    statements = _all(program)
    for s in reversed(statements):
        if not isinstance(s, Assign):
            continue
        for target in s.targets.split(", "):
            if target not in program.dims:
                continue
            near = re.findall(r"\b[a-z]+\d+\b", s.expression)
            other_names = [x for x in program.dims if x not in near][
                : _place(program, target)
            ][-6:]
            for x in [*near, *other_names]:
                if program.dims.get(x) == program.dims[target] and x != target:
                    yield _renamed(
                        _put(program, s, ()) if s.targets == target else program,
                        target,
                        x,
                        s,
                    )


def _place(program: Program, name: str) -> int:
    """Returns how many values were seen before one."""
    return list(program.dims).index(name)


def _renamed(program: Program, old: str, new: str, maker: Assign) -> Program:
    """Returns the program with a value in the place of another, but where that
    is made.
    """

    def text(x: str) -> str:
        return re.sub(rf"\b{old}\b", new, x)

    def walk(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        statements: list[Statement] = []
        for s in body:
            if isinstance(s, Assign):
                statements.append(
                    s
                    if s is maker
                    else dataclasses.replace(s, expression=text(s.expression))
                )
            elif isinstance(s, Define):
                statements.append(
                    dataclasses.replace(s, body=walk(s.body), result=text(s.result))
                )
            else:
                statements.append(dataclasses.replace(s, body=walk(s.body)))
        return tuple(statements)

    return dataclasses.replace(
        program,
        modules=walk(program.modules),
        body=walk(program.body),
        loss=text(program.loss),
        values=tuple(map(text, program.values)),
    )
