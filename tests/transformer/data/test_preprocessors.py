"""Preprocessors: nothing is lost, lengths are those that were promised, a seed says it
all.
"""

from __future__ import annotations

import numpy as np
import pytest

from transformer.data import (
    ByteVocabulary,
    DataError,
    WordPieceVocabulary,
    preprocessors,
)
from transformer.data.preprocessors import (
    corrupt_spans,
    mask_tokens,
    noise_mask,
    span_lengths,
)

BYTES = ByteVocabulary()
TOKENS = np.arange(3, 253)


def uncorrupted(made):
    """Returns the tokens, put together again from inputs and targets."""

    def parts(ids):
        ids = ids[:-1]
        starts = np.flatnonzero(ids >= BYTES.size - BYTES.sentinels)
        return {
            int(part[0]): part[1:]
            for part in np.split(ids, starts)
            if len(part) and part[0] >= BYTES.size - BYTES.sentinels
        }, ids[: starts[0]]

    kept, first = parts(made["inputs"])
    gone, before = parts(made["targets"])
    assert list(kept) == list(gone) and not len(before)
    return np.concatenate([first, *(x for s in kept for x in (gone[s], kept[s]))])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("length", [2, 3, 7, 20, 250])
def test_spans_and_the_rest_make_the_text(length, seed):
    made = corrupt_spans(
        {"targets": TOKENS[:length], "other": 1}, (seed,), vocabulary=BYTES
    )
    assert np.array_equal(uncorrupted(made), TOKENS[:length]) and made["other"] == 1
    assert made["inputs"][-1] == made["targets"][-1] == BYTES.eos_id
    sentinels = made["targets"][made["targets"] >= BYTES.size - 100]
    assert sentinels.tolist() == [BYTES.sentinel(k) for k in range(len(sentinels))]


@pytest.mark.parametrize("inputs, expected", [(512, (568, 114)), (114, (126, 26))])
def test_lengths_are_those_of_t5(inputs, expected):
    assert span_lengths(inputs) == expected


@pytest.mark.parametrize(
    "density, mean", [(0.15, 3.0), (0.5, 3.0), (0.15, 1.0), (0.3, 8.0)]
)
@pytest.mark.parametrize("inputs", [4, 10, 63, 200])
def test_what_is_promised_fits_and_one_more_does_not(inputs, density, mean):
    length, targets = span_lengths(inputs, density, mean)

    def made(number):
        return corrupt_spans(
            {"targets": np.full(number, 9)},
            (1,),
            noise_density=density,
            mean_span=mean,
            vocabulary=ByteVocabulary(extra_ids=300),
        )

    assert len(made(length)["inputs"]) <= inputs < len(made(length + 1)["inputs"])
    assert len(made(length)["targets"]) == targets


def test_noise_is_as_much_as_asked_for_in_spans_of_that_mean_anywhere():
    masks = np.array([noise_mask(100, (7, k)) for k in range(400)])
    assert (masks.sum(1) == 15).all() and not masks[:, 0].any() and masks[:, -1].all()
    spans = (masks[:, 1:] & ~masks[:, :-1]).sum(1)
    assert (spans == 5).all()
    middle = masks[:, 20:80].mean(0)
    assert 0.06 < middle.min() and middle.max() < 0.24, (middle.min(), middle.max())


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: span_lengths(2), "2 inputs are too few"),
        (lambda: noise_mask(10, (0,), noise_density=1.0), "between 0 and 1"),
        (
            lambda: corrupt_spans(
                {"targets": TOKENS}, (0,), vocabulary=ByteVocabulary(3)
            ),
            "has 3 sentinels",
        ),
    ],
)
def test_what_cannot_be_corrupted_is_told(call, message):
    with pytest.raises(DataError, match=message):
        call()


PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghij",
    "##x",
    "##y",
    "##z",
]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    path.write_text("\n".join(PIECES), encoding="utf-8")
    return WordPieceVocabulary(str(path))


def bert_row(number=100, seed=0):
    ids = np.random.default_rng(seed).integers(5, len(PIECES), number)
    return {"tokens": np.concatenate([[2], ids, [3], ids[:9], [3]])}


@pytest.mark.parametrize("whole_words", [False, True])
def test_masking_keeps_what_it_hides(words, whole_words):
    row = bert_row()
    made = mask_tokens(
        row, (1, 2), vocabulary=words, predictions=40, whole_words=whole_words
    )
    at, ids = made["masked_positions"], made["masked_ids"]
    assert len(at) == len(ids) == round(109 * 0.15) and (np.diff(at) > 0).all()
    restored = made["tokens"].copy()
    restored[at] = ids
    assert np.array_equal(restored, row["tokens"]) and not np.isin(ids, [0, 2, 3]).any()


def test_fates_are_eight_one_one(words):
    made = [
        mask_tokens(
            bert_row(seed=k), (3, k), vocabulary=words, predictions=99, rate=0.5
        )
        for k in range(100)
    ]
    now = np.concatenate([m["tokens"][m["masked_positions"]] for m in made])
    was = np.concatenate([m["masked_ids"] for m in made])
    masked, same = np.mean(now == words.mask_id), np.mean(now == was)
    by_chance = 0.1 / len(words.ordinary_ids)
    assert abs(masked - 0.8) < 0.025 and abs(same - 0.1 - by_chance) < 0.02
    assert set(now) <= {words.mask_id, *words.ordinary_ids.tolist()}


def test_whole_words_are_hidden_whole(words):
    row = bert_row(400)
    made = mask_tokens(row, (5,), vocabulary=words, predictions=80, whole_words=True)
    chosen = set(made["masked_positions"].tolist())
    for k in range(1, 400):
        if not words.starts_word(row["tokens"][k + 1 : k + 2])[0] and row["tokens"][
            k
        ] not in (2, 3):
            assert (k in chosen) == (k + 1 in chosen), k


def test_predictions_are_no_more_than_fit_and_one_at_least(words):
    assert (
        len(
            mask_tokens(bert_row(), (0,), vocabulary=words, predictions=4)["masked_ids"]
        )
        == 4
    )
    short = mask_tokens(
        {"tokens": np.array([2, 7, 3])}, (0,), vocabulary=words, predictions=4
    )
    assert short["masked_ids"].tolist() == [7]
    nothing = mask_tokens(
        {"tokens": np.array([2, 3])}, (0,), vocabulary=words, predictions=4
    )
    assert not len(nothing["masked_ids"])


def test_a_prefix_ends_anywhere_and_nothing_is_lost():
    places = set()
    for k in range(200):
        made = preprocessors.split_prefix({"targets": TOKENS[:5]}, (k,))
        assert np.array_equal(
            np.concatenate([made["inputs"], made["targets"]]), TOKENS[:5]
        )
        places.add(len(made["inputs"]))
    assert places == {1, 2, 3, 4}
    with pytest.raises(DataError, match="1 tokens cannot be split"):
        preprocessors.split_prefix({"targets": TOKENS[:1]}, (0,))


def test_texts_become_tokens_labels_numbers_and_long_ones_lose_their_end(words):
    example = {"question": "a b", "label": "yes", "n": 3}
    made = preprocessors.tokenize(
        example, (), vocabulary=words, fields={"question": "inputs"}
    )
    made = preprocessors.label(made, (), classes=["no", "yes"])
    assert (
        made["inputs"].tolist() == [5, 6, 3] and made["labels"] == 1 and made["n"] == 3
    )
    assert preprocessors.trim(made, (), lengths={"inputs": 2})["inputs"].tolist() == [
        5,
        6,
    ]
    for call, message in (
        (
            lambda: preprocessors.tokenize(
                example, (), vocabulary=words, fields={"n": "x"}
            ),
            "no text",
        ),
        (
            lambda: preprocessors.tokenize(
                example, (), vocabulary=words, fields={"m": "x"}
            ),
            "has no 'm', but 'question'",
        ),
        (lambda: preprocessors.label(example, (), classes=["no"]), "'yes' is none of"),
    ):
        with pytest.raises(DataError, match=message):
            call()


@pytest.mark.parametrize(
    "second, length, tokens, types",
    [
        ("y", 9, "[CLS] a b c d [SEP] e f [SEP]", [0] * 6 + [1] * 3),
        ("y", 7, "[CLS] a b [SEP] e f [SEP]", [0] * 4 + [1] * 3),
        ("y", 6, "[CLS] a [SEP] e f [SEP]", [0] * 3 + [1] * 3),
        (None, 4, "[CLS] a b [SEP]", [0] * 4),
    ],
)
def test_a_pair_has_room_for_both(words, second, length, tokens, types):
    made = preprocessors.pair(
        {"x": "a b c d", "y": "e f", "label": 1},
        (),
        vocabulary=words,
        bos_id=words.bos_id,
        first_field="x",
        second_field=second,
        length=length,
    )
    assert " ".join(PIECES[i] for i in made["tokens"]) == tokens
    assert made["token_types"].tolist() == types and made["label"] == 1


def documents(number=30):
    draw = np.random.default_rng(0)
    return [
        {
            "text": "\n".join(
                " ".join(draw.choice(list("abcdefghij"), draw.integers(1, 6)))
                for _ in range(draw.integers(0, 20))
            )
        }
        for _ in range(number)
    ]


def test_sentence_pairs_go_on_or_come_from_elsewhere(words):
    texts = documents()
    rows = list(preprocessors.SentencePairs(words, 24)(texts, (4,)))
    again = list(preprocessors.SentencePairs(words, 24)(texts, (4,)))
    joined = [" ".join(doc["text"].split()) for doc in texts]
    labels = []
    for row, same in zip(rows, again, strict=True):
        assert all(np.array_equal(row[name], same[name]) for name in row)
        tokens, types = row["tokens"], row["token_types"]
        assert (
            len(tokens) <= 24
            and tokens[0] == 2
            and tokens[-1] == 3
            and (tokens == 3).sum() == 2
        )
        first, second = (
            [PIECES[i] for i in tokens[types == k] if i > 3] for k in (0, 1)
        )
        assert first and second
        follows = any(" ".join(first + second) in doc for doc in joined)
        if not row["next_sentence_labels"] and len(tokens) < 24:
            assert follows
        labels.append(int(row["next_sentence_labels"]))
    assert len(rows) > 50 and 0.4 < np.mean(labels) < 0.7, np.mean(labels)


def test_pairs_need_two_documents(words):
    with pytest.raises(DataError, match="two documents"):
        list(preprocessors.SentencePairs(words, 24)(documents(1), (0,)))
