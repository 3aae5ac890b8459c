"""The pipelined language model gives the results of the plain one, on 3-D meshes, by
gin settings only.
"""

from __future__ import annotations

import functools

import gin
import numpy as np
import pytest

import meshtf as mtf
from transformer.cli.command_line import configure
from transformer.training.training_run import Run

SMALL = [
    "Architecture.d_model = 16",
    "Architecture.d_ff = 32",
    "Architecture.d_kv = 8",
    "Architecture.blocks = 3",
    "Architecture.dropout = 0.1",
    "train.batch_size = 8",
    "ByteText.length = 8",
]
CASES = {
    "3-D": [],
    "logical devices": ["Mesh.devices = 'logical:8'"],
    "four stages": ["Mesh.axes = 'stage:4'", "PipelinedLanguageModel.recompute = True"],
    "sharded": [
        "Mesh.axes = 'stage:2;data:2'",
        "Mesh.variable_layout = 'd_model:data'",
        "PipelinedLanguageModel.schedule = 'gpipe'",
    ],
    "recomputed blocks": ["Mesh.axes = 'stage:2'", "Architecture.recompute = True"],
    "tied": ["Mesh.axes = 'stage:2'", "Architecture.tied = True"],
}


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def run(config, *settings):
    gin.clear_config()
    configure([config], [*SMALL, *settings])
    return Run()


@functools.cache
def losses(config, *settings):
    """Returns the losses of a few steps, and the norms of their gradients."""
    trainer = run(config, *settings).trainer
    text = np.random.default_rng(0).integers(0, 256, (8, 9)).astype("int32")
    batch = {"tokens": text[:, :-1], "targets": text[:, 1:]}
    steps = [trainer.step(batch) for _ in range(3)]
    evaluated = trainer.model.loss(
        {
            name: mtf.asarray(trainer.model.mesh, x, "batch;length")
            for name, x in batch.items()
        }
    )
    return np.array([[float(x) for x in step] for step in steps]), float(evaluated)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_pipeline_trains_as_the_model_without_it(case):
    tied = [s for s in CASES[case] if "tied" in s]
    expected, evaluated = losses(
        "lm_stdlib.gin", "Mesh.axes = ''", "Mesh.layout = ''", *tied
    )
    got, later = losses("pipeline.gin", *CASES[case])
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    np.testing.assert_allclose(later, evaluated, rtol=1e-4)


def test_blocks_are_dealt_out_by_their_cost():
    model = run(
        "pipeline.gin",
        "Mesh.axes = 'stage:3'",
        "Mesh.layout = ''",
        "Architecture.blocks = 6",
    ).trainer.model
    costs = [layer.cost for layer in model.pipe.costs]
    assert len(costs) == 8 and len(set(costs[1:-1])) == 1 and costs[0] < costs[1]
    ends = np.cumsum(model.pipe.sizes)
    chunks = [sum(costs[end - size : end]) for end, size in zip(ends, model.pipe.sizes)]
    assert len(chunks) == 3 and max(chunks) < 1.25 * sum(chunks) / 3
    there = {variable.path: variable.stage for variable in model.trainable_variables}
    assert there["language_model/embedding/table"] == 0
    assert there["language_model/decoder/block_5/feed_forward/wi/kernel"] == 2
