"""Two hosts: network namespaces of this machine, joined by a cable that is pulled in
mid-run.

Needs root and iproute2; elsewhere it is skipped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time

import pytest

from tests.cluster.processes.launched import ROOT, Launched
from transformer.training.reporting import metrics

pytestmark = pytest.mark.slow
ADDRESSES = ("10.99.0.1", "10.99.0.2")
TIMEOUT = 6.0


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Names of two network namespaces that reach each other, or a skipped test."""
    if sys.platform != "linux" or os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need Linux, root and iproute2")
    names = [f"meshtf{os.getpid()}{letter}" for letter in "ab"]
    with contextlib.ExitStack() as stack:
        try:
            for name in names:
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
            ip(
                "link",
                "add",
                "cable",
                "netns",
                names[0],
                "type",
                "veth",
                "peer",
                "name",
                "cable",
                "netns",
                names[1],
            )
            for name, address in zip(names, ADDRESSES):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", "cable", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr}")
        yield names


def run_on(host, *command):
    return ["ip", "netns", "exec", host, *command]


@contextlib.contextmanager
def worker(host, address):
    """Runs a worker on a host."""
    command = run_on(
        host,
        sys.executable,
        "-m",
        "meshtf",
        "worker",
        "--port=4000",
        f"--bind={address}",
    )
    env = os.environ | {"PYTHONPATH": str(ROOT), "TF_NUM_INTRAOP_THREADS": "1"}
    with subprocess.Popen(command, env=env) as process:
        try:
            yield
        finally:
            process.kill()


def training(folder, steps):
    settings = {
        "train.steps": steps,
        "train.batch_size": 8,
        "train.save_every": 5,
        "ByteText.length": 16,
        "train.report_every": 1,
        "train.deterministic": True,
        "Evaluation.num_examples": 8,
        "ByteText.corpus": "@data.text_files",
        "sample.max_new_tokens": 2,
        "data.text_files.pattern": repr(f"{ROOT}/docs/**/*.md"),
        "Architecture.d_model": 16,
        "Architecture.d_ff": 32,
        "Architecture.heads": 2,
        "Architecture.d_kv": 8,
        "Architecture.blocks": 1,
    }
    return [
        sys.executable,
        "-m",
        "transformer.train",
        f"--model_dir={folder}",
        *(f"--gin_param={key} = {value}" for key, value in settings.items()),
    ]


@pytest.mark.sampled(3, together="several processes")
def test_an_unreachable_host_is_named_and_the_run_continues_after_its_return(
    hosts, tmp_path
):
    cluster = f"--cluster={','.join(f'{a}:4000' for a in ADDRESSES)}"
    with worker(hosts[0], ADDRESSES[0]), worker(hosts[1], ADDRESSES[1]):
        with Launched(
            training(tmp_path, 400),
            cluster,
            f"--timeout={TIMEOUT}",
            "--restarts=1",
            program="supervise",
            prefix=run_on(hosts[0]),
        ) as launched:
            assert launched.wait_for(r"^step +20/"), launched.text
            ip("-n", hosts[1], "link", "set", "cable", "down")
            cut_at = time.monotonic()
            assert launched.wait_for(
                r"worker 1 at 10\.99\.0\.2:4000 is lost: it has not answered"
            ), launched.text
            noticed = time.monotonic() - cut_at
            print(f"noticed after {noticed:.1f} s with --timeout={TIMEOUT}")
            ip("-n", hosts[1], "link", "set", "cable", "up")
            assert launched.wait() == 0, launched.text
    print(launched.text)
    assert noticed < 2 * TIMEOUT + 10.0
    steps = [line["step"] for line in metrics.read(str(tmp_path)) if "loss" in line]
    assert steps == list(range(1, 401))
    assert "continuing from step" in launched.text


@pytest.mark.sampled(3, together="several processes")
def test_without_restarts_the_run_ends_with_a_code_of_its_own(hosts, tmp_path):
    cluster = f"--cluster={','.join(f'{a}:4000' for a in ADDRESSES)}"
    with worker(hosts[0], ADDRESSES[0]), worker(hosts[1], ADDRESSES[1]):
        with Launched(
            training(tmp_path, 4000),
            cluster,
            f"--timeout={TIMEOUT}",
            program="supervise",
            prefix=run_on(hosts[0]),
        ) as launched:
            assert launched.wait_for(r"^step +20/"), launched.text
            ip("-n", hosts[1], "link", "set", "cable", "down")
            assert launched.wait(60.0) == 69, launched.text
    assert "worker 1 at 10.99.0.2:4000 is lost" in launched.text
