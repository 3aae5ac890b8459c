"""Runs on meshes without axes that layouts name: training, evaluation, scoring,
generation, export.
"""

from __future__ import annotations

import gin
import numpy as np
import pytest

import meshtf as mtf
from tests.transformer.small_runs import configured, run_train, small
from transformer.data import RawBytes
from transformer.export_saved_model import export
from transformer.inference.decoder import Decoder
from transformer.inference.sample import sample
from transformer.inference.scoring import Scorer
from transformer.inference.text_generation import generate_texts
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.evaluation import Evaluation
from transformer.training.load_trained import Trained

RULES = "batch:data; kv_length:rows; heads:model; d_ff:model; vocab:model"
SIZES = {"d_model": 16, "d_ff": 32, "heads": 2, "d_kv": 8, "blocks": 2, "vocab": 32}


@pytest.fixture(autouse=True)
def clean_gin():
    yield
    gin.clear_config()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axes", ["", "model:2", "stage:2"])
def test_a_run_without_the_axis_of_the_batch_is_used_in_all_ways(
    tmp_path, capsys, axes
):
    code, out, err = run_train(
        capsys, tmp_path / "run", small(tmp_path, f"Mesh.axes = '{axes}'")
    )
    assert code == 0 and "in total; checkpoint" in out, err
    configured(tmp_path / "run")
    trained = Trained.of(str(tmp_path / "run"))
    (completions,) = generate_texts(trained, ["def ", "x"], max_new_tokens=3)
    assert [c.prompt for c in completions] == ["def ", "x"]
    assert Evaluation(trained.model, trained.data, 3, num_examples=5)()["loss"] > 0
    (score,) = Scorer(trained.model, trained.data.vocabulary, 16)(["def f(x)"])
    assert score.num_tokens == 7 and score.log_prob < 0
    export(trained).save(str(tmp_path / "served"))
    export(trained, num_beams=2)


@pytest.mark.sampled(5, each="axes settings")
@pytest.mark.parametrize("axes", ["", "model:2", "rows:2", "rows:2;stage:2"])
@pytest.mark.parametrize(
    "settings", [{}, {"num_beams": 2}, {"temperature": 0.8}], ids=str
)
def test_completions_are_the_same_for_all_axes(axes, settings):
    def complete(mesh):
        model = LanguageModel(mesh, Architecture(**SIZES))
        return Decoder(model, 5, 4, batch_size=3, **settings)(
            [[5, 4], [9, 1, 3], [2]], seed=1
        )

    expected = complete(mtf.Mesh("data:2;rows:2;model:2", RULES))
    for one, other in zip(complete(mtf.Mesh(axes, RULES)), expected):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.score, other.score, rtol=1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axes", ["", "stage:2", "stage:2;model:2"])
def test_a_pipeline_without_the_axis_of_the_batch_writes(axes):
    architecture = Architecture(**SIZES, scanned=True)
    layout = f"{RULES}; layers:stage"
    model = LanguageModel(mtf.Mesh(axes, layout, microbatches=4), architecture)
    plain = LanguageModel(mtf.Mesh(""), architecture)
    kinds = {"length": 4, "prompt": "\1\2\3", "max_new_tokens": 3, "temperature": 0.0}
    assert sample(model, **kinds) == sample(plain, **kinds)
    text = ["\1\2\3\4"]
    (one,), (other,) = (Scorer(x, RawBytes(), 16)(text) for x in (model, plain))
    np.testing.assert_allclose(one.log_prob, other.log_prob, rtol=1e-5)
