"""Help and errors of usage need no TensorFlow, which takes seconds to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meshtf.command_line import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = [
    "transformer.train",
    "transformer.decode",
    "transformer.evaluate",
    "transformer.score",
    "transformer.tokenize",
    "transformer.train_vocabulary",
    "transformer.export_saved_model",
    "transformer.convert",
    "examples.bert.make_tasks",
    "examples.bert.create_pretraining_data",
    "examples.bert.run_pretraining",
    "examples.bert.run_classifier",
    "examples.bert.run_squad",
]


def run(*words):
    """Returns exit code, stdout and stderr of a command, and the modules that it imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = done.stderr.splitlines()
    imports = {x.split("|")[-1].strip() for x in lines if x.startswith("import time:")}
    messages = [x for x in lines if not x.startswith("import time:")]
    return done.returncode, done.stdout, "\n".join(messages), imports


def check_light(imports):
    assert "absl.flags" in imports
    assert not {"tensorflow", "keras", "numpy.random"} & imports


@pytest.mark.parametrize("command", [None, *COMMANDS], ids=str)
def test_help_of_a_command_needs_no_tensorflow(command):
    words = [command] if command else []
    code, out, err, imports = run("meshtf", *words, "--help")
    assert code == 0 and not err and f"python -m meshtf {command or ''}" in out
    check_light(imports)


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_of_a_program_needs_no_tensorflow(program):
    _, out, err, imports = run(program, "--help")
    assert "--model_dir" in out or "--output" in out
    assert not err
    check_light(imports)


@pytest.mark.parametrize(
    "words, message",
    [
        (["meshtf", "explian"], "Did you mean explain?"),
        (["meshtf", "explain", "--device_memry=1"], "flag 'device_memry'"),
        (["meshtf", "explain", "plan.html"], "'plan.html' is not a flag"),
        (["meshtf", "explain", "--gin_file=no.gin"], "there is no gin file 'no.gin'"),
        (["meshtf", "checkpoint", "inspect", "nowhere"], "there is no folder nowhere"),
        (["meshtf", "launch", "--workers=0", "--", "x"], "flag --workers=0"),
        (["meshtf", "launch"], "launch needs a command"),
        (["meshtf", "supervise", "--", "x"], "supervise needs workers"),
        (["meshtf", "selfcheck", "quick"], "'quick' is not a flag"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_errors_of_usage_need_no_tensorflow(words, message):
    code, out, err, imports = run(*words)
    assert code == 2 and not out and message in err, err
    assert "Traceback" not in err
    check_light(imports)


@pytest.mark.parametrize(
    "words, setting",
    [
        (["transformer.train", "--mesh=data:8"], "Mesh.axes = 'data:8'"),
        (["transformer.train", "--steps=10"], "steps = 10"),
        (["meshtf", "explain", "--mesh", "data:8"], "Mesh.axes = "),
        (["meshtf", "export", "--d_modle=8"], "Architecture.d_model = 8"),
        (["examples.bert.run_squad", "--batch_siz=8"], "train.batch_size = 8"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_an_unknown_flag_names_the_setting_of_gin(words, setting):
    code, _, err, imports = run(*words)
    assert code in (1, 2) and f'--gin_param="{setting}' in err, err
    check_light(imports)


def test_a_program_without_gin_suggests_no_setting():
    _, _, err, _ = run("transformer.train_vocabulary", "--steps=10")
    assert "'steps'" in err and "gin_param" not in err


@pytest.mark.parametrize("flag", ["--model_dri=x", "--gin_file=no.gin", "x"])
def test_errors_of_usage_of_programs_need_no_tensorflow(flag):
    code, _, err, imports = run("transformer.train", flag)
    assert code == 1 and "Traceback" not in err
    assert "model_dri" in err or "no.gin" in err or "'x' is not a flag" in err
    check_light(imports)
