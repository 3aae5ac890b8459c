"""Vocabularies: encoding and decoding, ends, sentinels, BERT's rules, deterministic
training.
"""

from __future__ import annotations

import numpy as np
import pytest

from transformer.data import (
    ByteVocabulary,
    RawBytes,
    SentencePieceVocabulary,
    VocabularyError,
    WordPieceVocabulary,
)
from transformer.data.vocabularies import train_sentence_pieces, train_word_pieces
from transformer.data.vocabularies.word_piece import SPECIALS

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "un",
    "##aff",
    "##able",
    "hello",
    ",",
    "!",
    "中",
    "don",
    "'",
    "t",
    "the",
    "##n",
]
TEXTS = [
    f"the letter {a}{b} and the letters {b}{a}\n{a * 3} is not {b * 2}." * 3
    for a in "abcdefgh"
    for b in "ijklmnop"
]


def word_pieces(folder, pieces=PIECES, **how):
    path = folder / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return WordPieceVocabulary(str(path), **how)


@pytest.fixture(scope="module")
def sentence_pieces(tmp_path_factory):
    path = tmp_path_factory.mktemp("pieces") / "text.model"
    path.write_bytes(train_sentence_pieces(TEXTS, 44))
    return SentencePieceVocabulary(str(path), extra_ids=10)


@pytest.mark.parametrize(
    "text", ["", "plain", "Zürich 中文 \N{GRINNING FACE}\n", "\0a"]
)
def test_bytes_are_encoded_and_decoded(text):
    vocabulary = ByteVocabulary(extra_ids=5)
    ids = vocabulary.encode(text)
    assert ids.dtype == np.int32 and vocabulary.size == 264
    assert ids.tolist() == [byte + 3 for byte in text.encode()]
    sentinel = 263
    ignored = [sentinel, vocabulary.unk_id, vocabulary.eos_id, 70, 0]
    assert vocabulary.decode(np.array([*ids.tolist(), *ignored])) == text


def test_raw_bytes_are_the_corpus():
    assert RawBytes().encode("ab").tolist() == [97, 98] and RawBytes().size == 256
    assert RawBytes().decode(np.array([97, 98, 0, 99])) == "ab"


def test_sentinels_come_from_the_end_and_run_out():
    vocabulary = ByteVocabulary(extra_ids=2)
    assert [vocabulary.sentinel(k) for k in range(2)] == [260, 259]
    with pytest.raises(
        VocabularyError, match=r"2 sentinels.*sentinel 2(?s:.*)extra_ids"
    ):
        vocabulary.sentinel(2)
    with pytest.raises(VocabularyError, match="at least 0"):
        ByteVocabulary(extra_ids=-1)


@pytest.mark.parametrize(
    "text, pieces",
    [
        ("unaffable", "un ##aff ##able"),
        ("UNAFFABLE", "un ##aff ##able"),
        ("Hélló,hello!!", "hello , hello ! !"),
        ("hello中hello", "hello 中 hello"),
        ("don't", "don ' t"),
        ("unx the", "[UNK] the"),
        ("unaffn", "un ##aff ##n"),
        (
            "un\u00adaffable\t\nhe\u200bllo\0",
            "un ##aff ##able hello",
        ),  # control characters go
        ("[MASK]", "[UNK] [UNK] [UNK]"),
        ("un" + "aff" * 70, "[UNK]"),
        ("", ""),
    ],
)
def test_word_pieces_follow_the_rules_of_bert(tmp_path, text, pieces):
    vocabulary = word_pieces(tmp_path)
    assert " ".join(PIECES[i] for i in vocabulary.encode(text)) == pieces


def test_word_pieces_with_case_keep_accents(tmp_path):
    vocabulary = word_pieces(tmp_path, lower_case=False)
    assert [PIECES[i] for i in vocabulary.encode("hello Hello héllo")] == [
        "hello",
        *["[UNK]"] * 2,
    ]


def test_places_are_those_of_the_text_as_it_was(tmp_path):
    text = "  Héllo, unAFFable"
    ids, places = word_pieces(tmp_path).encode_with_offsets(text)
    assert [text[a:b] for a, b in places] == ["Héllo", ",", "un", "AFF", "able"]
    assert len(ids) == 5 and places.dtype == np.int32


def test_word_pieces_decode_and_know_the_beginnings_of_words(tmp_path):
    vocabulary = word_pieces(tmp_path)
    ids = np.array([2, 5, 6, 7, 9, 8, 3, 8, 0])
    assert vocabulary.decode(ids) == "unaffable , hello"
    assert vocabulary.starts_word(ids).tolist() == [
        True,
        True,
        False,
        False,
        *[True] * 5,
    ]
    assert (
        not set(vocabulary.ordinary_ids) & {0, 1, 2, 3, 4}
        and len(vocabulary.ordinary_ids) == 12
    )


@pytest.mark.parametrize(
    "pieces, message",
    [
        (PIECES[1:], r"lacks \[PAD\]"),
        ([*PIECES, "the"], r":18: the piece 'the' is on line 16"),
        (["a", *PIECES], r":1: the first piece must be \[PAD\]"),
    ],
)
def test_errors_of_vocabularies(tmp_path, pieces, message):
    with pytest.raises(VocabularyError, match=message):
        word_pieces(tmp_path, pieces)


def test_a_missing_vocabulary_names_the_command(tmp_path):
    with pytest.raises(
        VocabularyError, match=r"(?s)no_such.*python -m transformer.train_vocabulary"
    ):
        WordPieceVocabulary(str(tmp_path / "no_such.txt"))
    with pytest.raises(VocabularyError, match=r"(?s)no_such.*--kind=sentencepiece"):
        SentencePieceVocabulary(str(tmp_path / "no_such.model"))
    (tmp_path / "bad.model").write_bytes(b"nothing of the kind")
    with pytest.raises(VocabularyError, match="bad.model cannot be read"):
        SentencePieceVocabulary(str(tmp_path / "bad.model"))


def test_trained_word_pieces_are_the_same_every_time_and_read_all_texts(tmp_path):
    made = train_word_pieces(TEXTS, 120)
    assert made == train_word_pieces(TEXTS, 120)
    assert made[:5] == PIECES[:5] and 60 < len(made) <= 120 and "letter" in made
    vocabulary = word_pieces(tmp_path, made)
    for text in TEXTS:
        ids = vocabulary.encode(text)
        assert vocabulary.unk_id not in ids
        assert vocabulary.decode(ids).replace(" ", "") == "".join(text.split())


def test_the_most_frequent_letters_are_taken(tmp_path):
    vocabulary = word_pieces(tmp_path, train_word_pieces(["aaa bbb c"], 30, letters=2))
    assert vocabulary.encode("c").tolist() == [vocabulary.unk_id]
    assert vocabulary.unk_id not in vocabulary.encode("ab ba")


def test_too_few_pieces_are_refused():
    with pytest.raises(VocabularyError, match="10 pieces are too few"):
        train_word_pieces(TEXTS, 10)
    with pytest.raises(VocabularyError, match="SentencePiece cannot train 5 pieces"):
        train_sentence_pieces(TEXTS, 5)


def test_sentence_pieces_are_encoded_and_decoded(sentence_pieces):
    ids = sentence_pieces.encode("the letter ai")
    assert sentence_pieces.decode(np.append(ids, [53, 1, 5])) == "the letter ai"
    assert (sentence_pieces.size, sentence_pieces.eos_id, sentence_pieces.unk_id) == (
        54,
        1,
        2,
    )
    assert sentence_pieces.sentinel(0) == 53 and ids.max() < 44
    assert sentence_pieces.encode("Я")[-1] == sentence_pieces.unk_id


def test_fingerprints_differ_where_ids_mean_something_else(tmp_path, sentence_pieces):
    seen = [
        word_pieces(tmp_path),
        word_pieces(tmp_path, lower_case=False),
        word_pieces(tmp_path, [*PIECES, "more"]),
        ByteVocabulary(),
        ByteVocabulary(1),
        RawBytes(),
        sentence_pieces,
        SentencePieceVocabulary(sentence_pieces.path, extra_ids=11),
    ]
    assert len({vocabulary.fingerprint() for vocabulary in seen}) == len(seen)


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(
        VocabularyError,
        match=r"tokenizers is not installed(?s:.*)pip install tokenizers",
    ):
        word_pieces(tmp_path)


def pieces_of(tmp_path, text, **settings):
    """Returns the word pieces of a text."""
    path = tmp_path / "vocab.txt"
    words = [
        *SPECIALS,
        "e",
        "cafe",
        "caf\u00e9",
        "Cafe",
        "Caf\u00e9",
        "\u4e2d",
        "##\u6587",
    ]
    path.write_text("\n".join(words) + "\n", encoding="utf-8")
    vocabulary = WordPieceVocabulary(str(path), **settings)
    return [vocabulary.pieces[token] for token in vocabulary.encode(text)]


@pytest.mark.parametrize(
    "settings, pieces",
    [
        ({}, ["cafe", "\u4e2d", "[UNK]"]),
        ({"strip_accents": False}, ["caf\u00e9", "\u4e2d", "[UNK]"]),
        ({"lower_case": False}, ["Caf\u00e9", "\u4e2d", "[UNK]"]),
        ({"lower_case": False, "strip_accents": True}, ["Cafe", "\u4e2d", "[UNK]"]),
        ({"split_chinese": False}, ["cafe", "\u4e2d", "##\u6587"]),
    ],
)
def test_accents_and_chinese_characters(settings, pieces, tmp_path):
    assert pieces_of(tmp_path, "Caf\u00e9 \u4e2d\u6587", **settings) == pieces


def test_only_settings_that_matter_are_in_a_fingerprint(tmp_path):
    pieces_of(tmp_path, "")

    def fingerprint(**settings):
        path = str(tmp_path / "vocab.txt")
        return WordPieceVocabulary(path, **settings).fingerprint()

    assert fingerprint() == fingerprint(strip_accents=True, split_chinese=True)
    others = [
        {},
        {"lower_case": False},
        {"strip_accents": False},
        {"split_chinese": False},
        {"lower_case": False, "strip_accents": True},
    ]
    assert len({fingerprint(**settings) for settings in others}) == len(others)


def test_characters_for_private_use_are_unknown(tmp_path):
    assert pieces_of(tmp_path, "e \ue000 e") == ["e", "[UNK]", "e"]
    assert pieces_of(tmp_path, "\U000f0001\U0010fffd") == ["[UNK]"]
    # Control and format characters are removed, as is the replacement character.
    assert pieces_of(tmp_path, "e\x00 \u200be\ufffd \x85e\te\r\ne") == ["e"] * 5
