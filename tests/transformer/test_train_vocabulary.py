"""The command that trains vocabularies: its file can be read, and is complete or
absent.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from transformer import data, train_vocabulary

ROOT = Path(__file__).resolve().parents[2]
TEXT = "the first line of the text\nand then a second line, longer than the first one\n"


@pytest.fixture
def texts(tmp_path):
    for k in range(30):
        (tmp_path / f"{k}.txt").write_text(TEXT * (k + 1), encoding="utf-8")
    return f"{tmp_path}/*.txt"


@pytest.mark.parametrize(
    "kind, size, make",
    [
        ("wordpiece", 70, data.WordPieceVocabulary),
        ("sentencepiece", 26, data.SentencePieceVocabulary),
    ],
)
def test_what_is_trained_is_read(tmp_path, texts, kind, size, make, capsys):
    path = tmp_path / "made" / "vocabulary"
    train_vocabulary.train(kind, size, texts, str(path))
    ids = make(str(path)).encode("the first text")
    assert len(ids) and make(str(path)).decode(ids) == "the first text"
    assert [found.name for found in path.parent.iterdir()] == ["vocabulary"]
    assert "pieces are in" in capsys.readouterr().out


def test_what_fails_leaves_nothing(tmp_path, texts):
    with pytest.raises(data.VocabularyError, match="9 pieces are too few"):
        train_vocabulary.train("wordpiece", 9, texts, str(tmp_path / "vocabulary"))
    assert not (tmp_path / "vocabulary").exists()


@pytest.mark.slow
def test_the_command_leaves_plainly():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "transformer.train_vocabulary",
            "--input=no/such/*",
            "--output=x",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1 and "there is no text" in done.stderr
    assert "Traceback" not in done.stderr
