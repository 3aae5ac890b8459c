"""Dropout of an encoder-decoder is the same under every layout, and differs between the
stacks.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.training.trainer import Trainer

SIZES = {"vocab": 16, "d_model": 16, "d_ff": 16, "heads": 2, "d_kv": 8, "blocks": 1}
CUT = {
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
    rows = np.random.default_rng(0).integers(1, 16, (3, 4, 6)).astype("int32")
    batch = dict(zip(("inputs", "tokens", "targets"), rows))
    return [float(trainer.step(batch)[0]) for _ in range(4)]


def test_training_with_dropout_lowers_the_loss():
    alone = losses(0.2)
    assert alone[-1] < alone[0]
    assert losses(0.2, **CUT) == pytest.approx(alone, rel=1e-4)
    assert losses(0.0)[0] != pytest.approx(alone[0], rel=1e-3)
