"""The op contract is small: few members, kinds asked by class, and no op under another."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil

import meshtf
from meshtf.graph import Op, op_kinds
from tests.documentation.test_house import files, here, tree

KINDS = [
    kind
    for kind in vars(op_kinds).values()
    if inspect.isclass(kind) and issubclass(kind, Op) and kind is not Op
]
WORK = ("local", "statistics", "new_values", "run_on_host")  # what an op is run by


def all_ops():
    """Returns every op of the library: a class that says what it is run by, or what its
    outputs are; kinds, and what several ops share, are none.
    """
    for module in pkgutil.walk_packages(meshtf.__path__, "meshtf."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, stack = [], [Op]
    while stack:
        for op in stack.pop().__subclasses__():
            stack.append(op)
            if op.__module__.startswith("meshtf.") and op not in KINDS:
                found.append(op)
    return list(dict.fromkeys(found))


def is_concrete(op):
    """Whether a class itself says how it runs: such a class is a whole op. A class whose
    name begins with "_" is none, but what ops share, as in `meshtf.testing.registered_ops`.
    """
    if op.__name__.startswith("_"):
        return False
    return (
        any(name in vars(op) for name in (*WORK, "bodies")) or not op.__subclasses__()
    )


def test_ops_say_few_things():
    public = [name for name in vars(Op) if not name.startswith("_")]
    assert len(public) <= 11, public
    for kind in KINDS:
        more = [name for name in vars(kind) if not name.startswith("_")]
        assert len(more) <= 4, (kind.__name__, more)


def test_no_op_derives_from_an_op():
    ops = all_ops()
    assert len(ops) >= 80
    under = [
        (op.__name__, base.__name__)
        for op in ops
        for base in op.__mro__[1:]
        if base in ops and is_concrete(base)
    ]
    assert not under


def test_an_op_is_of_one_kind():
    # What writes rows writes variables, and all of these have effects.
    bases = (op_kinds.EffectOp, op_kinds.WriteOp)
    kinds = [kind for kind in KINDS if kind not in bases]
    several = {
        op.__name__: [kind.__name__ for kind in kinds if issubclass(op, kind)]
        for op in all_ops()
        if sum(issubclass(op, kind) for kind in kinds) > 1
    }
    assert not several


def test_what_a_kind_says_is_said_by_its_ops_alone():
    members = {
        name: kind
        for kind in KINDS
        for name in vars(kind)
        if not name.startswith("_") and name != "bodies"
    }
    wrong = [
        (op.__name__, name)
        for op in all_ops()
        for name, kind in members.items()
        if name in vars(op) and not issubclass(op, kind)
    ]
    assert not wrong


def test_nobody_asks_an_op_by_strings():
    wrong = [
        here(path, node)
        for path in files("meshtf", "transformer", "examples", "benchmarks")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr == "effect"
    ]
    assert not wrong, "\n".join(wrong)


def test_ops_never_see_a_variable_of_tensorflow():
    wrong = [
        here(path, node)
        for path in files("meshtf/ops", "meshtf/graph")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and node.attr == "Variable"
        and isinstance(node.value, ast.Name)
        and node.value.id == "tf"
    ]
    assert not wrong, "\n".join(wrong)
