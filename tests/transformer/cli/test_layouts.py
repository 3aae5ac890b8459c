"""The layouts that come as gin files: each trains like lm_stdlib.gin, and shards what
its comment says.
"""

from __future__ import annotations

import functools
from pathlib import Path

import gin
import numpy as np
import pytest

from transformer.cli.command_line import configure
from transformer.training.training_run import Run

ROOT = Path(__file__).resolve().parents[3]
LAYOUTS = sorted(path.stem for path in (ROOT / "configs" / "layouts").glob("*.gin"))
SMALL = [
    "Architecture.d_model = 16",
    "Architecture.d_ff = 32",
    "Architecture.d_kv = 8",
    "Architecture.blocks = 1",
    "Architecture.dropout = 0.1",
    "train.batch_size = 4",
    "ByteText.length = 8",
]


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def run(layout, *settings):
    """Returns a run of the main job, small, under one of the layouts or under its own
    ("").
    """
    gin.clear_config()
    configure(
        ["lm_stdlib.gin", *([f"layouts/{layout}.gin"] if layout else [])],
        [*SMALL, *settings],
    )
    return Run()


@functools.cache
def losses(layout):
    """Returns the losses of a few steps, and the norms of their gradients."""
    trainer = run(layout).trainer
    text = np.random.default_rng(0).integers(0, 256, (4, 9)).astype("int32")
    batch = {"tokens": text[:, :-1], "targets": text[:, 1:]}
    steps = [trainer.step(batch) for _ in range(4)]
    return np.array([[float(x) for x in step] for step in steps])


def test_the_layouts_are_these():
    assert set(LAYOUTS) == {
        "data_parallel",
        "tensor_parallel",
        "data_and_tensor",
        "zero1",
        "fsdp",
        "hybrid_fsdp",
        "sequence",
        "uneven",
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_trains_like_the_main_job(layout):
    assert losses("")[-1, 0] < losses("")[0, 0]
    np.testing.assert_allclose(losses(layout), losses(""), rtol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_sets_the_mesh_and_nothing_else(layout):
    text = (ROOT / "configs" / "layouts" / f"{layout}.gin").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert [line.startswith("#") for line in lines[:3]] == [True, True, False]
    assert [line.split(" =")[0] for line in lines[3:]] == [
        "Mesh.axes",
        "Mesh.layout",
        "Mesh.variable_layout",
        "Mesh.optimizer_layout",
    ]


# of parameters and of optimizer state: which part a position holds
HELD = {"data_parallel": (1, 1), "sequence": (1, 1), "zero1": (1, 4), "fsdp": (4, 4)}


@pytest.mark.parametrize("layout", HELD)
def test_what_a_position_holds(layout):
    def memory(layout, *settings):
        return run(layout, 'Mesh.devices = "abstract"', *settings).explain().memory

    one, have = memory("", 'Mesh.axes = ""'), memory(layout)
    assert (
        one.parameters / have.parameters,
        one.optimizer_state / have.optimizer_state,
    ) == HELD[layout]


def test_the_last_layout_wins():
    gin.clear_config()
    configure(["lm_stdlib.gin", "layouts/fsdp.gin", "layouts/sequence.gin"], [])
    assert gin.query_parameter("Mesh.variable_layout") == ""
