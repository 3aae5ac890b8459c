"""Metrics of generated answers: exact match, and F1 of words.

    exact("the Tower", ["A tower."])        # 1.0: lower case, no articles, no punctuation
    f1("a big tower", ["the tower"])        # 0.667
    compare(trained, number=64, batch_size=8)    # {"exact_match": 0.12, "f1": 0.43}

Texts are compared as by SQuAD (Rajpurkar et al., 2016, arXiv 1606.05250, section 6.1):
the best score over all answers counts.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transformer.data import DataError, Vocabulary
from transformer.inference.text_generation import decoder_of
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.training.load_trained import Trained

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normal(text: str) -> str:
    """Returns a text in lower case, without punctuation and articles, with single
    spaces.

    >>> normal("The  Eiffel-Tower, a tower.")
    'eiffeltower tower'
    """
    text = text.lower()
    text = text.translate(_NO_PUNCTUATION)
    text = _ARTICLES.sub(" ", text)
    return " ".join(text.split())


def exact(text: str, answers: Sequence[str]) -> float:
    """Returns 1.0 if a text equals one of the answers after `normal`, else 0.0."""
    text = normal(text)
    answers = _nonempty(answers)
    is_equal = any(text == normal(answer) for answer in answers)
    return float(is_equal)


def f1(text: str, answers: Sequence[str]) -> float:
    """Returns the highest F1 of a text's words and those of an answer."""
    words = normal(text).split()
    scores = []
    for answer in _nonempty(answers):
        answer_words = normal(answer).split()
        scores.append(_f1(words, answer_words))
    return max(scores)


def compare(trained: Trained, number: int | None, batch_size: int) -> dict[str, float]:
    """Returns the mean exact match and F1 of an encoder-decoder's outputs for held-out
    inputs, by greedy decoding.

    Args:
      trained: the model, and the data whose held-out examples are used.
      number: how many examples, evenly spaced; None: all.
      batch_size: how many examples are processed at a time.

    Raises:
      DataError: the model has no inputs, or examples are packed.
    """
    features = trained.data.features(batch_size)
    if not isinstance(trained.model, EncoderDecoder) or "segments" in features:
        raise DataError(
            f"{type(trained.model).__name__} on such data writes no answers to "
            "inputs.\n"
            "  Take an encoder-decoder, on examples of one text each."
        )
    decoder = decoder_of(
        trained,
        number=features["targets"].shape[1],
        prompt_length=features["inputs"].shape[1],
        batch_size=batch_size,
    )
    scores: list[tuple[float, float]] = []
    vocabulary = trained.data.vocabulary
    for batch in trained.data.held_out(batch_size, number):
        inputs, targets = zip(*_texts(batch, vocabulary))
        outputs = decoder(inputs)
        for output, target in zip(outputs, targets):
            ids = np.array(output.ids, np.int32)
            text = vocabulary.decode(ids)
            scores.append((exact(text, [target]), f1(text, [target])))
    exact_match, mean_f1 = np.mean(scores, axis=0)
    return {"exact_match": float(exact_match), "f1": float(mean_f1)}


def _texts(
    batch: dict[str, Any], vocabulary: Vocabulary
) -> Iterator[tuple[list[int], str]]:
    """Yields the ids of each input, without padding, and the text of its target."""
    inputs = np.asarray(batch["inputs"])
    targets = np.asarray(batch["targets"])
    counts = np.asarray(batch["counts"])
    for ids, target, count in zip(inputs, targets, counts):
        if not count:  # the example pads the last batch
            continue
        last = np.flatnonzero(ids)[-1]
        input_ids = ids[: last + 1].tolist()
        text = vocabulary.decode(target)
        yield input_ids, text


def _nonempty(answers: Sequence[str]) -> Sequence[str]:
    """Returns the answers that `normal` does not make empty; if there are none, one empty
    answer.
    """
    nonempty = [answer for answer in answers if normal(answer)]
    return nonempty or [""]


def _f1(words: list[str], answer_words: list[str]) -> float:
    """Returns the harmonic mean of precision and recall of words."""
    if not words or not answer_words:
        return float(words == answer_words)
    common = collections.Counter(words) & collections.Counter(answer_words)
    num_common = sum(common.values())
    if not num_common:
        return 0.0
    precision = num_common / len(words)
    recall = num_common / len(answer_words)
    return 2 * precision * recall / (precision + recall)
