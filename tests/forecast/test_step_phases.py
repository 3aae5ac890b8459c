"""Optimizer state and phases are the same with and without microbatches."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import tensorflow as tf

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

SMALL = Architecture(vocab=256, d_model=128, d_ff=128, heads=2, d_kv=64, blocks=1)


@functools.cache
def explained(optimizer, microbatches, **settings):
    model = LanguageModel(
        mtf.Mesh("data:2", "batch:data", devices="abstract"),
        dataclasses.replace(SMALL, **settings),
    )
    rows = tf.TensorSpec([8, 4], tf.int32)
    return Trainer(model, optimizer, microbatches=microbatches).explain(
        {"tokens": rows, "targets": rows}
    )


@pytest.mark.parametrize("optimizer", [mtf.optimizers.Adafactor, mtf.optimizers.LAMB])
def test_optimizer_state_is_known_after_a_loop_over_microbatches(optimizer):
    single, microbatched = (explained(optimizer, n).memory for n in (1, 4))
    assert microbatched.optimizer_state == single.optimizer_state > 0
    assert microbatched.other_variables == single.other_variables == 0


def test_updates_are_no_part_of_a_loop_over_microbatches():
    single, microbatched = (explained(mtf.optimizers.Adafactor, n) for n in (1, 4))
    for phase in ("forward", "backward"):
        assert microbatched.flops(phase) == pytest.approx(single.flops(phase), rel=0.01)
    assert microbatched.flops("update") == pytest.approx(
        single.flops("update"), rel=0.1
    )


@pytest.mark.parametrize("microbatches", [1, 4])
def test_gradients_of_scanned_blocks_are_all_counted(microbatches):
    memory = explained(mtf.optimizers.AdamW, microbatches, scanned=True).memory
    assert memory.gradients == memory.parameters > 0
