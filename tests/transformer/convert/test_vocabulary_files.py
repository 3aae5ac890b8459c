"""The vocabulary in a converted folder is saved with the checkpoint, and compared when the
model is used.
"""

from __future__ import annotations

import json

import pytest

import meshtf as mtf
from tests.examples.bert.conftest import PIECES
from tests.transformer.convert.references import Reference, write
from transformer.convert import read_model, write_run
from transformer.convert.vocabulary_files import read_vocabulary
from transformer.data import WordPieceVocabulary
from transformer.training.run_record import check_vocabulary


def write_pieces(path, pieces=PIECES):
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")


def write_config(folder, **settings):
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(
    "settings, lower_case",
    [({}, True), ({"do_lower_case": True}, True), ({"do_lower_case": False}, False)],
)
def test_the_case_is_that_of_the_tokenizer(tmp_path, settings, lower_case):
    write_pieces(tmp_path / "vocab.txt")
    write_config(tmp_path, **settings)
    expected = WordPieceVocabulary(str(tmp_path / "vocab.txt"), lower_case)
    assert read_vocabulary(tmp_path).fingerprint() == expected.fingerprint()


@pytest.mark.parametrize(
    "settings, arguments",
    [
        ({"strip_accents": False}, {"strip_accents": False}),
        ({"strip_accents": None}, {}),
        ({"do_lower_case": False, "strip_accents": True}, {"strip_accents": True}),
        ({"tokenize_chinese_chars": False}, {"split_chinese": False}),
    ],
)
def test_accents_and_chinese_are_those_of_the_tokenizer(tmp_path, settings, arguments):
    write_pieces(tmp_path / "vocab.txt")
    write_config(tmp_path, **settings)
    lower_case = settings.get("do_lower_case", True)
    path = str(tmp_path / "vocab.txt")
    expected = WordPieceVocabulary(path, lower_case, **arguments)
    vocabulary = read_vocabulary(tmp_path)
    assert vocabulary.fingerprint() == expected.fingerprint()
    assert str(vocabulary) == str(expected)


def test_a_vocabulary_that_is_not_known(tmp_path):
    assert read_vocabulary(tmp_path) is None
    write_pieces(tmp_path / "vocab.txt")
    assert read_vocabulary(tmp_path) is None  # whether it lower-cases is not known
    (tmp_path / "tokenizer_config.json").write_text("[")
    assert read_vocabulary(tmp_path) is None
    write_config(tmp_path, do_basic_tokenize=False)  # texts are split elsewhere
    assert read_vocabulary(tmp_path) is None
    write_config(tmp_path)
    write_pieces(tmp_path / "vocab.txt", ["no", "special", "pieces"])
    assert read_vocabulary(tmp_path) is None
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "spiece.model").write_text("no model")
    assert read_vocabulary(tmp_path) is None


def test_a_converted_model_is_not_used_with_another_vocabulary(tmp_path):
    write(Reference("bert"), tmp_path)
    write_pieces(tmp_path / "vocab.txt")
    write_config(tmp_path)
    vocabulary = read_vocabulary(tmp_path)
    write_run(read_model(tmp_path, mtf.Mesh("")), tmp_path / "run", vocabulary)
    _step, path = mtf.checkpoints.latest(str(tmp_path / "run"))
    extra = mtf.checkpoints.Manifest.read(path).extra
    check_vocabulary(extra, vocabulary, path)
    write_pieces(tmp_path / "other.txt", [*PIECES[:5], *reversed(PIECES[5:])])
    other = WordPieceVocabulary(str(tmp_path / "other.txt"))
    assert other.size == vocabulary.size
    with pytest.raises(mtf.CheckpointError, match="trained with another vocabulary"):
        check_vocabulary(extra, other, path)
