"""Exact match and F1 of generated answers, as SQuAD defines them.

    exact_match("the Tower", ["A tower."])     # 1.0: case, articles, punctuation are ignored
    f1("a big tower", ["the tower"])           # 0.667
    evaluate_answers(trained, num_examples=64, batch_size=8)   # {"exact_match": 0.12, "f1": 0.43}

If a question has several correct answers, the score is the best over these (Rajpurkar et
al., 2016, arXiv 1606.05250, section 6.1).
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transformer.data import DataError, Vocabulary
from transformer.inference.text_generation import make_decoder
from transformer.inference.trained_model import TrainedModel
from transformer.models.encoder_decoder import EncoderDecoder

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Returns a text in lower case, without punctuation and articles, with single spaces.

    >>> normalize_answer("The  Eiffel-Tower, a tower.")
    'eiffeltower tower'
    """
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(text: str, answers: Sequence[str]) -> float:
    """Returns 1.0 if a text equals one of the answers, all normalized; else 0.0."""
    return float(normalize_answer(text) in _normalized_answers(answers))


def f1(text: str, answers: Sequence[str]) -> float:
    """Returns the F1 of the words of a text with the words of an answer, normalized; the
    highest over all answers.
    """
    words = normalize_answer(text).split()
    return max(_f1(words, answer.split()) for answer in _normalized_answers(answers))


def evaluate_answers(
    trained: TrainedModel, num_examples: int | None, batch_size: int
) -> dict[str, float]:
    """Returns the means of exact match and F1 over held-out examples.

    The answers are what an encoder-decoder generates from `inputs` by greedy decoding; they
    are compared with `targets`.

    Args:
      trained: the model, and the data with the held-out examples.
      num_examples: the count of examples, evenly spaced; None: all.
      batch_size: the count of examples of a batch.

    Raises:
      DataError: the model has no encoder, or the data are packed: an example has several
        texts.
    """
    features = trained.data.features(batch_size)
    vocabulary = trained.data.vocabulary
    if not isinstance(trained.model, EncoderDecoder) or "segments" in features:
        raise DataError(
            f"{type(trained.model).__name__} does not generate answers to inputs on "
            "these data.\n"
            "  Use an encoder-decoder, and data whose examples are not packed."
        )
    decoder = make_decoder(
        trained,
        max_new_tokens=features["targets"].shape[1],
        max_prompt_length=features["inputs"].shape[1],
        batch_size=batch_size,
    )
    exact_matches: list[float] = []
    f1_scores: list[float] = []
    for batch in trained.data.held_out(batch_size, num_examples):
        inputs, answers = zip(*_inputs_and_answers(batch, vocabulary))
        completions = decoder(list(inputs))
        for completion, answer in zip(completions, answers):
            text = vocabulary.decode(np.array(completion.ids, np.int32))
            exact_matches.append(exact_match(text, [answer]))
            f1_scores.append(f1(text, [answer]))
    return {
        "exact_match": float(np.mean(exact_matches)),
        "f1": float(np.mean(f1_scores)),
    }


def _inputs_and_answers(
    batch: dict[str, Any], vocabulary: Vocabulary
) -> Iterator[tuple[list[int], str]]:
    """Yields the ids of each input, without padding, and the text of its target.

    Args:
      batch: `inputs` [batch, inputs_length], `targets` [batch, length], `counts` [batch]:
        see `Data.held_out`.
      vocabulary: decodes targets.
    """
    all_inputs = np.asarray(batch["inputs"])
    all_targets = np.asarray(batch["targets"])
    # 1 for an example, 0 for the padding of the last batch.
    counts = np.asarray(batch["counts"])
    for inputs, targets, count in zip(all_inputs, all_targets, counts):
        if count:
            # Padding, the id 0, follows the last id of an input. The padding of targets
            # needs no removal: `decode` stops at the first end id, and omits padding.
            length = np.flatnonzero(inputs)[-1] + 1
            yield inputs[:length].tolist(), vocabulary.decode(targets)


def _normalized_answers(answers: Sequence[str]) -> Sequence[str]:
    """Returns the normalized answers that are not empty; if all are empty, [""]."""
    normalized = [normalize_answer(answer) for answer in answers]
    return [text for text in normalized if text] or [""]


def _f1(words: list[str], answer_words: list[str]) -> float:
    """Returns the F1 of two lists of words: 2 * precision * recall / (precision + recall).

    If one list is empty, it is 1 if both are, else 0.
    """
    if not words or not answer_words:
        return float(words == answer_words)
    shared = collections.Counter(words) & collections.Counter(answer_words)
    num_shared = sum(shared.values())
    if not num_shared:
        return 0.0
    precision = num_shared / len(words)
    recall = num_shared / len(answer_words)
    return 2 * precision * recall / (precision + recall)
