"""Sharded variables in a forecast: memory, bytes and counts are those of the ZeRO
paper.

Of P parameters in float32, updated by Adam, a position of plain data parallelism holds
4P bytes of parameters, 4P of gradients, and 8P of optimizer state (arXiv 1910.02054,
section 3). On N positions

    ZeRO-1    optimizer_layout    4P + 4P + 8P/N           bytes moved: (N-1)/N · 4P · 2, as before
    ZeRO-3    variable_layout     (4P + 4P + 8P) / N       bytes moved: (N-1)/N · 4P · 3
"""

from __future__ import annotations

import math
from collections import Counter

import pytest
import tensorflow as tf

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

VOCAB = 256
D_MODEL = 256
D_FF = 1024
BLOCKS = 3
LENGTH = 16
BLOCK = {
    "q": D_MODEL**2,
    "k": D_MODEL**2,
    "v": D_MODEL**2,
    "o": D_MODEL**2,
    "norm 1": D_MODEL,
    "wi": D_MODEL * D_FF,
    "wo": D_FF * D_MODEL,
    "norm 2": D_MODEL,
}
TABLE = VOCAB * D_MODEL  # of the embedding; the logits' kernel is as large
VARIABLES = BLOCKS * len(BLOCK) + 3  # and the last norm
P = BLOCKS * sum(BLOCK.values()) + 2 * TABLE + D_MODEL
FSDP = {"layout": "batch:data", "variable_layout": "d_model:data"}
ZERO_1 = {"layout": "batch:data", "optimizer_layout": "d_model:data"}
DATA = {"layout": "batch:data"}


def explained(axes, batch, d_model=D_MODEL, heads=4, **mesh):
    """Returns the forecast of a training step."""
    mesh = mtf.Mesh(axes, devices="abstract", **mesh)
    model = LanguageModel(
        mesh,
        Architecture(
            vocab=VOCAB,
            d_model=d_model,
            d_ff=4 * d_model,
            heads=heads,
            d_kv=d_model // heads,
            blocks=BLOCKS,
            dropout=0.1,
        ),
    )
    tokens = tf.TensorSpec([batch, LENGTH], tf.int32)
    return Trainer(model).explain({"tokens": tokens, "targets": tokens})


def counts(forecast):
    """Returns how often each kind of move is made in each phase, of all but single
    numbers.
    """
    return Counter((m.phase, m.kind) for m in forecast.collectives if m.tensor.shape)


def received(forecast):
    """Returns the bytes that one position receives, but for single numbers."""
    return sum(m.bytes for m in forecast.collectives if m.tensor.shape)


@pytest.mark.parametrize("n", [2, 8, 32])
def test_memory_falls_as_in_the_paper(n):
    def stored_bytes(**mesh):
        memory = explained(f"data:{n}", 16 * n, **mesh).memory
        return memory.parameters, memory.gradients, memory.optimizer_state

    assert stored_bytes(**DATA) == (4 * P, 4 * P, 8 * P)
    assert stored_bytes(**ZERO_1) == (
        4 * P,
        4 * P / n,
        8 * P / n,
    )  # each keeps what it updates
    assert stored_bytes(**FSDP) == (4 * P / n, 4 * P / n, 8 * P / n)


def test_a_variable_without_the_cut_dimension_stays_whole():
    forecast = explained(
        "data:8", 128, layout="batch:data", variable_layout="d_ff:data"
    )
    sharded = BLOCKS * 2 * D_MODEL * D_FF  # wi and wo
    assert forecast.memory.parameters == 4 * (P - sharded + sharded / 8)
    assert forecast.memory.optimizer_state == 2 * forecast.memory.parameters


@pytest.mark.parametrize("n", [2, 8, 32])
def test_moves_are_those_of_the_paper(n):
    batch = 16 * n
    once = 4 * P * (n - 1) / n
    plain = explained(f"data:{n}", batch, **DATA)
    assert counts(plain) == {("backward", "all_reduce"): VARIABLES}
    assert received(plain) == 2 * once

    zero_1 = explained(f"data:{n}", batch, **ZERO_1)
    assert counts(zero_1) == {
        ("backward", "reduce_scatter"): VARIABLES,
        ("update", "all_gather"): VARIABLES,
    }
    assert received(zero_1) == 2 * once

    fsdp = explained(f"data:{n}", batch, **FSDP)
    table = 4 * TABLE * (n - 1) / n  # not needed by the backward pass
    assert counts(fsdp) == {
        ("forward", "all_gather"): VARIABLES,
        ("backward", "all_gather"): VARIABLES - 1,
        ("backward", "reduce_scatter"): VARIABLES,
    }
    assert received(fsdp) == 3 * once - table

    with_residuals = explained(f"data:{n}", batch, keep_gathered=True, **FSDP)
    assert counts(with_residuals) == {
        ("forward", "all_gather"): VARIABLES,
        ("backward", "reduce_scatter"): VARIABLES,
    }
    assert received(with_residuals) == 2 * once


def test_gathered_weights_that_are_freed_are_not_there_at_the_peak():
    with_residuals = explained(
        "data:8", 128, keep_gathered=True, bucket_bytes=0, **FSDP
    ).memory
    freed = explained("data:8", 128, bucket_bytes=0, **FSDP).memory
    # The peak is where the backward pass reaches the last block. All weights of the
    # blocks are there if they are kept; else those of two products, of which none is
    # larger than wi.
    gathered = 4 * BLOCKS * sum(BLOCK.values())
    largest = 4 * BLOCK["wi"]
    assert (
        gathered - 2 * largest
        <= with_residuals.activations - freed.activations
        <= gathered
    )
    assert gathered > 2 * 2 * largest  # so that this says something
    assert freed.peak < with_residuals.peak


def test_gradients_wait_for_their_bucket():
    unbucketed, bucketed = (
        explained("data:8", 8, bucket_bytes=size, **DATA).memory for size in (0, 8 * P)
    )
    stored_bytes = unbucketed.parameters + unbucketed.optimizer_state
    assert stored_bytes + 4 * P < unbucketed.peak < stored_bytes + 8 * P
    # In the end there are all gradients, and what they are packed into.
    assert bucketed.peak == pytest.approx(stored_bytes + 8 * P, rel=1e-4)


LAYOUTS = [
    (
        "data:4;model:2",
        "data:256;model:8",
        {"layout": "batch:data;heads:model;d_ff:model;vocab:model"},
    ),
    ("data:8", "data:2048", FSDP),
    ("data:8", "data:2048", ZERO_1),
]


@pytest.mark.parametrize("few, many, mesh", LAYOUTS, ids=str)
def test_a_forecast_does_not_grow_with_the_positions(few, many, mesh, monkeypatch):
    def refuse(self, *axes):
        raise AssertionError("a forecast went through all positions")

    monkeypatch.setattr(mtf.Mesh, "groups", refuse)
    monkeypatch.setattr(mtf.Mesh, "coords", property(refuse))

    def kinds(axes):
        positions = math.prod(int(rule.partition(":")[2]) for rule in axes.split(";"))
        forecast = explained(axes, 16 * positions, d_model=2048, heads=8, **mesh)
        assert forecast.positions == positions
        return [
            (op.title, op.phase, [m.kind for m in op.collectives])
            for op in forecast.ops
        ]

    assert kinds(few) == kinds(many)
