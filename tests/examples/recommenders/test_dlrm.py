"""DLRM of the examples: against NumPy, under several layouts, and what it learns."""

from __future__ import annotations

import gin
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import meshtf as mtf
from examples.recommenders import dlrm, train_dlrm
from examples.recommenders.click_log import ClickLog

SIZES = (2000, 1000, 30, 10)
LAYOUTS = {
    "rows": {"layout": "batch:data; vocab:model; top:model"},
    "columns": {"layout": "batch:data; d:model"},
    "live rows": {"layout": "batch:data; vocab:model", "devices": "spmd:cpu"},
}


@pytest.fixture(autouse=True)
def clean_gin():
    """No settings of gin before a test, and none after it."""
    gin.clear_config()
    yield
    gin.clear_config()


def scores(mesh, steps, batch_size=32, **settings):
    return dlrm.train(
        mesh, steps=steps, batch_size=batch_size, width=8, sizes=SIZES, **settings
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_are_those_of_one_device(layout):
    expected = scores(mtf.Mesh(""), steps=3)
    sharded = scores(mtf.Mesh("data:2; model:2", **LAYOUTS[layout]), steps=3)
    assert len(expected.losses) == 3
    np.testing.assert_allclose(sharded.losses, expected.losses, rtol=1e-5)
    assert sharded.auc == pytest.approx(expected.auc, abs=1e-4)
    assert sharded.log_loss == pytest.approx(expected.log_loss, rel=1e-4)


def test_log_odds_are_those_of_numpy():
    mesh = mtf.Mesh("")
    model = dlrm.Dlrm(mesh, SIZES, width=8, hidden=16)
    batch = ClickLog(SIZES).batch(0, 5)
    counts = mtf.asarray(mesh, batch.counts, "batch; count")
    ids = {name: mtf.asarray(mesh, x, "batch") for name, x in batch.ids.items()}
    values = {v.name.removeprefix("dlrm/"): v.numpy() for v in model.variables}

    def dense(layer, x):
        return x @ values[f"{layer}/kernel"] + values[f"{layer}/bias"]

    x = batch.counts
    for layer in ("bottom_1", "bottom_2"):
        x = np.maximum(dense(layer, x), 0)
    tables = [values[f"tables/{name}"][i] for name, i in batch.ids.items()]
    vectors = [x, *tables]
    top = dense("of_counts", x)
    for i in range(len(vectors)):
        for j in range(i):
            product = np.sum(vectors[i] * vectors[j], axis=1)
            top += product[:, None] * values["of_pairs/kernel"][i, j]
    expected = dense("output", np.maximum(top, 0))
    np.testing.assert_allclose(model(counts, ids).numpy(), expected, rtol=1e-4)


def test_it_learns_the_planted_clicks():
    mesh = mtf.Mesh("data:2; model:2", LAYOUTS["rows"]["layout"])
    untrained = scores(mesh, steps=0)
    trained = scores(
        mesh,
        steps=150,
        batch_size=256,
        optimizer=lambda variables: mtf.optimizers.Adagrad(variables, 0.05),
    )
    assert untrained.auc == pytest.approx(0.5, abs=0.06)
    assert 0.64 < trained.auc < trained.best_auc
    assert trained.best_log_loss < trained.log_loss < untrained.log_loss - 0.05


def test_the_program_prints_what_came_out(capsys):
    params = [
        "train_dlrm.steps = 2",
        "train_dlrm.batch_size = 8",
        f"train_dlrm.sizes = {SIZES}",
    ]
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(gin_param=params):
        train_dlrm.main(["train_dlrm"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "area under curve" in lines[2]
    assert gin.query_parameter("Mesh.layout").startswith("batch:data; vocab:model")
