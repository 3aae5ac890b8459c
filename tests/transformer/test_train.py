"""The training command: the files of a run, resuming, and errors."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from pathlib import Path

import gin
import numpy as np
import pytest

import meshtf as mtf
from tests.support.native_notes import without_native_notes
from transformer import data
from transformer.cli.command_line import ConfigError, configure
from transformer.inference.sample import sample
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training import trainer, training_run
from transformer.training.evaluation import Evaluation
from transformer.training.reporting import metrics, run_report

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"d_model": 16, "d_ff": 32, "heads": 2, "d_kv": 8, "blocks": 1, "dropout": 0.1}
MODEL = functools.partial(LanguageModel, architecture=Architecture(**SMALL))


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    gin.bind_parameter("sample.max_new_tokens", 3)
    yield
    gin.clear_config()


@pytest.fixture
def corpus(rng):
    words = [b"def ", b"return ", b"self.", b"x = y + 1\n", b"for i in range(10):\n"]
    text = np.frombuffer(b"".join(words[i] for i in rng.integers(0, 5, 2000)), np.uint8)
    return data.Corpus("words", text[:-1000], text[-1000:], ("a.py",), ("b.py",))


def text(corpus):
    return data.ByteText(lambda: corpus, length=16)


def train(folder, corpus, steps, axes="", layout="", **changes):
    settings = {"model": MODEL, "batch_size": 4, "report_every": 1, "save_every": 3}
    mesh = mtf.Mesh(axes, layout)
    training_run.train(
        str(folder), data=text(corpus), mesh=mesh, steps=steps, **settings | changes
    )
    return [line["loss"] for line in metrics.read(folder) if "loss" in line]


def test_a_run_leaves_everything_and_tells_how_good_it_is(tmp_path, corpus, capsys):
    optimizer = functools.partial(mtf.optimizers.Adam, learning_rate=0.01)
    losses = train(
        tmp_path,
        corpus,
        30,
        "data:2;model:2",
        "batch:data;d_ff:model",
        optimizer=optimizer,
    )
    assert len(losses) == 30
    assert losses[-1] < losses[0] - 1
    assert {"config.gin", "operative_config.gin", "metrics.jsonl", "step_00000030"} <= {
        path.name for path in tmp_path.iterdir()
    }
    output = capsys.readouterr().out
    for part in (
        "step 30/30",
        "before",
        "at step 30",
        "byte bigram",
        "gzip",
        "tokens/s",
    ):
        assert part in output
    bits = [
        line["held_out_bits_per_byte"]
        for line in metrics.read(tmp_path)
        if "held_out_bits_per_byte" in line
    ]
    assert len(bits) == 2
    assert bits[1] < bits[0] - 1


def test_a_run_resumes_also_under_another_layout(tmp_path, corpus, capsys):
    whole = train(tmp_path / "whole", corpus, 6)
    assert train(tmp_path / "parts", corpus, 3) == pytest.approx(whole[:3], rel=1e-5)
    parts = train(
        tmp_path / "parts", corpus, 6, "data:2;model:2", "batch:data;heads:model"
    )
    assert "continuing from step 3" in capsys.readouterr().out
    np.testing.assert_allclose(parts, whole, rtol=1e-4)


def test_a_finished_run_is_not_trained_further(tmp_path, corpus, capsys):
    train(tmp_path, corpus, 2)
    train(tmp_path, corpus, 2)
    assert "No steps are left" in capsys.readouterr().out
    assert [line["step"] for line in metrics.read(tmp_path) if "loss" in line] == [1, 2]


def test_ctrl_c_saves_a_checkpoint(tmp_path, corpus, capsys, monkeypatch):
    real = trainer.Trainer.step

    def step(self, *batch):
        if self.steps_done == 1:
            signal.raise_signal(signal.SIGINT)
        return real(self, *batch)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(trainer.Trainer, "step", step)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, corpus, 5)
    assert "Stopping after this step" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    assert len(train(tmp_path, corpus, 3)) == 3
    assert "continuing from step 2" in capsys.readouterr().out


def test_a_folder_of_another_model_is_refused(tmp_path, corpus):
    train(tmp_path, corpus, 1)
    with pytest.raises(
        mtf.CheckpointError, match="of another model(.|\n)*d_ff:64(.|\n)*model_dir"
    ):
        train(
            tmp_path,
            corpus,
            2,
            model=functools.partial(
                LanguageModel, architecture=Architecture(**SMALL | {"d_ff": 64})
            ),
        )


def test_evaluation_does_not_depend_on_the_batch_or_the_layout(corpus):
    def bits(batch, number=None, **mesh):
        scores = Evaluation(MODEL(mtf.Mesh(**mesh)), text(corpus), batch, number)()
        assert scores["loss"] == pytest.approx(scores["bits_per_byte"] * np.log(2.0))
        assert 0 <= scores["accuracy"] < 0.1
        return scores["bits_per_byte"]

    expected = bits(62, axes="")
    assert 7.5 < expected < 10
    assert bits(8, axes="") == pytest.approx(
        expected, rel=1e-5
    )  # the last batch is filled up
    assert bits(8, axes="data:4", layout="batch:data") == pytest.approx(
        expected, rel=1e-5
    )
    assert bits(8, 5, axes="") == pytest.approx(expected, rel=0.1)


def test_samples_are_the_same_under_every_layout():
    texts = {
        sample(
            MODEL(mtf.Mesh(axes, layout)),
            length=8,
            prompt="import sys",
            max_new_tokens=6,
        )
        for axes, layout in [
            ("", ""),
            ("data:4", "length:data"),
            ("model:2", "vocab:model"),
        ]
    }
    assert len(texts) == 1
    assert texts.pop().startswith("import sys")


def test_the_likeliest_byte_is_taken_at_temperature_zero():
    model = MODEL(mtf.Mesh(""))
    logits = model(
        mtf.asarray(model.mesh, np.array(list(b"def "), np.int32), "length")
    ).numpy()
    text = sample(model, length=4, prompt="def ", max_new_tokens=1, temperature=0.0)
    assert text == b"def ".decode() + bytes([int(logits[-1].argmax())]).decode(
        errors="replace"
    )


@pytest.mark.parametrize(
    "name", sorted(path.name for path in (ROOT / "configs").glob("*.gin"))
)
def test_every_configuration_can_be_read_and_run(name):
    configure([name], ["steps = 0"])
    mesh = gin.query_parameter("Mesh.axes"), gin.query_parameter("Mesh.layout")
    devices = "abstract" if name == "gshard.gin" else None  # 600 billion numbers
    model = LanguageModel(
        mtf.Mesh(*mesh, devices=devices)
    )  # of gin's sizes: the layout holds them
    assert model.trainable_variables
    assert model.architecture.d_model == gin.query_parameter("Architecture.d_model")


def test_the_written_config_can_be_read(tmp_path):
    configure(["lm_stdlib.gin"], ["steps = 7"])
    mtf.optimizers.AdamW([])
    run_report.write_config(str(tmp_path))
    assert "steps = 7" in (tmp_path / "config.gin").read_text()
    gin.clear_config()
    configure([str(tmp_path / "config.gin")], [])
    assert gin.query_parameter("train.batch_size") == 16


@pytest.mark.parametrize(
    "line, message",
    [
        (
            "Architecture.d_modle = 64",
            "'Architecture' doesn't have a parameter named 'd_modle'",
        ),
        ("LanguagModel.d_model = 64", "No configurable matching 'LanguagModel'"),
        ("train.batch_size = = 3", "Unable to parse value"),
    ],
)
def test_a_wrong_setting_is_named_with_its_place(tmp_path, line, message):
    file = tmp_path / "mine.gin"
    file.write_text(f"import transformer.training.training_run\n\n{line}\n")
    with pytest.raises(ConfigError) as error:
        configure([str(file)], [])
    assert message in str(error.value)
    assert "mine.gin" in str(error.value)
    assert "line 3" in str(error.value)


def test_a_wrong_setting_of_the_command_line_is_named():
    with pytest.raises(
        ConfigError, match="'d_modle'.\n  In --gin_param line 1\n    Architecture"
    ):
        configure(["lm_stdlib.gin"], ["Architecture.d_modle = 64"])


def test_a_configuration_imports_nothing_that_was_not_named(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "mine.py").write_text(
        "import gin\n@gin.configurable\ndef three(x=3): return x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    inner, outer = tmp_path / "inner.gin", tmp_path / "outer.gin"
    inner.write_text("import transformer.training.training_run\nimport evil\n")
    outer.write_text(f"include '{inner}'\n")
    with pytest.raises(
        ConfigError,
        match="may not import 'evil'(.|\n)*line 2 of .*inner.gin"
        "(.|\n)*--gin_import=evil",
    ):
        configure([str(outer)], [])
    for line in (
        "from __gin__ import dynamic_registration",
        "import transformers.evil",
    ):
        with pytest.raises(ConfigError, match="a configuration may not import"):
            configure(["lm_stdlib.gin"], [line])
    configure(["lm_stdlib.gin"], ["import mine", "three.x = 4"], allowed=["mine"])
    assert gin.query_parameter("three.x") == 4


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="no gin file 'nope.gin'(.|\n)*lm_stdlib.gin"):
        configure(["nope.gin"], [])


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "flag, message",
    [
        (
            "--gin_param=Architecture.d_modle=64",
            "ConfigError: Configurable 'Architecture' doesn't",
        ),
        (
            '--gin_param=data.python_library.folder="/nope"',
            "CorpusError: there is no text",
        ),
        (
            '--gin_param=Mesh.layout="batch:data;length:data"',
            "LayoutError: two dimensions of one",
        ),
        ("lm_stdlib.gin", "'lm_stdlib.gin' is not a flag"),
    ],
)
def test_the_command_leaves_with_a_message_and_no_traceback(tmp_path, flag, message):
    command = [
        sys.executable,
        "-m",
        "transformer.train",
        flag,
        f"--model_dir={tmp_path}/m",
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "In call to configurable" not in done.stderr
    # Nor any notes of TensorFlow's native code that can be hidden.
    assert "I0000" not in without_native_notes(done.stderr)
