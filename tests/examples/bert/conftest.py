"""A small vocabulary and small sizes for the programs in examples/bert."""

from __future__ import annotations

import contextlib
import json

import gin
import pytest
from absl import flags
from absl.testing import flagsaver

from transformer.data import WordPieceVocabulary

WORDS = (
    "the a tower stands in paris of berlin rome is where what old new it who said and "
    "river long wide un ##aff ##able . , ? ( ) 1 8 9 2 ##s"
).split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
SIZES = {
    "vocab_size": 40,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
}


@pytest.fixture(autouse=True)
def clean_gin():
    """No settings of gin before a test, and none after it."""
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture
def folder(tmp_path):
    """A folder with vocab.txt and bert_config.json."""
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in PIECES))
    (tmp_path / "bert_config.json").write_text(json.dumps(SIZES))
    return tmp_path


@pytest.fixture
def vocabulary(folder):
    """The word pieces of vocab.txt."""
    return WordPieceVocabulary(str(folder / "vocab.txt"))


@contextlib.contextmanager
def with_flags(**values):
    """Gives flags values for a while."""
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(**values):
        yield
