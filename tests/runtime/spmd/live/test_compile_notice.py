"""A live mesh says what it compiles if that takes long, once, and nothing if it does not."""

from __future__ import annotations

import functools
import time

import numpy as np
import pytest

import meshtf as mtf
from meshtf.runtime.devices.processes import Processes
from meshtf.runtime.spmd.live import compile_notice
from meshtf.runtime.spmd.live.compile_notice import CompileNotice
from meshtf.runtime.spmd.stages import stage_module

X = np.ones((4, 4), "float32")


def lines(caplog) -> list[str]:
    """The lines of the log about compilation."""
    return [x.getMessage() for x in caplog.records if "compiling" in x.getMessage()]


@pytest.fixture
def slow_compiler(monkeypatch):
    """A module takes a fifth of a second to compile, and that counts as long."""
    monkeypatch.setattr(compile_notice, "SECONDS", 0.15)

    class SlowCall(stage_module.ModuleCall):
        def __init__(self, *args, **kwargs):
            time.sleep(0.2)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(stage_module, "ModuleCall", SlowCall)


def two_stages(x):
    """A program with a module for each of two stages."""
    with mtf.stage(0):
        y = x * 2.0
    with mtf.stage(1):
        return mtf.reduce_sum(y + 1.0)


def train_step(x):
    """A program of one module."""
    return mtf.reduce_sum(x * 2.0)


@pytest.mark.usefixtures("slow_compiler")
@pytest.mark.parametrize(
    "axes, fn, devices",
    [("data:4", train_step, "4 devices"), ("stage:2", two_stages, "2 devices")],
)
def test_a_long_compilation_is_announced_once(axes, fn, devices, caplog):
    mesh = mtf.Mesh(axes, "batch:data", devices="spmd:cpu", optional_axes="data")
    step = mtf.function(fn, mesh=mesh, x="batch;d")
    step(X)
    assert lines(caplog) == [f"compiling {fn.__name__} for {devices}"]
    step(X)
    assert len(lines(caplog)) == 1


def test_a_short_one_is_not(caplog):
    mesh = mtf.Mesh("data:2", "batch:data", devices="spmd:cpu")
    mtf.function(train_step, mesh=mesh, x="batch;d")(X)
    time.sleep(0.1)
    assert not lines(caplog)


def test_the_seconds_of_all_phases_count_together(monkeypatch, caplog):
    monkeypatch.setattr(compile_notice, "SECONDS", 0.3)
    notice = CompileNotice("step", 1)
    for _ in range(4):
        with notice.watch():
            time.sleep(0.12)
    assert lines(caplog) == ["compiling step for 1 device"]


def test_of_several_processes_the_first_says_it(monkeypatch, caplog):
    monkeypatch.setattr(compile_notice, "SECONDS", 0.0)
    for index in (0, 1):
        process = functools.partial(Processes, index, 2)
        monkeypatch.setattr(compile_notice, "processes", process)
        with CompileNotice(f"step {index}", 8).watch():
            time.sleep(0.1)
    assert lines(caplog) == ["compiling step 0 for 8 devices"]
