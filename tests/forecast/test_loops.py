"""Forecasts of programs with loops: what a StableHLO module communicates, and what is
held.

A module has every collective with its shape, and every loop with its number of
iterations, so what a replica receives can be counted without any help of a plan.
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import gin
import pytest
import tensorflow as tf

import meshtf as mtf
from benchmarks.gallery import published_models
from tests.support.stablehlo_traffic import received
from tests.support.subprocesses import Apart
from transformer.cli import command_line
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training import training_run
from transformer.training.trainer import Trainer

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TENSOR = "heads:model; d_ff:model; vocab:model"
MESHES = {
    "data": {"axes": "data:4", "layout": "batch:data"},
    "FSDP": {
        "axes": "data:4",
        "layout": "batch:data",
        "variable_layout": "d_model:data",
    },
    "ZeRO-1": {
        "axes": "data:4",
        "layout": "batch:data",
        "optimizer_layout": "d_model:data",
    },
    "tensor": {"axes": "model:4", "layout": TENSOR},
    "length": {"axes": "seq:4", "layout": "length:seq"},
    "width": {"axes": "model:4", "layout": "d_model:model"},
    "FSDP and tensor": {
        "axes": "data:2; model:2",
        "layout": "batch:data;" + TENSOR,
        "variable_layout": "d_model:data",
    },
}
LOOPS = {
    "scanned": {"scanned": True},
    "recomputed": {"scanned": True, "recompute": True},
    "microbatches": {"microbatches": 2},
    "both": {"scanned": True, "microbatches": 2},
}
AS_ONE = {"window": "collective_permute", "gather_statistics": "all_gather"}


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


@functools.cache
def trainer(mesh, scanned=False, recompute=False, microbatches=1, blocks=3):
    model = LanguageModel(
        mtf.Mesh(devices="abstract", **MESHES[mesh]),
        Architecture(
            16,
            d_model=16,
            d_ff=32,
            heads=4,
            d_kv=8,
            blocks=blocks,
            dropout=0.1,
            scanned=scanned,
            recompute=recompute,
        ),
    )
    return Trainer(model, microbatches=microbatches)


BATCH = dict.fromkeys(("tokens", "targets"), tf.TensorSpec([8, 8], tf.int32))


@functools.cache
def explained(mesh, **how):
    return trainer(mesh, **how).explain(BATCH)


def by_kind(forecast):
    """Returns the bytes that a position receives by kind of collective, as modules have
    them.
    """
    bytes_by_kind = Counter()
    for collective in forecast.collectives:
        bytes_by_kind[AS_ONE.get(collective.kind, collective.kind)] += collective.total
    return {kind: size for kind, size in bytes_by_kind.items() if size}


def counted(module):
    """Returns the bytes that a replica receives by kind of collective, as its module
    says.
    """
    return {kind: size for kind, size in received(module).items() if size}


def compare(forecast, module):
    assert forecast.error is None
    assert by_kind(forecast) == pytest.approx(counted(module))


@pytest.mark.sampled(3, each="loops")
@pytest.mark.parametrize(
    "mesh, loops",
    [
        *((mesh, "both") for mesh in MESHES),
        ("FSDP", "scanned"),
        ("FSDP", "microbatches"),
        ("FSDP", "recomputed"),
        ("FSDP and tensor", "recomputed"),
    ],
)
def test_a_replica_receives_what_is_forecast(mesh, loops):
    training = trainer(mesh, **LOOPS[loops])
    compare(explained(mesh, **LOOPS[loops]), training.export(BATCH).module)


# Of each family of published models, which are scanned and learn a batch in parts, one.
PUBLISHED = [
    ("gpt2", "16x4"),
    ("bert_base", "16x4"),
    ("t5_small", "64x8"),
    ("t5_1_1_base", "8x1"),
    ("llama2_7b", "16x4"),
    ("mesh_lm_0.14b", "8x1"),
    ("mesh_translation_0.15b", "8x1"),
]


@pytest.fixture(scope="module")
def in_process():
    """Returns what runs a function in another process: large modules leave gigabytes
    behind.
    """
    with Apart(tasks=4) as run:
        yield run


def published_bytes(name: str, grid: str) -> tuple[dict, dict]:
    """Returns the bytes that are forecast for a published model, and those of its
    module.
    """
    training = published_models.run(name, grid)
    forecast = training.explain()
    assert forecast.error is None
    return by_kind(forecast), counted(training.export().module)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name, grid", PUBLISHED)
def test_published_models_receive_what_is_forecast(name, grid, in_process):
    forecast, bytes_by_kind = in_process(published_bytes, name, grid)
    assert forecast == pytest.approx(bytes_by_kind)


def test_every_family_of_published_models_is_compared():
    scanned = {
        path.name
        for path in (CONFIGS / "models").glob("*.gin")
        if "Architecture.scanned = True" in path.read_text(encoding="utf-8")
    }
    families = {
        "gpt2.gin",
        "bert_base.gin",
        "t5.gin",
        "llama2.gin",
        "mesh_lm.gin",
        "mesh_translation.gin",
    }
    assert scanned == families


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "layout",
    [
        "data_and_tensor",
        "data_parallel",
        "fsdp",
        "sequence",
        "tensor_parallel",
        "zero1",
    ],
)
def test_the_main_job_in_every_layout(layout):
    settings = ["Architecture.scanned = True", "train.microbatches = 2"]
    sizes = [
        "ByteText.length = 16",
        "train.batch_size = 8",
        "Architecture.d_model = 16",
        "Architecture.d_ff = 32",
        "Architecture.d_kv = 8",
        'Mesh.devices = "abstract"',
    ]
    command_line.configure(
        ["lm_stdlib.gin", f"layouts/{layout}.gin"], [*sizes, *settings]
    )
    training = training_run.Run()
    compare(training.explain(), training.export().module)


@pytest.mark.parametrize("loops", LOOPS)
def test_phases_are_those_without_a_loop(loops):
    """Gradients are reduced backwards, whether a layer or a batch at a time."""
    for mesh in ("data", "ZeRO-1", "FSDP"):
        plain = explained(mesh)
        looped = explained(mesh, **LOOPS[loops])
        kind = "all_reduce" if mesh == "data" else "reduce_scatter"
        times = LOOPS[loops].get("microbatches", 1) if mesh == "FSDP" else 1
        for phase in ("forward", "backward", "update"):
            assert looped.bytes_moved(kind, phase=phase) == pytest.approx(
                times * plain.bytes_moved(kind, phase=phase)
            ), (mesh, phase)
        assert plain.bytes_moved(kind, phase="backward") > 1000


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("mesh", MESHES)
def test_what_lasts_is_that_without_a_loop(mesh, loops):
    plain, looped = (explained(mesh, **how).memory for how in ({}, LOOPS[loops]))
    for field in ("parameters", "optimizer_state", "arguments"):
        assert getattr(looped, field) == pytest.approx(getattr(plain, field)), field
    # Sums over microbatches are scattered to where ZeRO-1 needs them when they are
    # complete.
    added = mesh == "ZeRO-1" and "microbatches" in LOOPS[loops]
    assert looped.gradients == pytest.approx(
        looped.parameters if added else plain.gradients
    )


@pytest.mark.parametrize(
    "mesh, num_shards",
    [("FSDP", 4), ("tensor", 1), ("width", 4), ("FSDP and tensor", 2)],
)
def test_iterations_add_what_they_stack_and_no_more(mesh, num_shards):
    """A layer adds what its backward pass needs, and a recomputed one its
    input alone.
    """

    def added(**how):
        peaks = [
            explained(mesh, blocks=blocks, scanned=True, **how).memory.activations
            for blocks in (2, 4, 6)
        ]
        assert peaks[2] - peaks[1] == pytest.approx(peaks[1] - peaks[0])
        return (peaks[1] - peaks[0]) / 2

    inputs = 8 * 8 * 16 * 4 / num_shards  # the bytes of [batch, length, d_model]
    assert added(recompute=True) == pytest.approx(inputs)
    assert added() > 5 * inputs
