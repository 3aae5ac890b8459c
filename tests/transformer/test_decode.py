"""`python -m transformer.decode`: completions of prompts, and messages of errors."""

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
from transformer.inference.text_generation import generate_texts
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


def save_untrained_run(folder, files, params):
    """Writes the files of a run of no steps: a checkpoint with optimizer slots, and
    config.gin. Returns the folder.
    """
    gin.clear_config()
    command_line.configure(files, params)
    training_run.Run().trainer.save(mtf.checkpoints.Saver(str(folder)))
    run_report.write_config(str(folder))
    gin.clear_config()
    return str(folder)


def configured(folder):
    """Returns the model of a run, under the configuration of the run."""
    gin.clear_config()
    command_line.configure([f"{folder}/config.gin"], [])
    return Trained.of(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_untrained_run(
        tmp_path_factory.mktemp("runs") / "lm", ["lm_stdlib.gin"], SMALL
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "pairs.gin").write_text("\n".join(PAIRS))
    return save_untrained_run(folder / "pairs", [str(folder / "pairs.gin")], [])


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
    return save_untrained_run(folder / "prefixed", [str(folder / "prefixed.gin")], [])


@pytest.fixture
def call(capsys, monkeypatch):
    """Calls the command with flags and standard input; returns its exit code, stdout
    and stderr.
    """
    flags.FLAGS(["decode"])
    defaults = {
        "input": None,
        "output": None,
        "format": "lines",
        "max_new_tokens": 5,
        "batch_size": 2,
        "temperature": None,
        "top_k": None,
        "top_p": None,
        "num_beams": None,
        "alpha": None,
        "seed": 0,
        "stop": [],
        "max_prompt_length": None,
    }

    def call(folder, stdin="def \nif x\n", **changes):
        gin.clear_config()
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = 0
        try:
            decode.run(
                ["decode"],
                types.SimpleNamespace(model_dir=folder, **defaults | changes),
            )
        except SystemExit as exit:
            code = exit.code
        return (code, *capsys.readouterr())

    yield call
    gin.clear_config()


def test_a_line_is_written_for_each_prompt(call, run):
    code, out, err = call(run, "def \nif x\nclass\n", max_new_tokens=3)
    assert code == 0, err
    assert [line[:4] for line in out.splitlines()] == ["def ", "if x", "clas"]
    assert err == "3 prompts, model of step 0\n"


def test_completions_are_those_of_the_saved_model(call, run):
    line = "a\\n\\\\b\n"
    out = json.loads(call(run, line, max_new_tokens=6, format="json")[1])
    assert out["prompt"] == "a\n\\b"
    model = configured(run).model
    ids = list(out["prompt"].encode())
    for _ in range(6):
        tokens = mtf.asarray(model.mesh, np.array([ids] * 4, "int32"), "batch;length")
        ids.append(int(model(tokens).numpy()[0, -1].argmax()))
    assert out["text"] == bytes(ids[len(out["prompt"]) :]).partition(b"\0")[0].decode(
        errors="replace"
    )


def test_prompts_of_a_prefix_language_model_are_prefixes(call, prefixed):
    out = json.loads(call(prefixed, "def f\n", max_new_tokens=4, format="json")[1])
    model = configured(prefixed).model
    ids = [0, *ByteVocabulary().encode("def f").tolist()]
    prompt_length = len(ids)
    for _ in range(4):
        tokens = mtf.asarray(model.mesh, np.array([ids] * 2, "int32"), "batch;length")
        prefix = mtf.broadcast(
            mtf.range(model.mesh, tokens.shape.dim("length")) < prompt_length,
            tokens.shape,
        )
        ids.append(int(model(tokens, prefix=prefix).numpy()[0, -1, :259].argmax()))
    assert out["text"] == ByteVocabulary().decode(np.array(ids[prompt_length:]))


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
    assert call(run, num_beams=3, alpha=0.2, stop=["\\n", "ab"])[0] == 0
    (settings,) = seen
    assert settings["num_beams"] == 3
    assert settings["alpha"] == 0.2
    assert settings["max_new_tokens"] == 5
    assert settings["window"] == 16
    assert settings["eos_id"] == [0, 10] and "temperature" not in settings


def test_samples_depend_on_the_seed_and_end_before_stop_strings(call, run):
    sampled, repeated, other_seed = (
        call(
            run, temperature=3.0, top_p=0.9, max_new_tokens=30, seed=seed, format="json"
        )
        for seed in (1, 1, 2)
    )
    assert sampled == repeated != other_seed
    text = json.loads(sampled[1].splitlines()[0])["text"]
    stop = text[7:9]
    stopped = json.loads(
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
    assert stopped == text[: text.index(stop)]


def test_output_of_an_encoder_decoder(call, pairs):
    code, out, err = call(
        pairs, "def f(x):\n", temperature=1.0, max_new_tokens=8, format="json"
    )
    assert code == 0, err
    assert json.loads(out)["prompt"] == "def f(x):"
    trained = configured(pairs)
    ((completion,),) = generate_texts(
        trained, ["def f(x):"], max_new_tokens=8, temperature=1.0
    )
    assert completion.text == json.loads(out)["text"]
    eos_id = 1
    ids = [*ByteVocabulary().encode("def f(x):").tolist(), eos_id]
    window = trained.data.features(1)["tokens"].shape[1]
    (generated,) = Decoder(
        trained.model, 8, len(ids), eos_id=eos_id, window=window, temperature=1.0
    )([ids])
    assert ByteVocabulary().decode(np.array(generated.ids)) == completion.text


def test_the_output_file_is_complete_or_absent(call, run, tmp_path):
    prompts, out = tmp_path / "in.txt", tmp_path / "new" / "out.txt"
    prompts.write_text("def \nif\n")
    assert call(run, input=str(prompts), output=str(out))[:2] == (0, "")
    assert len(out.read_text().splitlines()) == 2
    prompts.write_text("def \n\nif\n")
    code, _, err = call(run, input=str(prompts), output=str(tmp_path / "other.txt"))
    assert code == 1 and "prompt 2 is empty" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "new"]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"stdin": ""}, "ConfigError: there are no prompts in standard input"),
        ({"input": "/nope/in.txt"}, "ConfigError: cannot read /nope/in.txt"),
        ({"top_p": 2.0, "temperature": 1.0}, "PlanError: top_p is above 0"),
        ({"max_new_tokens": 0}, "PlanError: max_new_tokens=0"),
    ],
)
def test_errors_have_no_traceback(call, run, changes, message):
    code, out, err = call(run, **changes)
    assert (code, out) == (1, "")
    assert message in err


def test_long_prompts_are_truncated(call, run):
    full, truncated = (
        call(run, "xxxxif x\n", max_prompt_length=length, format="json")[1]
        for length in (None, 4)
    )
    short = call(run, "if x\n", format="json")[1]
    assert json.loads(truncated)["text"] == json.loads(short)["text"]
    assert json.loads(truncated)["text"] != json.loads(full)["text"]


def test_error_without_a_checkpoint(call, tmp_path):
    code, _, err = call(str(tmp_path))
    assert code == 1
    assert (
        "CheckpointError: there is no checkpoint in" in err
        and "--model_dir=FOLDER" in err
    )


@pytest.mark.parametrize(
    "setting, messages",
    [
        (
            "Architecture.d_ff = 64",
            ["of another shape", "feed_forward", "[16, 32] saved, [d_m"],
        ),
        ("Architecture.blocks = 2", ["only in the model", "block_1/attention"]),
        ("Architecture.tied = True", ["only in the checkpoint", "logits/kernel"]),
        (
            "Architecture.vocab = 100",
            ["DataError: the vocabulary has 256 ids, and the model"],
        ),
    ],
)
def test_error_for_a_checkpoint_of_another_model(
    call, run, tmp_path, setting, messages
):
    shutil.copytree(run, folder := tmp_path / "run")
    with open(folder / "config.gin", "a", encoding="utf-8") as file:
        file.write(f"\n{setting}\n")
    code, _, err = call(str(folder))
    assert code == 1
    assert all(text in err for text in messages), err


def test_error_for_a_checkpoint_of_a_deeper_model(call, run, tmp_path):
    folder = save_untrained_run(
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
