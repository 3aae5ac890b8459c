"""Sizes of published models: the Transformers of GPipe (arXiv:1811.06965, table 1)."""

from __future__ import annotations

import gin
import pytest

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel

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
