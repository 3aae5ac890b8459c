"""benchmarks.moe.quality: a fair race, run for a few steps, and how it is told."""

from __future__ import annotations

import gin
import pytest

from benchmarks.moe import quality
from benchmarks.moe.quality import Curve
from transformer.cli import command_line
from transformer.training.training_run import Run

SMALL = [
    "Architecture.d_model = 16",
    "Architecture.d_ff = 16",
    "Architecture.d_kv = 8",
    "MixtureOfExperts.experts = 4",
    "MixtureOfExperts.group_size = None",
    "train.batch_size = 4",
    "ByteText.length = 8",
    "Evaluation.num_examples = 8",
    "steps = 5",
]


@pytest.fixture(autouse=True)
def clean_gin():
    yield
    gin.clear_config()


def test_a_token_costs_both_models_the_same():
    flops = []
    for config in quality.CONFIGS.values():
        gin.clear_config()
        command_line.configure([config], ['Mesh.devices = "abstract"'])
        flops.append(Run().explain().flops())
    assert flops[1] == pytest.approx(flops[0], rel=0.03)


@pytest.mark.slow
def test_both_models_are_trained_alike_and_reported(tmp_path):
    for i in range(30):
        (tmp_path / f"file_{i}.py").write_text("def f(x):\n  return x\n" * 9)
    params = [*SMALL, f'data.python_library.folder = "{tmp_path}"']
    curves = [quality.train(model, 3, 2, params) for model in quality.CONFIGS]
    assert [[step for step, _ in c.points] for c in curves] == [[2, 4, 5]] * 2
    assert all(0 < bits < 10 for c in curves for _, bits in c.points)
    assert curves[1].parameters > 1.2 * curves[0].parameters
    picture = quality.picture(curves)
    assert picture.count('class="line') == 2 and picture.count("<circle") == 6


def test_the_table_has_means_over_seeds():
    curves = [
        Curve(model, seed, 2e6, 1e6, 60.0, [(10, 2.0 + seed), (20, end)])
        for seed, ends in ((0, (1.5, 1.25)), (1, (1.75, 1.25)))
        for model, end in zip(quality.CONFIGS, ends)
    ]
    lines = quality.table(curves).splitlines()
    assert lines[1].split()[-4:] == ["2.00", "MFLOP", "2.00", "MFLOP"]
    assert lines[-2].split()[-2:] == ["1.6250", "1.2500"]
    assert lines[-1].endswith("-0.2500, -0.5000")
