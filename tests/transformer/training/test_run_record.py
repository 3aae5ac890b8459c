"""Vocabulary and settings are saved with a run: another vocabulary is an error, other
settings are printed.
"""

from __future__ import annotations

import functools

import gin
import numpy as np
import pytest

import meshtf as mtf
from tests.examples.bert.conftest import PIECES
from tests.transformer.small_runs import configured, run_train, small
from transformer import data
from transformer.data.batching import packing
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training import training_run
from transformer.training.load_trained import Trained

SIZES = {"vocab": 64, "d_model": 16, "d_ff": 32, "heads": 2, "d_kv": 8, "blocks": 1}
TEXTS = ["the old tower stands in paris", "the new river is wide and long"] * 8


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    gin.bind_parameter("sample.max_new_tokens", 3)
    yield
    gin.clear_config()


def pieces(folder, name, words):
    path = folder / name
    path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return data.WordPieceVocabulary(str(path))


class Texts:
    """A source of documents."""

    def train(self):
        return [{"text": text} for text in TEXTS]

    held_out = train


def learn(folder, vocabulary, steps=1, **more):
    task = data.Task(
        "texts",
        Texts(),
        vocabulary,
        data.LanguageModelFeatures(8),
        packing.Chunks(vocabulary, 8),
    )
    run = training_run.Run(
        data.TaskData(task),
        mtf.Mesh(""),
        functools.partial(LanguageModel, architecture=Architecture(**SIZES)),
        **{"steps": steps, "batch_size": 4} | more,
    )
    run.train(str(folder))
    return run


def test_another_vocabulary_of_equal_size_is_refused(tmp_path):
    first = pieces(tmp_path, "a.txt", PIECES)
    second = pieces(tmp_path, "b.txt", [*PIECES[:5], *reversed(PIECES[5:])])
    assert first.size == second.size
    learn(tmp_path / "run", first)
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*.*")}
    for steps in (1, 2):
        with pytest.raises(
            mtf.CheckpointError,
            match="another vocabulary(.|\n)*trained with  wordpiece"
            "(.|\n)*b.txt(.|\n)*another folder",
        ):
            learn(tmp_path / "run", second, steps=steps)
    assert {path: path.read_bytes() for path in before if path.suffix != ".lock"} == {
        path: text for path, text in before.items() if path.suffix != ".lock"
    }
    assert learn(tmp_path / "run", first, steps=2).trainer.steps_done == 2


def test_a_model_is_used_with_its_own_vocabulary_only(tmp_path, monkeypatch):
    first = pieces(tmp_path, "a.txt", PIECES)
    run = learn(tmp_path / "run", first)
    monkeypatch.setattr(training_run, "Run", lambda: run)
    assert Trained.of(str(tmp_path / "run")).step == 1
    other = pieces(tmp_path, "b.txt", [*PIECES[:5], *reversed(PIECES[5:])])
    monkeypatch.setattr(data.TaskData, "vocabulary", other)
    with pytest.raises(
        mtf.CheckpointError, match="step_00000001 was trained with another voc"
    ):
        Trained.of(str(tmp_path / "run"))


def changed(out):
    return [
        line.removeprefix("changed  ")
        for line in out.splitlines()
        if line.startswith("changed  ")
    ]


@pytest.mark.sampled(2, together="records of runs")
def test_changed_settings_are_printed_and_the_run_resumes(tmp_path, capsys):
    params = small(tmp_path)
    assert run_train(capsys, tmp_path / "run", params)[0] == 0
    code, out, err = run_train(
        capsys,
        tmp_path / "run",
        [
            *params,
            "train.steps = 3",
            "AdamW.beta_2 = 0.9",
            "train.batch_size = 8",
            "Architecture.dropout = 0.1",
            "warmup_cosine.peak = 1e-3",
            "ByteText.seed = 5",
            "Mesh.axes = 'data:2'",
            "train.save_every = 7",
            "sample.max_new_tokens = 2",
        ],
    )
    assert code == 0, err
    assert set(changed(out)) == {
        "AdamW.beta_2: 0.98 before, 0.9 now",
        "train.batch_size: 4 before, 8 now",
        "Architecture.dropout: 0.0 before, 0.1 now",
        "warmup_cosine.peak: 0.005 before, 0.001 now",
        "ByteText.seed: 0 before, 5 now",
    }
    code, out, err = run_train(capsys, tmp_path / "run", [*params, "train.steps = 4"])
    assert "AdamW.beta_2: 0.9 before, 0.98 now" in changed(
        out
    )  # those that it was saved with


@pytest.mark.sampled(2, together="records of runs")
def test_unchanged_settings_are_not_printed(tmp_path, capsys):
    params = small(tmp_path)
    run_train(capsys, tmp_path / "run", params)
    code, out, _ = run_train(capsys, tmp_path / "run", params)
    assert code == 0 and not changed(out)
    assert "All 2 steps are done. No steps are left" in out


@pytest.mark.sampled(2, together="records of runs")
def test_a_finished_run_says_that_other_settings_have_no_effect(tmp_path, capsys):
    params = small(tmp_path)
    run_train(capsys, tmp_path / "run", params)
    before = (tmp_path / "run" / "config.gin").read_text()
    code, out, _ = run_train(
        capsys, tmp_path / "run", [*params, "AdamW.weight_decay = 0.5"]
    )
    assert code == 0 and changed(out) == ["AdamW.weight_decay: 0.1 before, 0.5 now"]
    assert "All 2 steps are done. The changed settings have no effect" in out
    assert "another model_dir" in out
    assert (
        tmp_path / "run" / "config.gin"
    ).read_text() == before  # what it was trained with
    configured(tmp_path / "run")
    assert gin.query_parameter("AdamW.weight_decay") == 0.1


@pytest.mark.sampled(2, together="records of runs")
def test_a_checkpoint_without_a_record_resumes(tmp_path, monkeypatch):
    first = pieces(tmp_path, "a.txt", PIECES)
    with monkeypatch.context() as patch:
        patch.setattr("transformer.training.run_record.make_record", lambda *_: {})
        patch.setattr("transformer.training.run_record.differences", lambda *_: [])
        learn(tmp_path / "run", first)
    run = learn(tmp_path / "run", first, steps=2)
    assert (
        run.trainer.steps_done == 2
        and np.isfinite(
            run.trainer.variables["language_model/embedding/table"].numpy()
        ).all()
    )
