"""Importing meshtf and running a program change nothing about the process; what is asked
for by `configure_process` does.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from absl import logging as absl_logging

import meshtf as mtf
from meshtf.runtime import process
from meshtf.runtime.devices import threads as device_threads

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = (
    process.ALLOCATOR,
    process.LIMIT,
    *process.MALLOC_VARIABLES,
    "TF_NUM_INTRAOP_THREADS",
    "MESHTF_BEATS",
)

# What a process is, but for what TensorFlow itself counts as it runs: of its modules,
# functions and classes.
WATCH = """
import atexit, gc, inspect, json, logging, os, signal, sys, threading, warnings
import numpy, tensorflow as tf
from absl import logging as absl_logging

def state():
    return {
        "environment": dict(os.environ),
        "threads": [thread.name for thread in threading.enumerate()],
        "signals": {n: signal.getsignal(n) for n in signal.valid_signals()},
        "hooks": [sys.excepthook, sys.displayhook, sys.unraisablehook,
                  threading.excepthook, sys.gettrace(), sys.getprofile()],
        "log levels": [logging.getLogger().level, tf.get_logger().level,
                       absl_logging.get_verbosity(), list(logging.getLogger().handlers)],
        "at exit": atexit._ncallbacks(),
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
        "warnings": list(warnings.filters),
        "folder": os.getcwd(),
        "standard files": [sys.stdin, sys.stdout, sys.stderr],
        **{f"attributes of {name}":
               {key: value for key, value in vars(module).items()
                if inspect.isroutine(value) or inspect.isclass(value)}
           for name, module in sys.modules.items() if name.startswith("tensorflow.")},
    }

def files():
    return sorted(
        (fd, os.readlink(f"/proc/self/fd/{fd}")) for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")) if os.path.exists("/proc/self/fd") else []

def changed(before, after):
    found = []
    for what, value in before.items():
        if isinstance(value, dict):
            new = after[what]
            found += [f"{what}: {key}" for key in value if value[key] is not new.get(key)
                      and (what != "environment" or value[key] != new.get(key))]
            if not what.startswith("attributes"):
                found += [f"{what}: {key}" for key in new.keys() - value.keys()]
        elif value != after[what]:
            found.append(f"{what}: {value} -> {after[what]}")
    return found
"""

IMPORTED = """
before, opened, tasks = state(), files(), len(os.listdir("/proc/self/task"))
import meshtf
found = changed(before, state())
if files() != opened:
    found.append(f"files: {opened} -> {files()}")
if len(os.listdir("/proc/self/task")) != tasks:
    found.append("threads of native code")
print(json.dumps(found))
"""

RAN = """
import meshtf as mtf
before = state()
mesh = mtf.Mesh("data:4; model:2", "batch:data; d:model")
w = mtf.Variable(mesh, "d:4; e:2", mtf.layers.initializers.normal(0.1), name="w")

@mtf.function(mesh=mesh, x="batch; d")
def step(x):
    loss = mtf.reduce_mean(mtf.square(mtf.einsum([x, w], "batch; e")))
    w.assign(w - 0.1 * mtf.gradients([loss], [w])[0])
    return loss

for _ in range(2):
    step(numpy.ones([8, 4], "float32")).numpy()
found = changed(before, state())
if tf.config.threading.get_intra_op_parallelism_threads():
    found.append("threads of an op")
print(json.dumps(found))
"""

ALLOCATED = """
import tensorflow as tf
import meshtf as mtf
{configure}
mtf.ones(mtf.Mesh(""), "d:4096").numpy()
try:
    print(tf.config.experimental.get_memory_info("CPU:0")["peak"])
except ValueError:  # of the system's allocator TensorFlow knows nothing
    print("unknown")
"""


CLEARED = """
import resource
import numpy as np
import meshtf as mtf
{configure}

def pages_cleared():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(2**27, "uint8").fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(pages_cleared(), pages_cleared())
"""


def printed(code: str, **env: str) -> str:
    """Returns what a new process prints, in whose environment nothing is set."""
    clean = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        text=True,
        capture_output=True,
        env=clean | {"PYTHONPATH": str(ROOT)} | env,
    ).stdout.strip()


@pytest.mark.sampled(3, together="processes of TensorFlow")
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells files and threads")
def test_importing_changes_nothing(tmp_path):
    beats_file = str(tmp_path / "beats")
    assert json.loads(printed(WATCH + IMPORTED, MESHTF_BEATS=beats_file)) == []
    assert not list(tmp_path.iterdir())


@pytest.mark.sampled(3, together="processes of TensorFlow")
def test_a_program_changes_nothing():
    assert json.loads(printed(WATCH + RAN)) == []


@pytest.mark.slow
@pytest.mark.sampled(3, together="processes of TensorFlow")
@pytest.mark.parametrize(
    "configure, env, known",
    [
        ("mtf.configure_process()", {}, True),
        ("mtf.configure_process()", {process.ALLOCATOR: "0"}, False),
        ("mtf.configure_process(keep_freed_memory=False)", {}, False),
        ("", {}, False),
    ],
)
def test_tensorflow_allocates_where_it_was_asked_to(configure, env, known):
    env = env | {"TF_ENABLE_ONEDNN_OPTS": "0"}  # oneDNN has an allocator, too
    output = printed(ALLOCATED.format(configure=configure), **env)
    assert int(output) >= 4 * 4096 if known else output == "unknown"


@pytest.mark.sampled(3, together="processes of TensorFlow")
@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries than glibc")
@pytest.mark.parametrize(
    "configure, env, is_kept",
    [
        ("mtf.configure_process()", {}, True),
        ("mtf.configure_process()", {"MALLOC_TRIM_THRESHOLD_": "131072"}, False),
        ("mtf.configure_process(keep_freed_memory=False)", {}, False),
    ],
)
def test_the_c_library_clears_no_page_twice_where_it_keeps_memory(
    configure, env, is_kept
):
    output = printed(CLEARED.format(configure=configure), **env)
    first, second = map(int, output.split())
    # With huge pages there are 64, else 32,768.
    assert first >= 64
    assert second < 32 if is_kept else second >= 64


class FakeLibrary:
    """A C library whose settings are only recorded."""

    settings: list[tuple[int, int]] = []

    def __init__(self, name):
        assert name is None

    def mallopt(self, parameter, value):
        self.settings.append((parameter, value))
        return 1


@pytest.fixture
def fresh(monkeypatch):
    """A process that has not been configured, in which TensorFlow has not started."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(FakeLibrary, "settings", [])
    monkeypatch.setattr(process.ctypes, "CDLL", FakeLibrary)
    monkeypatch.setattr(process, "tensorflow_has_started", lambda: False)
    monkeypatch.setattr(device_threads, "_sharing", False)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(
        tf.config.threading, "get_intra_op_parallelism_threads", lambda: 0
    )
    return monkeypatch


def test_one_line_says_what_was_set(fresh):
    line = mtf.configure_process()
    assert line == (
        "process: CPUs keep freed memory (TF_CPU_ALLOCATOR_USE_BFC=1); the C library "
        "keeps freed memory; positions of a mesh share the cores; imports are not collected"
    )
    assert len(FakeLibrary.settings) == 2
    assert device_threads.sharing()
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert int(os.environ[process.LIMIT]) == size // 2**20
    fresh.setattr(process, "tensorflow_has_started", lambda: True)
    assert mtf.configure_process() == line


def test_nothing_is_set_that_was_not_asked_for(fresh):
    before = dict(os.environ)
    line = mtf.configure_process(
        keep_freed_memory=False, threads=None, freeze_imports=False
    )
    assert line == "process: nothing set"
    assert not FakeLibrary.settings
    assert dict(os.environ) == before and not device_threads.sharing()


def test_what_the_user_said_stays(fresh):
    environment = {
        process.ALLOCATOR: "0",
        process.LIMIT: "7",
        "MALLOC_MMAP_MAX_": "65536",
        "TF_NUM_INTRAOP_THREADS": "3",
    }
    for name, value in environment.items():
        fresh.setenv(name, value)
    assert mtf.configure_process() == (
        "process: CPUs do not keep freed memory (TF_CPU_ALLOCATOR_USE_BFC=0); the C "
        "library's memory as MALLOC_MMAP_MAX_ says; threads of an op as "
        "TF_NUM_INTRAOP_THREADS=3 says; imports are not collected"
    )
    assert not FakeLibrary.settings
    assert {name: os.environ[name] for name in environment} == environment
    assert not device_threads.sharing()


@pytest.mark.parametrize(
    "setting, way_out",
    [
        ({"threads": None}, "TF_CPU_ALLOCATOR_USE_BFC=1"),
        ({"keep_freed_memory": False}, "TF_NUM_INTRAOP_THREADS"),
    ],
)
def test_what_comes_too_late_is_refused(fresh, setting, way_out):
    fresh.setattr(process, "tensorflow_has_started", lambda: True)
    with pytest.raises(mtf.PlanError, match="comes too late") as error:
        mtf.configure_process(**setting)
    assert "at the top of the program" in str(error.value)
    assert way_out in str(error.value)
    assert process.ALLOCATOR not in os.environ and not device_threads.sharing()


@pytest.mark.sampled(3, together="processes of TensorFlow")
def test_imports_are_frozen_once():
    code = (
        "import gc, meshtf as mtf\n"
        "mtf.configure_process()\n"
        "frozen = gc.get_freeze_count()\n"
        "mtf.configure_process()\n"
        "print(frozen > 100_000, gc.get_freeze_count() <= frozen)"
    )
    assert printed(code) == "True True"


@pytest.mark.sampled(3, together="processes of TensorFlow")
def test_a_start_of_tensorflow_is_noticed():
    code = (
        "import tensorflow as tf\n"
        "from meshtf.runtime.process import tensorflow_has_started as started\n"
        "threads = tf.config.threading.get_inter_op_parallelism_threads\n"
        "print(started(), started(), threads(), tf.zeros([]).numpy(), started())"
    )
    assert printed(code) == "False False 0 0.0 True"


def test_log_levels(fresh):
    levels = absl_logging.get_verbosity(), tf.get_logger().level
    try:
        line = mtf.configure_process(
            keep_freed_memory=False,
            threads=None,
            freeze_imports=False,
            log_level="ERROR",
        )
        assert line == "process: log level ERROR"
        assert absl_logging.get_verbosity() == absl_logging.ERROR
        assert tf.get_logger().level == logging.ERROR
    finally:
        absl_logging.set_verbosity(levels[0])
        tf.get_logger().setLevel(levels[1])


@pytest.mark.parametrize(
    "setting, hint",
    [
        ({"threads": "shard"}, "shared"),
        ({"log_level": "ERORR"}, "ERROR"),
        ({"keep_freed_memory": "yes"}, "True or False"),
    ],
)
def test_other_values_are_refused(setting, hint):
    with pytest.raises(mtf.ArgumentError, match=hint):
        mtf.configure_process(**setting)
