"""Sizes of published models: the Transformers of GPipe (arXiv:1811.06965, table 1)."""

from __future__ import annotations

import gin
import pytest

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.models.pipelined_language_model import PipelinedLanguageModel

# Blocks, and the parameters as printed: vocabulary 32,000, d_model 2048, d_ff 8192, 32
# heads.
PUBLISHED = {3: 282.2e6, 13: 785.8e6, 103: 5.3e9}
SIZES = {
    "vocab": 32000,
    "d_model": 2048,
    "d_ff": 8192,
    "heads": 32,
    "d_kv": 64,
    "activation": "relu",
}


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield


def parameters(model):
    return sum(v.shape.size for v in model.trainable_variables)


@pytest.mark.parametrize("blocks", PUBLISHED)
def test_parameters_are_those_of_the_paper(blocks):
    model = LanguageModel(
        mtf.Mesh("", devices="abstract"), Architecture(blocks=blocks, **SIZES)
    )
    matrices = blocks * (4 * 2048**2 + 2 * 2048 * 8192) + 2 * 32000 * 2048
    norms = (2 * blocks + 1) * 2048
    assert parameters(model) == matrices + norms
    assert parameters(model) == pytest.approx(PUBLISHED[blocks], rel=5e-3)


def test_a_published_pipeline_is_split_evenly():
    mesh = mtf.Mesh("stage:8", devices="abstract")
    model = PipelinedLanguageModel(
        mesh, Architecture(blocks=103, **SIZES), microbatches=32, length=1024
    )
    ends = [sum(model.pipe.sizes[: k + 1]) for k in range(8)]
    costs = [
        sum(layer.cost for layer in model.pipe.costs[end - size : end])
        for end, size in zip(ends, model.pipe.sizes)
    ]
    assert max(costs) < 1.06 * sum(costs) / 8
    assert (
        model.pipe.sizes[0] > model.pipe.sizes[-1]
    )  # logits cost more than an embedding
