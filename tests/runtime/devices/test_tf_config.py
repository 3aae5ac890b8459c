"""The processes that TF_CONFIG names, and what is refused."""

from __future__ import annotations

import json

import pytest

import meshtf as mtf
from meshtf.runtime.devices.tf_config import read_tf_config
from meshtf.runtime.spmd.live import join_processes

WORKERS = {"worker": ["a:1", "b:2", "c:3"]}
CHIEF = {"worker": ["b:2", "c:3"], "chief": ["a:1"], "evaluator": ["d:4"]}


def read(**config):
    return read_tf_config({"TF_CONFIG": json.dumps(config)})


@pytest.mark.parametrize(
    "cluster, kind, index, process",
    [
        (WORKERS, "worker", 0, 0),
        (WORKERS, "worker", 2, 2),
        (CHIEF, "chief", 0, 0),
        (CHIEF, "worker", 0, 1),
        (CHIEF, "worker", "1", 2),
        ({"worker": {"1": "b:2", "0": "a:1", "2": "c:3"}}, "worker", 1, 1),
        ({"master": ["a:1"], "worker": ["b:2", "c:3"]}, "worker", 1, 2),
    ],
)
def test_a_chief_comes_first(cluster, kind, index, process):
    result = read(cluster=cluster, task={"type": kind, "index": index})
    assert result.addresses == ("a:1", "b:2", "c:3")
    assert result.process == process


def test_no_cluster():
    assert read_tf_config({}) is None
    assert read_tf_config({"TF_CONFIG": " "}) is None
    assert read() is None and read(cluster={}) is None
    assert read(cluster={"worker": ["a:1"]}) == (("a:1",), 0)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "cannot be read: Expecting"),
        ("[]", "cannot be read"),
        (json.dumps({"cluster": {"worker": "a:1"}}), "'a:1' is no list"),
        (json.dumps({"cluster": WORKERS}), "no task"),
        (
            json.dumps({"cluster": WORKERS, "task": {"type": "worker", "index": 3}}),
            "worker 3, which does not train",
        ),
        (
            json.dumps({"cluster": CHIEF, "task": {"type": "evaluator", "index": 0}}),
            "evaluator 0, which does not train",
        ),
        (
            json.dumps(
                {
                    "cluster": {**WORKERS, "ps": ["p:1"]},
                    "task": {"type": "worker", "index": 0},
                }
            ),
            "tasks of kind 'ps'",
        ),
    ],
)
def test_what_does_not_name_the_processes(text, message, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(mtf.ClusterError, match=message) as caught:
        mtf.cluster.join_processes(detect=True)
    assert "MESHTF_COORDINATOR" in str(caught.value)


def test_jax_gets_the_hosts(monkeypatch):
    calls = []
    monkeypatch.setattr(join_processes, "_join", lambda **kwargs: calls.append(kwargs))
    monkeypatch.setattr(join_processes, "_joined", lambda group: None)
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": WORKERS, "task": task}))
    join_processes.join_detected()
    (call,) = calls
    assert call["coordinator_address"] == "a:1"
    assert (call["num_processes"], call["process_id"]) == (3, 1)
