"""Preprocessors: no token is lost, lengths are as computed in advance, results depend on
the seed only.
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


def restore(example):
    """Returns the original tokens of an example with corrupted spans."""

    def spans(ids):
        """Returns the tokens after each sentinel, and those before the first."""
        ids = ids[:-1]
        first_sentinel = BYTES.size - BYTES.sentinels
        starts = np.flatnonzero(ids >= first_sentinel)
        sections = np.split(ids, starts)
        return {int(x[0]): x[1:] for x in sections[1:]}, sections[0]

    text, start = spans(example["inputs"])
    noise, before = spans(example["targets"])
    assert list(text) == list(noise) and not len(before)
    return np.concatenate([start, *(x for s in text for x in (noise[s], text[s]))])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("length", [2, 3, 7, 20, 250])
def test_inputs_and_targets_have_all_tokens(length, seed):
    example = corrupt_spans(
        {"targets": TOKENS[:length], "other": 1}, (seed,), vocabulary=BYTES
    )
    assert np.array_equal(restore(example), TOKENS[:length]) and example["other"] == 1
    assert example["inputs"][-1] == example["targets"][-1] == BYTES.eos_id
    targets = example["targets"]
    sentinels = targets[targets >= BYTES.size - 100]
    assert sentinels.tolist() == [BYTES.sentinel(k) for k in range(len(sentinels))]


@pytest.mark.parametrize("inputs, expected", [(512, (568, 114)), (114, (126, 26))])
def test_lengths_are_those_of_t5(inputs, expected):
    assert span_lengths(inputs) == expected


@pytest.mark.parametrize(
    "density, mean", [(0.15, 3.0), (0.5, 3.0), (0.15, 1.0), (0.3, 8.0)]
)
@pytest.mark.parametrize("inputs", [4, 10, 63, 200])
def test_span_lengths_are_the_longest_that_fit(inputs, density, mean):
    length, targets = span_lengths(inputs, density, mean)

    def corrupt(length):
        return corrupt_spans(
            {"targets": np.full(length, 9)},
            (1,),
            noise_density=density,
            mean_span=mean,
            vocabulary=ByteVocabulary(extra_ids=300),
        )

    assert len(corrupt(length)["inputs"]) <= inputs < len(corrupt(length + 1)["inputs"])
    assert len(corrupt(length)["targets"]) == targets


def test_noise_masks_have_the_density_and_mean_span():
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
def test_errors_of_span_corruption(call, message):
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


def bert_example(length=100, seed=0):
    ids = np.random.default_rng(seed).integers(5, len(PIECES), length)
    return {"tokens": np.concatenate([[2], ids, [3], ids[:9], [3]])}


@pytest.mark.parametrize("whole_words", [False, True])
def test_masked_ids_are_the_original_tokens(words, whole_words):
    example = bert_example()
    masked = mask_tokens(
        example, (1, 2), vocabulary=words, predictions=40, whole_words=whole_words
    )
    positions = masked["masked_positions"]
    ids = masked["masked_ids"]
    assert len(positions) == len(ids) == round(109 * 0.15)
    assert (np.diff(positions) > 0).all()
    restored = masked["tokens"].copy()
    restored[positions] = ids
    assert np.array_equal(restored, example["tokens"])
    assert not np.isin(ids, [0, 2, 3]).any()


def test_80_10_10_percent_are_masked_random_unchanged(words):
    examples = [
        mask_tokens(
            bert_example(seed=k), (3, k), vocabulary=words, predictions=99, rate=0.5
        )
        for k in range(100)
    ]
    replacements = np.concatenate(
        [e["tokens"][e["masked_positions"]] for e in examples]
    )
    originals = np.concatenate([e["masked_ids"] for e in examples])
    masked = np.mean(replacements == words.mask_id)
    unchanged = np.mean(replacements == originals)
    by_chance = 0.1 / len(words.ordinary_ids)
    assert abs(masked - 0.8) < 0.025 and abs(unchanged - 0.1 - by_chance) < 0.02
    assert set(replacements) <= {words.mask_id, *words.ordinary_ids.tolist()}


def test_all_tokens_of_a_word_are_masked(words):
    example = bert_example(400)
    masked = mask_tokens(
        example, (5,), vocabulary=words, predictions=80, whole_words=True
    )
    selected = set(masked["masked_positions"].tolist())
    tokens = example["tokens"]
    for k in range(1, 400):
        continues_word = not words.starts_word(tokens[k + 1 : k + 2])[0]
        if continues_word and tokens[k] not in (2, 3):
            assert (k in selected) == (k + 1 in selected), k


def test_the_count_of_predictions_has_a_maximum_and_is_at_least_one(words):
    assert (
        len(
            mask_tokens(bert_example(), (0,), vocabulary=words, predictions=4)[
                "masked_ids"
            ]
        )
        == 4
    )
    short = mask_tokens(
        {"tokens": np.array([2, 7, 3])}, (0,), vocabulary=words, predictions=4
    )
    assert short["masked_ids"].tolist() == [7]
    empty = mask_tokens(
        {"tokens": np.array([2, 3])}, (0,), vocabulary=words, predictions=4
    )
    assert not len(empty["masked_ids"])


def test_a_prefix_ends_anywhere_and_no_token_is_lost():
    prefix_lengths = set()
    for k in range(200):
        example = preprocessors.split_prefix({"targets": TOKENS[:5]}, (k,))
        assert np.array_equal(
            np.concatenate([example["inputs"], example["targets"]]), TOKENS[:5]
        )
        prefix_lengths.add(len(example["inputs"]))
    assert prefix_lengths == {1, 2, 3, 4}
    with pytest.raises(DataError, match="1 tokens cannot be split"):
        preprocessors.split_prefix({"targets": TOKENS[:1]}, (0,))


def test_tokenize_label_and_trim(words):
    example = {"question": "a b", "label": "yes", "n": 3}
    processed = preprocessors.tokenize(
        example, (), vocabulary=words, fields={"question": "inputs"}
    )
    processed = preprocessors.label(processed, (), classes=["no", "yes"])
    assert processed["inputs"].tolist() == [5, 6, 3]
    assert processed["labels"] == 1 and processed["n"] == 3
    trimmed = preprocessors.trim(processed, (), lengths={"inputs": 2})
    assert trimmed["inputs"].tolist() == [5, 6]
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
def test_the_longer_text_of_a_pair_is_truncated(words, second, length, tokens, types):
    example = preprocessors.pair(
        {"x": "a b c d", "y": "e f", "label": 1},
        (),
        vocabulary=words,
        bos_id=words.bos_id,
        first_field="x",
        second_field=second,
        length=length,
    )
    assert " ".join(PIECES[i] for i in example["tokens"]) == tokens
    assert example["token_types"].tolist() == types and example["label"] == 1


def documents(count=30):
    draw = np.random.default_rng(0)
    return [
        {
            "text": "\n".join(
                " ".join(draw.choice(list("abcdefghij"), draw.integers(1, 6)))
                for _ in range(draw.integers(0, 20))
            )
        }
        for _ in range(count)
    ]


def test_second_sentences_follow_or_are_random(words):
    texts = documents()
    examples = list(preprocessors.SentencePairs(words, 24)(texts, (4,)))
    repeated = list(preprocessors.SentencePairs(words, 24)(texts, (4,)))
    joined = [" ".join(doc["text"].split()) for doc in texts]
    labels = []
    for example, same in zip(examples, repeated, strict=True):
        assert all(np.array_equal(example[name], same[name]) for name in example)
        tokens = example["tokens"]
        types = example["token_types"]
        assert (
            len(tokens) <= 24
            and tokens[0] == 2
            and tokens[-1] == 3
            and (tokens == 3).sum() == 2
        )
        first_text, second_text = (
            [PIECES[i] for i in tokens[types == k] if i > 3] for k in (0, 1)
        )
        assert first_text and second_text
        follows = any(" ".join(first_text + second_text) in doc for doc in joined)
        if not example["next_sentence_labels"] and len(tokens) < 24:
            assert follows
        labels.append(int(example["next_sentence_labels"]))
    assert len(examples) > 50 and 0.4 < np.mean(labels) < 0.7, np.mean(labels)


def test_pairs_need_two_documents(words):
    with pytest.raises(DataError, match="two documents"):
        list(preprocessors.SentencePairs(words, 24)(documents(1), (0,)))
