"""Frozen dataclasses by inheritance: made when first used, and what dataclasses are
then.
"""

from __future__ import annotations

import dataclasses
import pathlib
import runpy
import sys
import threading

import pytest

from meshtf.graph.op_dataclass import Frozen


class Scale(Frozen):
    by: float
    shift: float = 0.0


class Named(Scale):
    name: str = ""


def test_a_class_is_a_frozen_dataclass_from_its_first_object_on() -> None:
    assert Named(2.0, name="x") == Named(2.0, 0.0, "x") != Named(2.0, 1.0, "x")
    assert hash(Scale(2.0)) == hash(Scale(by=2.0)) and Scale(2.0) != Named(2.0)
    assert repr(Named(2.0)) == "Named(by=2.0, shift=0.0, name='')"
    assert dataclasses.replace(Scale(2.0), shift=1.0) == Scale(2.0, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Scale(2.0).by = 3.0
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'by'"):
        Scale()


def test_equal_objects_have_the_same_numbers_of_the_same_types() -> None:
    class Value(Frozen):
        value: object

    values = [0.0, -0.0, 0, False, 0j, (0.0,), (-0.0,), float("nan")]
    objects = [Value(value) for value in values]
    assert len(set(objects)) == len(values)
    assert Value(float("nan")) == Value(float("nan"))
    assert set(objects) == {Value(value) for value in values}


def test_a_decorated_class_stays_as_it_is() -> None:
    @dataclasses.dataclass(frozen=True, eq=False)
    class Alone(Frozen):
        by: float

    assert Alone(2.0) != Alone(2.0) and Alone(2.0).by == 2.0


def test_a_class_whose_module_is_gone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "gone.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from typing import ClassVar\n"
        "from meshtf.graph.op_dataclass import Frozen\n"
        "class Gone(Frozen):\n"
        "  kind: ClassVar[str] = 'x'\n"
        "  by: float\n"
    )
    before = set(sys.modules)
    assert repr(runpy.run_path(str(path))["Gone"](2.0)) == "Gone(by=2.0)"
    assert set(sys.modules) == before


def test_threads_that_make_the_first_objects_of_a_class() -> None:
    for _ in range(50):

        class Fresh(Scale):
            index: int = 0

        instances: list[Fresh] = []
        start = threading.Barrier(4)

        def make(
            cls: type = Fresh,
            instances: list[Fresh] = instances,
            start: threading.Barrier = start,
        ) -> None:
            start.wait()
            instances.append(cls(1.0, index=1))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert instances == [Fresh(1.0, 0.0, 1)] * 4
