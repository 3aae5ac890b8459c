"""Commands for trained models: evaluate, score."""

from __future__ import annotations

import json
import types

import gin
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import meshtf as mtf
from transformer import data, evaluate, score
from transformer.cli import command_line
from transformer.inference.scoring import Scorer
from transformer.models.architecture import Architecture
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel
from transformer.training import training_run

SMALL = [
    "Architecture.d_model = 16",
    "Architecture.d_ff = 32",
    "Architecture.blocks = 1",
    "ByteText.length = 24",
    "train.batch_size = 4",
    "train.steps = 2",
    "sample.max_new_tokens = 2",
    "Evaluation.num_examples = 8",
    'Mesh.axes = "data:2"',
    'Mesh.layout = "batch:data"',
]


@pytest.fixture
def run(tmp_path_factory, capsys, monkeypatch):
    """Runs a command on the folder of a small training run; returns its exit code and
    what it prints.
    """
    gin.clear_config()
    folder = tmp_path_factory.mktemp("run")
    command_line.configure(["lm_stdlib.gin"], SMALL)
    training_run.train(str(folder))
    capsys.readouterr()
    flags.FLAGS(["test"])
    defaults = {
        "model_dir": str(folder),
        "num_examples": 8,
        "batch_size": 4,
        "json": None,
        "num_answers": 0,
        "input": None,
        "output": None,
        "length": None,
    }

    def call(module, *params, **values):
        gin.clear_config()
        args = types.SimpleNamespace(**{**defaults, **values})
        monkeypatch.setattr(module, "flags", types.SimpleNamespace(FLAGS=args))
        code = 0
        with flagsaver.flagsaver(gin_param=[*params]):
            try:
                module.main(["test"])
            except SystemExit as exit:
                code = exit.code
        return code, *capsys.readouterr()

    yield call
    gin.clear_config()


@pytest.mark.slow
def test_commands_of_a_trained_model(run, tmp_path):
    code, out, err = run(evaluate, json=str(tmp_path / "scores.json"))
    assert (code, err) == (0, "")
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["step"] == 2
    assert scores["bits_per_byte"] == pytest.approx(scores["loss"] / np.log(2.0))
    assert f"bits per byte            {scores['bits_per_byte']:.4f}" in out
    assert (
        run(evaluate, 'Mesh.axes = "model:2"', 'Mesh.layout = "heads:model"')[1] == out
    )

    texts = tmp_path / "texts"
    texts.write_text("def f(x):\nimport os\n\nclass A:\n")
    code, out, err = run(score, input=str(texts))
    lines = [line.split("\t") for line in out.splitlines()]
    assert code == 0 and [fields[1:] for fields in lines] == [
        ["8", "def f(x):"],
        ["8", "import os"],
        ["7", "class A:"],
    ]
    code, nothing, _ = run(score, input=str(texts), output=str(tmp_path / "scored"))
    assert (code, nothing) == (0, "") and (tmp_path / "scored").read_text() == out

    (tmp_path / "file").write_text("")
    for settings, message in [
        ({"input": str(texts), "model_dir": str(tmp_path / "none")}, "there is no"),
        ({"input": str(tmp_path / "none")}, "cannot read"),
        (
            {"input": str(texts), "length": 4},
            "text 1 has 8 tokens, more than length=4",
        ),
        (
            {"input": str(texts), "output": str(tmp_path / "file" / "x")},
            "cannot be written",
        ),
    ]:
        code, out, err = run(score, **settings)
        assert code == 1 and message in err and out == ""
    code, _, err = run(evaluate, "Architecture.d_ff = 48")
    assert code == 1 and "of another model" in err and "d_ff:48" in err


def test_scores_are_sums_of_log_probabilities(rng):
    kind = Architecture(vocab=256, d_model=16, d_ff=32, heads=2, d_kv=8, blocks=1)
    model = LanguageModel(mtf.Mesh("data:2;model:2", "batch:data; heads:model"), kind)
    texts = ["ab", "abcdefgh", "abc"]
    scores = list(Scorer(model, data.RawBytes(), length=8, batch_size=2)(texts))
    assert [x.num_tokens for x in scores] == [1, 7, 2]
    tokens = mtf.asarray(
        model.mesh, np.array([list(b"abcdefg")] * 2, "int32"), "batch; length"
    )
    logs = mtf.log_softmax(model(tokens), "vocab").numpy()[0]
    nats = [logs[i, x] for i, x in enumerate(b"bcdefgh")]
    np.testing.assert_allclose(
        [x.log_prob for x in scores], [nats[0], sum(nats), sum(nats[:2])], rtol=1e-4
    )


def test_scores_of_experts_do_not_depend_on_padding():
    kind = Architecture(
        vocab=256, d_model=16, d_ff=32, heads=2, d_kv=8, blocks=1, moe_every=1
    )
    model = LanguageModel(mtf.Mesh(""), kind)
    texts = ["experts of equal", "text"]
    scores = [
        [
            x.log_prob
            for x in Scorer(model, data.RawBytes(), length, batch_size=2)(texts)
        ]
        for length in (15, 64)
    ]
    np.testing.assert_allclose(*scores, rtol=1e-5)


def test_targets_are_scored_with_eos(rng):
    kind = Architecture(
        vocab=512, d_model=16, d_ff=32, heads=2, d_kv=8, blocks=1, positions="relative"
    )
    model = EncoderDecoder(mtf.Mesh("data:2", "batch:data"), kind)
    scorer = Scorer(model, data.ByteVocabulary(), length=8, batch_size=2)
    scores = list(scorer([("ab", "cd"), ("ab", "c"), ("abc", "cd")]))
    assert [x.num_tokens for x in scores] == [3, 2, 3]
    assert scores[0].log_prob != scores[2].log_prob
    with pytest.raises(data.DataError, match="text 1 has 9 tokens, more than length=8"):
        list(scorer([("ab", "cdefghij")]))


def test_a_text_of_one_token_is_refused():
    kind = Architecture(vocab=256, d_model=16, d_ff=32, heads=2, d_kv=8, blocks=1)
    scorer = Scorer(LanguageModel(mtf.Mesh(""), kind), data.RawBytes(), length=8)
    with pytest.raises(data.DataError, match="text 2 is too short"):
        list(scorer(["abc", "a"]))
