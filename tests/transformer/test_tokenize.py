"""`python -m transformer.tokenize`: its examples can be trained on, and are never
overwritten.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from transformer import data, tokenize
from transformer.data.datasets import tasks

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def texts(tmp_path):
    for k in range(30):
        (tmp_path / f"{k}.txt").write_text(f"file {k}\n" * (k + 1), encoding="utf-8")
    return f"{tmp_path}/*.txt"


def test_the_tasks_of_a_mixture_are_written(tmp_path, texts, monkeypatch, capsys):
    monkeypatch.setattr(tasks, "_task_makers", {})
    source = data.documents(lambda: data.text_files(texts, share=0.2))
    for name in ("a", "b"):
        data.register(data.span_corruption(name, source, inputs=32))
    spans = data.find("a")
    step = [*spans.preprocessors]
    data.register(
        data.Task("c", source, spans.vocabulary, spans.features, preprocessors=step)
    )
    mixture = data.Mixture("all", {"a": 1, "b": 1, "c": 1})
    data.register(mixture)
    tokenize.write("all", str(tmp_path / "tokenized"), examples_per_file=10)
    printed = capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "tokenized").iterdir()) == [
        "a",
        "b",
    ]
    manifest = json.loads((tmp_path / "tokenized/a/manifest.json").read_text())
    assert (
        f"a: {manifest['train']['examples']:,} examples" in printed
        and "nothing to write" in printed
    )
    stored = data.TaskData("a", folder=str(tmp_path / "tokenized"))
    assert next(iter(stored.batches(2)))["inputs"].shape == (2, 32)
    with pytest.raises(data.DataError, match="a exists already"):
        tokenize.write("all", str(tmp_path / "tokenized"))


@pytest.mark.slow
def test_the_command_takes_the_settings_of_a_run(tmp_path, texts):
    argv = [
        "--task=span_corruption_stdlib",
        f"--output={tmp_path}/tokenized",
        "--gin_param=span_corruption.inputs = 64",
        "--gin_param=data.documents.corpus = @data.text_files",
        f"--gin_param=data.text_files.pattern = '{texts}'",
    ]
    for again in (False, True):
        done = subprocess.run(
            [sys.executable, "-m", "transformer.tokenize", *argv],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == int(again), done.stderr
        assert (
            "Traceback" not in done.stderr
            and ("exists already" in done.stderr) == again
        )
    manifest = json.loads(
        (tmp_path / "tokenized/span_corruption_stdlib/manifest.json").read_text()
    )
    assert "length=70" in manifest["packing"] and manifest["train"]["examples"] > 20
