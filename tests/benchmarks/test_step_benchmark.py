"""benchmarks.step on tiny models: all ways to train agree, and how it is told."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.harness.report import Row, agreement, memory_table, table
from benchmarks.harness.rounds import WorkerError, measure
from benchmarks.padding import __main__ as padding
from benchmarks.step.cases.cases import PEERS, Case, cases, make_config
from benchmarks.step.cases.feeds import batches, fixed_values
from benchmarks.step.cases.sizes import MODELS, Config
from benchmarks.step.cases.worker import Runner

TINY = {
    "vocab": 64,
    "batch": 8,
    "length": 16,
    "d_model": 16,
    "d_ff": 32,
    "heads": 2,
    "layers": 2,
}


def rows_of(*group: Case) -> list[Row]:
    """Returns rows of losses, as `rounds.measure` has them made in processes of their
    own.
    """
    return [
        Row(case.name, case.group, Runner(case).losses(3)["losses"], {}, {})
        for case in group
    ]


@pytest.mark.sampled(1, together="peers")
@pytest.mark.parametrize("model", MODELS)
def test_by_hand_and_meshtf_agree_with_dropout(model):
    config = Config(model, **TINY, dropout=0.1)
    plain, mesh = rows_of(Case(config), Case(config, "1x1"))
    assert not agreement([plain, mesh], 1e-5)
    assert len({*plain.losses}) == 3  # it learns, whatever it learns


def test_losses_that_disagree_are_reported():
    plain, other = rows_of(
        Case(Config(**TINY)), Case(Config(**TINY, learning_rate=1e-2))
    )
    (line,) = agreement([plain, other])
    assert "lm, graph, dropout 0: plain TensorFlow" in line


def test_cases_go_to_processes_and_back():
    (group,) = cases(make_config("moe", "quick"), ["xla"], [0.1])
    assert group[0].name == "plain TensorFlow" and group[0].jit
    assert len({case.name for case in group}) == len(group)
    assert [Case.load(case.dump()) for case in group] == group
    assert json.loads(group[0].dump())["config"]["model"] == "moe"


def test_peers_come_where_they_know_the_model():
    def runtimes(model, mode):
        (group,) = cases(make_config(model, "quick"), [mode], [0.0], peers=PEERS)
        return {case.runtime for case in group}

    assert runtimes("lm", "graph") == {"placed", *PEERS}
    assert runtimes("bert", "graph") == {"placed", *PEERS} - {"jax"}
    assert runtimes("lm", "xla") == {"placed", "jax", "spmd"}


def test_what_is_tensorflows_is_compared_with_onednn_as_well():
    (group,) = cases(
        make_config("lm", "quick"), ["graph"], [0.0], ["8x1"], PEERS, onednn=True
    )
    names = {case.name: case.environment for case in group if case.onednn}
    assert names.keys() == {
        f"{name}, oneDNN"
        for name in (
            "plain TensorFlow",
            "by hand 8x1, towers",
            "by hand 8x1, mirrored",
            "DTensor 8x1",
        )
    }
    assert all(names.values()) and not any(c.environment for c in group if not c.onednn)
    assert len({case.name for case in group}) == len(group)


@pytest.mark.sampled(1, together="peers")
@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_peers_agree_on_eight_devices(model):
    config = Config(model, **TINY)
    peers = [
        Case(config, "8x1", runtime=peer, jit=peer == "spmd")
        for peer in ("towers", "mirrored", "spmd")
    ]
    assert not agreement(rows_of(Case(config), *peers), 1e-5)


@pytest.mark.sampled(1, together="peers")
@pytest.mark.slow
def test_a_peer_that_fails_is_reported_and_our_own_fails():
    config = Config(**TINY)
    broken = Config(**TINY | {"heads": 3})  # no mesh cuts these
    group = [Case(config), Case(config, "1x1"), Case(broken, "1x8", runtime="dtensor")]
    rows, refused = measure(group, rounds=1, starts=1, losses=1)
    assert [row.name for row in rows] == [case.name for case in group[:2]]
    assert not agreement(rows, 1e-5) and "Error: " in refused["DTensor 1x8"]
    with pytest.raises(WorkerError, match="ShapeError: rotary"):
        measure([Case(broken, "1x8", devices="logical:8")], 1, 1, 1)


def test_batches_and_values_are_the_same_for_all():
    config = Config("bert", **TINY)
    for once, again in zip(batches(config), batches(config), strict=True):
        assert all(np.array_equal(once[name], again[name]) for name in once)
        masked = np.take_along_axis(once["tokens"], once["masked_positions"], 1)
        assert set(masked[once["masked_weights"] > 0]) == {1}
    values = fixed_values(config)
    assert {name: value.shape for name, value in values.items()} == config.shapes()


def test_peaks_stand_beside_forecasts():
    rows = [
        Row(name, "graph", [], {}, {"memory": memory, "forecast": forecast})
        for name, memory, forecast in (("whole", 100.0, 50.0), ("cut", 80.0, 25.0))
    ]
    rows.append(Row("by hand", "graph", [], {}, {"memory": 90.0}))
    assert [line.split()[-4::3] for line in memory_table(rows).splitlines()[1:]] == [
        ["1.00", "1.00"],
        ["0.80", "0.50"],
    ]


def test_a_table_tells_ratios_to_the_first_row():
    start = {"first": 2.0, "first_cpu": 2.0, "memory": 100.0}
    rows = [
        Row(name, "graph", [1.0], {"wall": [step], "cpu": [step]}, start)
        for name, step in (("plain", 0.5), ("mesh", 0.75))
    ]
    assert "  1.50  1.50" in table(rows).splitlines()[2]


@pytest.mark.sampled(1, together="peers")
@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
def test_sizes_that_divide_and_that_do_not_are_timed_in_pairs(devices):
    sizes = {"d_model": 8, "d_ff": 10, "heads": 2, "d_kv": 4, "blocks": 1}
    seconds = padding.measure((30, 32), 2, devices, **sizes)
    assert len(seconds) == 2
    assert all(len(pair) == 2 and min(pair) > 0 for pair in seconds)
