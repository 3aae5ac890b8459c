"""Several processes with one live mesh: one process's numbers, checkpoints of both, and
restarts after a fault.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import meshtf as mtf
from meshtf.cluster import join
from meshtf.cluster.addresses import free_ports
from meshtf.cluster.process_group import ProcessGroup, supervise_processes
from meshtf.cluster.supervisor import Limits
from meshtf.runtime.spmd.live import join_processes
from tests.cluster.processes import spmd_steps
from tests.cluster.processes.launched import PYTHONPATH, Launched


def launched(module, *args, flags=()):
    command = [
        sys.executable,
        "-m",
        f"tests.cluster.processes.{module}",
        *map(str, args),
    ]
    # The tests' own setting would give each process all devices.
    return Launched(command, "--spmd", "--workers=2", *flags, env={"XLA_FLAGS": ""})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the checkpoint of one process, and the losses before and after it."""
    path = tmp_path_factory.mktemp("spmd")
    trainer = spmd_steps.trainer_on(None)
    before = spmd_steps.losses(trainer)
    with mtf.checkpoints.Saver(str(path / "one")) as saver:
        trainer.save(saver)
    return path, [*before, *spmd_steps.losses(trainer, 2)]


@pytest.fixture(scope="module")
def results(folder):
    """What each of two processes has computed."""
    path, _ = folder
    with launched("spmd_steps", path) as run:
        assert run.wait() == 0, run.text
    print(run.text)
    # The results of two processes may be on one line: each ends where its JSON ends.
    decoder = json.JSONDecoder()
    starts = [match.start() for match in re.finditer(r'\{"index"', run.text)]
    decoded = [decoder.raw_decode(run.text, start)[0] for start in starts]
    return sorted(decoded, key=lambda result: result["index"])


@pytest.mark.sampled(3, together="several processes")
@pytest.mark.slow
def test_two_processes_do_what_one_does(folder, results):
    """One test, since the processes take half a minute."""
    path, expected = folder
    assert [result["index"] for result in results] == [0, 1]
    for result in results:
        assert result["losses"] == results[0]["losses"]
        for losses in result["losses"]:
            np.testing.assert_allclose(losses, expected[:4], rtol=5e-5)
        # While a checkpoint is written, from it, and from that of one process.
        for name in ("beside", "restored", "of one"):
            np.testing.assert_allclose(result[name], expected[4:], rtol=5e-5)
        check_spread_values(result)
        # Along model, both processes have all examples.
        assert result["sections"] == [[result["index"], 2], [0, 1]]
        placed, unused, index = result["refusals"]
        assert "2 processes run this program" in placed and "--spmd" in placed
        assert "2 processes have 4 devices together" in unused
        assert 'the index 9 is not in [0, 8) of "vocab"' in index
    trainer = spmd_steps.trainer_on(None)
    trainer.restore(str(path / "two"))
    np.testing.assert_allclose(spmd_steps.losses(trainer, 2), expected[4:], rtol=5e-5)
    files = sorted(file.name for file in (path / "two").iterdir())
    assert files == ["run.lock", "step_00000004"]


def check_spread_values(result):
    """Checks values that are spread over processes, and read in all."""
    x = np.arange(32.0).reshape(8, 4)
    y = (x + 1) * 2
    v = x + 1 + y + y
    spread = result["spread"]
    np.testing.assert_array_equal(spread["y"], y)
    np.testing.assert_array_equal(spread["v"], v)
    np.testing.assert_array_equal(spread["z"], (2 * v + y)[3])
    assert spread["total"] == (2 * v).sum()
    assert result["any"] == [True, True, False]


FAULTS = {
    "SIGKILL": "[supervisor] process 1 (id ",
    "SIGSTOP": "is stuck: it has stood still for 8 s",
}


@pytest.mark.slow
@pytest.mark.sampled(3, together="several processes")
@pytest.mark.parametrize("mesh", ["data", "pipeline"])
@pytest.mark.parametrize("signal_name", FAULTS)
def test_a_run_goes_on_from_the_last_checkpoint_bit_for_bit(
    signal_name, mesh, tmp_path
):
    flags = ("--restarts=1", "--timeout=8")
    last = []
    for name, fault in (("0", ""), (signal_name, FAULTS[signal_name])):
        with launched("spmd_dies", tmp_path / name, name, mesh, flags=flags) as run:
            assert run.wait() == 0, run.text
        last += [line for line in run.lines if "steps, loss" in line]
        assert fault in run.text
        assert ("fault 1: all processes start again" in run.text) == bool(fault)
    assert len(last) == 2 and len(set(last)) == 1 and last[0].startswith("8 steps")


@pytest.fixture
def signals():
    """Restores the signal handlers, which a supervisor replaces."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ending(code):
    """Returns a command that ends with a code; negative: by a signal."""
    end = f"sys.exit({code})" if code >= 0 else f"os.kill(os.getpid(), {-code})"
    wait = "time.sleep(0 if os.environ['MESHTF_PROCESS'] == '1/2' else 20)"
    return [sys.executable, "-c", f"import os, sys, time; {wait}; {end}"]


@pytest.mark.parametrize("code, expected", [(-9, 137), (-6, 134), (69, 69), (3, 3)])
@pytest.mark.usefixtures("signals")
def test_without_restarts_the_lost_process_is_named(capfd, code, expected):
    group = ProcessGroup(ending(code), count=2, local=range(2))
    assert supervise_processes(group, Limits(timeout=5.0)) == expected
    err = capfd.readouterr().err
    named = {
        -9: "ended by SIGKILL",
        -6: "another process is lost",
        69: "has lost another",
    }
    if code in named:
        assert "process 1 (id " in err and named[code] in err
        assert "--restarts=N goes on from the last checkpoint" in err
    else:
        assert "fault" not in err


def test_the_only_process_needs_nobody(monkeypatch):
    monkeypatch.delenv(join_processes.COORDINATOR, raising=False)
    assert mtf.cluster.join_processes() == mtf.cluster.Processes(0, 1)
    assert mtf.cluster.any_process(True) and not mtf.cluster.any_process(False)
    assert ProcessGroup(["train"], 1, [0]).coordinator == ""


@pytest.mark.parametrize("process", ["", "2/2", "x/2", "1"])
def test_a_malformed_environment_is_refused(monkeypatch, process):
    monkeypatch.setenv(join_processes.COORDINATOR, "127.0.0.1:4000")
    monkeypatch.setenv(join_processes.PROCESS, process)
    with pytest.raises(mtf.ClusterError, match="MESHTF_PROCESS=0/4"):
        mtf.cluster.join_processes()


def test_an_older_jax_has_its_own_timeout(monkeypatch):
    """As jax before 0.7."""
    calls = []

    def initialize(
        coordinator_address=None,
        num_processes=None,
        process_id=None,
        initialization_timeout=300,
        coordinator_bind_address=None,
    ):
        calls.append((coordinator_address, num_processes, process_id))

    jax = join_processes.load_jax()
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(join_processes, "set_processes", lambda group: None)
    monkeypatch.setattr(join_processes, "after_joining", [])
    monkeypatch.setenv(join_processes.COORDINATOR, "127.0.0.1:4000")
    monkeypatch.setenv(join_processes.PROCESS, "1/2")
    before = jax.config.jax_cpu_collectives_implementation
    try:
        join_processes.join_by_environment()
    finally:
        jax.config.update("jax_cpu_collectives_implementation", before)
    assert calls == [("127.0.0.1:4000", 2, 1)]


def slurm(index, port):
    """Returns the environment of one of two processes of SLURM."""
    return {
        "SLURM_JOB_ID": "1234",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_PROCID": str(index),
        "SLURM_LOCALID": str(index),
    }


def tf_config(index, port):
    """Returns the environment of a chief and a worker of a TensorFlow cluster."""
    cluster = {"chief": [f"localhost:{port}"], "worker": [f"localhost:{port + 1}"]}
    task = {"type": ["chief", "worker"][index], "index": 0}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


@pytest.mark.slow
@pytest.mark.parametrize("environment", [slurm, tf_config])
def test_the_processes_of_a_scheduler_are_detected(environment):
    running = []
    (port,) = free_ports(1)
    for index in range(2):
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.processes.spmd_detected"],
                env=os.environ
                | environment(index, port)
                | {"XLA_FLAGS": "", "PYTHONPATH": PYTHONPATH},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=120)[0] for process in running]
    for index, output in enumerate(outputs):
        assert f"process {index} of 2: 6.0" in output
        assert "Gloo" not in output  # such lines go to stderr


class JaxRuntimeError(RuntimeError):
    """Named as jax's errors are."""


@pytest.mark.parametrize(
    "error, code, text",
    [
        (
            JaxRuntimeError("Gloo: Connection closed by peer"),
            69,
            "process of the run was",
        ),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"), 1, "out of memory"),
        (ValueError("connection"), 1, "ValueError"),
    ],
)
def test_an_error_due_to_a_lost_process_has_a_code_of_its_own(
    monkeypatch, capsys, error, code, text
):
    ends = []
    monkeypatch.setattr(os, "_exit", lambda code: ends.append(code) or sys.exit(code))
    monkeypatch.delenv("MESHTF_BEATS", raising=False)
    with pytest.raises(SystemExit):
        join._exit_if_lost(sys.__excepthook__, type(error), error, None)
    err = capsys.readouterr().err
    assert ends == [code] and text in err
    assert ("--restarts=N sees to it" in err) == (code == 69)
