"""Two-tower retrieval of the examples: under several layouts, and what it learns."""

from __future__ import annotations

import gin
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import meshtf as mtf
from examples.recommenders import train_two_tower, two_tower
from examples.recommenders.click_history import ClickHistory

LAYOUTS = {
    "rows": {"layout": "batch:data; users:model; items:model; hidden:model"},
    "columns": {"layout": "batch:data; d:model"},
    "live rows": {"layout": "batch:data; items:model", "devices": "spmd:cpu"},
}


@pytest.fixture(autouse=True)
def clean_gin():
    """No settings of gin before a test, and none after it."""
    gin.clear_config()
    yield
    gin.clear_config()


def scores(mesh, steps, **settings):
    return two_tower.train(
        mesh, steps=steps, users=400, items=200, groups=8, **settings
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_are_those_of_one_device(layout):
    expected = scores(mtf.Mesh(""), steps=3, batch_size=16)
    mesh = mtf.Mesh("data:2; model:2", **LAYOUTS[layout])
    sharded = scores(mesh, steps=3, batch_size=16)
    assert len(expected.losses) == 3
    np.testing.assert_allclose(sharded.losses, expected.losses, rtol=1e-5)
    assert sharded.recall == pytest.approx(expected.recall, abs=2e-3)


def test_it_retrieves_items_of_the_planted_groups():
    mesh = mtf.Mesh("data:2; model:2", LAYOUTS["rows"]["layout"])
    untrained = scores(mesh, steps=0)
    trained = scores(
        mesh,
        steps=150,
        batch_size=128,
        optimizer=lambda variables: mtf.optimizers.Adagrad(variables, 0.1),
    )
    assert untrained.recall < 0.15
    assert untrained.popular_recall == pytest.approx(0.25, abs=0.1)
    assert trained.popular_recall + 0.1 < trained.recall < trained.best_recall + 0.02


def test_recalls_of_the_planted_groups_are_those_of_counted_clicks():
    history = ClickHistory(users=40, items=200, groups=8)
    clicks = history.batch(0, 20000)
    is_popular = clicks.items < 10
    assert history.popular_recall(10) == pytest.approx(is_popular.mean(), abs=0.02)
    # The likeliest ten items of a group have the lowest ids of it.
    is_of_group = clicks.items % 8 == clicks.users % 8
    is_likely = is_of_group & (clicks.items < 80)
    assert history.best_recall(10) == pytest.approx(is_likely.mean(), abs=0.02)


def test_the_program_prints_what_came_out(capsys):
    params = ["train_two_tower.steps = 2", "train_two_tower.batch_size = 8"]
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(gin_param=params):
        train_two_tower.main(["train_two_tower"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "by popularity" in lines[1]
    assert gin.query_parameter("Mesh.layout").startswith("batch:data; users:model")
