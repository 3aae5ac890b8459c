"""How near what was written is to what was wanted: exact matches, and F1 of words.

    exact("the Tower", ["A tower."])        # 1.0: small letters, no articles, no punctuation
    f1("a big tower", ["the tower"])        # 0.667
    compare(trained, num_examples=64, batch_size=8)    # {"exact_match": 0.12, "f1": 0.43}

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
    """Returns a text in small letters, without punctuation and articles, with single
    spaces.

    >>> normal("The  Eiffel-Tower, a tower.")
    'eiffeltower tower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact(text: str, answers: Sequence[str]) -> float:
    """Returns 1.0 if a text is one of the answers, but for what `normal` leaves out;
    else 0.0.
    """
    return float(any(normal(text) == normal(answer) for answer in _told(answers)))


def f1(text: str, answers: Sequence[str]) -> float:
    """Returns the highest F1 of a text's words and those of an answer."""
    return max(
        _f1(normal(text).split(), normal(answer).split()) for answer in _told(answers)
    )


def compare(
    trained: Trained, num_examples: int | None, batch_size: int
) -> dict[str, float]:
    """Returns how near what an encoder-decoder writes to held-out inputs is to their
    targets.

    It takes the likeliest token each time.

    Args:
      trained: the model, and the data whose examples are taken.
      num_examples: how many, evenly spaced; None: all.
      batch_size: examples at a time.

    Raises:
      DataError: the model reads no inputs, or rows hold several texts.
    """
    features = trained.data.features(batch_size)
    if not isinstance(trained.model, EncoderDecoder) or "segments" in features:
        raise DataError(
            f"{type(trained.model).__name__} on such data writes no answers to "
            "inputs.\n"
            "  Take an encoder-decoder, on rows of one text each."
        )
    decoder = decoder_of(
        trained,
        max_new_tokens=features["targets"].shape[1],
        prompt_length=features["inputs"].shape[1],
        batch_size=batch_size,
    )
    scores: list[tuple[float, float]] = []
    for rows in trained.data.held_out(batch_size, num_examples):
        inputs, wanted = zip(*_texts(rows, trained.data.vocabulary))
        for written, answer in zip(decoder([*inputs]), wanted):
            text = trained.data.vocabulary.decode(np.array(written.ids, np.int32))
            scores.append((exact(text, [answer]), f1(text, [answer])))
    return dict(zip(("exact_match", "f1"), (float(x) for x in np.mean(scores, axis=0))))


def _texts(
    rows: dict[str, Any], vocabulary: Vocabulary
) -> Iterator[tuple[list[int], str]]:
    """Yields the ids of each input, without padding, and the text of its target."""
    arrays = {name: np.asarray(rows[name]) for name in ("inputs", "targets", "counts")}
    for ids, target, there in zip(*arrays.values()):
        if there:
            yield ids[: np.flatnonzero(ids)[-1] + 1].tolist(), vocabulary.decode(target)


def _told(answers: Sequence[str]) -> Sequence[str]:
    """Returns the answers of which something is left; if there are none, an
    empty one.
    """
    return [answer for answer in answers if normal(answer)] or [""]


def _f1(words: list[str], others: list[str]) -> float:
    if not words or not others:
        return float(words == others)
    same = sum((collections.Counter(words) & collections.Counter(others)).values())
    precision, recall = same / len(words), same / len(others)
    return 2 * precision * recall / (precision + recall) if same else 0.0
