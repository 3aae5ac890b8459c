"""Exact match and F1 of the answers of an encoder-decoder."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from transformer import data
from transformer.inference import answer_metrics
from transformer.inference.decoder import Completion, Decoder
from transformer.models.architecture import Architecture
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel
from transformer.training.load_trained import Trained

LETTERS = data.ByteVocabulary(extra_ids=0)


def sums(folder):
    """Returns data whose inputs are sums, such as "3 + 4", and whose targets are their
    results.
    """
    path = folder / "sums.tsv"
    path.write_text(
        "".join(f"{a} + {b}\t{a + b} apples\n" for a in range(9) for b in range(9))
    )
    preprocess = functools.partial(
        data.preprocessors.tokenize,
        vocabulary=LETTERS,
        fields={"sum": "inputs", "result": "targets"},
    )
    return data.TaskData(
        data.Task(
            "sums",
            source=data.tsv(str(path), columns=("sum", "result"), share=0.5),
            vocabulary=LETTERS,
            preprocessors=[preprocess],
            features=data.EncoderDecoderFeatures(inputs=8, targets=12),
        )
    )


@pytest.fixture
def model():
    kind = Architecture(
        vocab=LETTERS.size,
        d_model=8,
        d_ff=8,
        heads=2,
        d_kv=4,
        blocks=1,
        positions="relative",
    )
    return EncoderDecoder(mtf.Mesh(""), kind)


@pytest.mark.parametrize("error, scores", [(0, (1.0, 1.0)), (1, (0.0, 0.5))])
def test_each_input_has_its_answer(model, monkeypatch, tmp_path, error, scores):
    seen = []

    def generate(self, prompts, seed=0):
        for prompt in prompts:
            text = LETTERS.decode(np.array(prompt))
            seen.append(text)
            a, b = map(int, text.split(" + "))
            answer = f"The {a + b + error} apples!"
            yield Completion(LETTERS.encode(answer).tolist(), 0.0)

    monkeypatch.setattr(Decoder, "__call__", generate)
    metrics = answer_metrics.evaluate_answers(Trained(model, sums(tmp_path), 0), 10, 4)
    assert len(set(seen)) == 10
    assert metrics == {"exact_match": scores[0], "f1": scores[1]}


def test_answers_are_generated_by_the_model(model, tmp_path):
    metrics = answer_metrics.evaluate_answers(Trained(model, sums(tmp_path), 0), 4, 4)
    assert metrics["exact_match"] == 0.0 and 0.0 <= metrics["f1"] < 0.5


def test_a_model_without_inputs_is_refused(tmp_path):
    small = LanguageModel(
        mtf.Mesh(""), Architecture(d_model=8, d_ff=8, heads=2, d_kv=4, blocks=1)
    )
    with pytest.raises(data.DataError, match="LanguageModel does not generate answers"):
        answer_metrics.evaluate_answers(
            Trained(small, data.ByteText(length=8), 0), 4, 4
        )
