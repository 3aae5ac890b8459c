"""Training of an encoder-decoder with dropout: losses fall, and are equal under a layout."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.training.trainer import Trainer

SIZES = {"vocab": 16, "d_model": 16, "d_ff": 16, "heads": 2, "d_kv": 8, "blocks": 1}
SHARDED = {
    "axes": "data:2;model:2",
    "layout": "batch:data; vocab:model; heads:model; d_ff:model",
    "variable_layout": "d_model:data",
}


def losses(dropout, **mesh):
    """Returns the losses of some steps."""
    model = EncoderDecoder(
        mtf.Mesh(**mesh or {"axes": ""}), Architecture(**SIZES, dropout=dropout)
    )
    trainer = Trainer(model, lambda variables: mtf.optimizers.AdamW(variables, 0.01))
    sequences = np.random.default_rng(0).integers(1, 16, (3, 4, 6)).astype("int32")
    batch = dict(zip(("inputs", "tokens", "targets"), sequences))
    return [float(trainer.step(batch)[0]) for _ in range(4)]


def test_training_with_dropout_lowers_the_loss():
    single_device = losses(0.2)
    assert single_device[-1] < single_device[0]
    assert losses(0.2, **SHARDED) == pytest.approx(single_device, rel=1e-4)
    assert losses(0.0)[0] != pytest.approx(single_device[0], rel=1e-3)
