"""`python -m transformer.decode`: prompts in, texts out, and what it says when it
cannot.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import types
from pathlib import Path

import gin
import numpy as np
import pytest
from absl import flags

import meshtf as mtf
from transformer import decode
from transformer.cli import command_line
from transformer.data import ByteVocabulary
from transformer.inference.decoder import Decoder
from transformer.inference.text_generation import write
from transformer.training import training_run
from transformer.training.load_trained import Trained
from transformer.training.reporting import run_report

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "Architecture.d_model = 16",
    "Architecture.d_ff = 32",
    "Architecture.blocks = 1",
    "ByteText.length = 16",
]
PAIRS = [
    "import transformer.training.training_run",
    "Mesh.axes = 'data:2'",
    "Mesh.layout = 'batch:data'",
    "train.mesh = @Mesh()",
    "train.data = @TaskData()",
    "train.model = @EncoderDecoder",
    "TaskData.task = 'span_corruption_stdlib'",
    "span_corruption.inputs = 24",
    "Architecture.vocab = 359",
    *SMALL[:3],
]


def left_by_a_run(folder, files, params):
    """Writes what a run of no steps leaves: a checkpoint with an optimizer's variables,
    a config.
    """
    gin.clear_config()
    command_line.configure(files, params)
    training_run.Run().trainer.save(mtf.checkpoints.Saver(str(folder)))
    run_report.write_config(str(folder))
    gin.clear_config()
    return str(folder)


def configured(folder):
    """Returns what a run left, under its own configuration."""
    gin.clear_config()
    command_line.configure([f"{folder}/config.gin"], [])
    return Trained.of(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return left_by_a_run(
        tmp_path_factory.mktemp("runs") / "lm", ["lm_stdlib.gin"], SMALL
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "pairs.gin").write_text("\n".join(PAIRS))
    return left_by_a_run(folder / "pairs", [str(folder / "pairs.gin")], [])


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    changes = {
        "@EncoderDecoder": "@LanguageModel",
        "'span_corruption_stdlib'": "'prefix_language_model_stdlib'",
        "Architecture.blocks = 1": "Architecture.blocks = 2",
    }
    text = "\n".join(line for line in PAIRS if "inputs" not in line)
    for old, new in changes.items():
        text = text.replace(old, new)
    (folder / "prefixed.gin").write_text(text + "\nprefix_language_model.length = 24")
    return left_by_a_run(folder / "prefixed", [str(folder / "prefixed.gin")], [])


@pytest.fixture
def call(capsys, monkeypatch):
    """Calls the command with flags and standard input; returns its exit code, stdout
    and stderr.
    """
    flags.FLAGS(["decode"])
    asked = {
        "input": None,
        "output": None,
        "format": "lines",
        "max_new_tokens": 5,
        "batch_size": 2,
        "temperature": None,
        "top_k": None,
        "top_p": None,
        "beams": None,
        "alpha": None,
        "seed": 0,
        "stop": [],
        "truncate": None,
    }

    def call(folder, given="def \nif x\n", **changes):
        gin.clear_config()
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        code = 0
        try:
            decode.run(
                ["decode"], types.SimpleNamespace(model_dir=folder, **asked | changes)
            )
        except SystemExit as left:
            code = left.code
        return (code, *capsys.readouterr())

    yield call
    gin.clear_config()


def test_a_line_is_written_for_each_prompt(call, run):
    code, out, err = call(run, "def \nif x\nclass\n", max_new_tokens=3)
    assert code == 0, err
    assert [line[:4] for line in out.splitlines()] == ["def ", "if x", "clas"]
    assert err == "3 prompts, model of step 0\n"


def test_what_is_written_is_what_the_saved_model_says(call, run):
    given, number = "a\\n\\\\b", 6
    out = json.loads(call(run, given + "\n", max_new_tokens=number, format="json")[1])
    assert out["prompt"] == "a\n\\b"
    model = configured(run).model
    ids = list(out["prompt"].encode())
    for _ in range(number):
        tokens = mtf.asarray(model.mesh, np.array([ids] * 4, "int32"), "batch;length")
        ids.append(int(model(tokens).numpy()[0, -1].argmax()))
    assert out["text"] == bytes(ids[len(out["prompt"]) :]).partition(b"\0")[0].decode(
        errors="replace"
    )


def test_a_prompt_is_a_prefix_where_the_model_learned_from_prefixes(call, prefixed):
    out = json.loads(call(prefixed, "def f\n", max_new_tokens=4, format="json")[1])
    model = configured(prefixed).model
    ids = [0, *ByteVocabulary().encode("def f").tolist()]
    read = len(ids)
    for _ in range(4):
        tokens = mtf.asarray(model.mesh, np.array([ids] * 2, "int32"), "batch;length")
        prefix = mtf.broadcast(
            mtf.range(model.mesh, tokens.shape.dim("length")) < read, tokens.shape
        )
        ids.append(int(model(tokens, prefix=prefix).numpy()[0, -1, :259].argmax()))
    assert out["text"] == ByteVocabulary().decode(np.array(ids[read:]))


def test_settings_of_gin_and_flags_reach_the_decoder(call, run, monkeypatch):
    seen = []
    real = Decoder.__init__
    monkeypatch.setattr(
        Decoder,
        "__init__",
        lambda self, *args, **kwargs: (
            seen.append(kwargs),
            real(self, *args, **kwargs),
        )[1],
    )
    assert call(run, beams=3, alpha=0.2, stop=["\\n", "ab"])[0] == 0
    (used,) = seen
    assert (used["beams"], used["alpha"], used["max_new_tokens"], used["window"]) == (
        3,
        0.2,
        5,
        16,
    )
    assert used["eos_id"] == [0, 10] and "temperature" not in used


def test_draws_follow_the_seed_and_texts_end_where_they_are_to(call, run):
    first, again, other = (
        call(
            run, temperature=3.0, top_p=0.9, max_new_tokens=30, seed=seed, format="json"
        )
        for seed in (1, 1, 2)
    )
    assert first == again != other
    text = json.loads(first[1].splitlines()[0])["text"]
    stop = text[7:9]
    cut = json.loads(
        call(
            run,
            temperature=3.0,
            top_p=0.9,
            max_new_tokens=30,
            seed=1,
            format="json",
            stop=[stop],
        )[1].splitlines()[0]
    )["text"]
    assert cut == text[: text.index(stop)]


def test_an_encoder_decoder_answers(call, pairs):
    code, out, err = call(
        pairs, "def f(x):\n", temperature=1.0, max_new_tokens=8, format="json"
    )
    assert code == 0, err
    assert json.loads(out)["prompt"] == "def f(x):"
    trained = configured(pairs)
    ((text,),) = write(trained, ["def f(x):"], max_new_tokens=8, temperature=1.0)
    assert text.text == json.loads(out)["text"]
    ids = [
        *ByteVocabulary().encode("def f(x):").tolist(),
        1,
    ]  # an end is put after inputs
    window = trained.data.features(1)["tokens"].shape[1]
    (written,) = Decoder(
        trained.model, 8, len(ids), eos_id=1, window=window, temperature=1.0
    )([ids])
    assert ByteVocabulary().decode(np.array(written.ids)) == text.text


def test_a_file_is_there_whole_or_not(call, run, tmp_path):
    prompts, out = tmp_path / "in.txt", tmp_path / "new" / "out.txt"
    prompts.write_text("def \nif\n")
    assert call(run, input=str(prompts), output=str(out))[:2] == (0, "")
    assert len(out.read_text().splitlines()) == 2
    prompts.write_text("def \n\nif\n")
    code, _, err = call(run, input=str(prompts), output=str(tmp_path / "other.txt"))
    assert code == 1 and "prompt 2 is empty" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "new"]


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"given": ""}, "ConfigError: there are no prompts in standard input"),
        ({"input": "/nope/in.txt"}, "ConfigError: cannot read /nope/in.txt"),
        ({"top_p": 2.0, "temperature": 1.0}, "PlanError: top_p is above 0"),
        ({"max_new_tokens": 0}, "PlanError: max_new_tokens=0"),
    ],
)
def test_errors_have_no_traceback(call, run, changes, complaint):
    code, out, err = call(run, **changes)
    assert (code, out) == (1, "")
    assert complaint in err


def test_prompts_are_cut_if_asked_for(call, run):
    whole, cut = (
        call(run, "xxxxif x\n", truncate=truncate, format="json")[1]
        for truncate in (None, 4)
    )
    alone = call(run, "if x\n", format="json")[1]
    assert (
        json.loads(cut)["text"]
        == json.loads(alone)["text"]
        != json.loads(whole)["text"]
    )


def test_a_folder_without_a_checkpoint_is_told(call, tmp_path):
    code, _, err = call(str(tmp_path))
    assert code == 1
    assert (
        "CheckpointError: there is no checkpoint in" in err
        and "--model_dir=FOLDER" in err
    )


@pytest.mark.parametrize(
    "setting, said",
    [
        (
            "Architecture.d_ff = 64",
            ["of another shape", "feed_forward", "[16, 32] saved, [d_m"],
        ),
        ("Architecture.blocks = 2", ["only in the model", "block_1/attention"]),
        ("Architecture.tied = True", ["only in the checkpoint", "logits/kernel"]),
        (
            "Architecture.vocab = 100",
            ["DataError: the vocabulary has 256 ids, and the model knows"],
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_told(call, run, tmp_path, setting, said):
    shutil.copytree(run, folder := tmp_path / "run")
    with open(folder / "config.gin", "a", encoding="utf-8") as file:
        file.write(f"\n{setting}\n")
    code, _, err = call(str(folder))
    assert code == 1
    assert all(text in err for text in said), err


def test_a_checkpoint_of_a_deeper_model_is_told(call, run, tmp_path):
    folder = left_by_a_run(
        tmp_path / "deep", ["lm_stdlib.gin"], [*SMALL, "Architecture.blocks = 2"]
    )
    shutil.copy(Path(run, "config.gin"), folder)
    code, _, err = call(folder)
    assert code == 1
    assert "only in the checkpoint" in err and "block_1/attention" in err
    assert "only in the model" not in err


@pytest.mark.slow
def test_the_command_reads_flags(run, tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "transformer.decode",
            f"--model_dir={run}",
            "--max_new_tokens=3",
            "--stop=q",
            "--temperature=0.5",
            "--top_k=4",
            "--gin_file=lm_stdlib.gin",
            *(f"--gin_param={x}" for x in SMALL),
        ],
        input="def \n",
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("def ") and "Traceback" not in done.stderr
