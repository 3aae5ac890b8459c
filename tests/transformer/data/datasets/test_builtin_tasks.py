"""The built-in tasks, on small texts, and their gin settings."""

from __future__ import annotations

import gin
import numpy as np
import pytest

from transformer import data
from transformer.data.datasets.builtin_tasks import (
    bert_pretraining,
    language_model,
    sequence_to_sequence,
)
from transformer.data.vocabularies import train_word_pieces


class Texts:
    """A source in memory."""

    def train(self):
        return [
            {"text": f"def f{k}(x):\n  return x + {k}\n" * (1 + k % 4)}
            for k in range(20)
        ]

    def held_out(self):
        return self.train()[:4]


@pytest.fixture
def settings():
    yield gin
    gin.clear_config()


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    pieces = train_word_pieces([e["text"] for e in Texts().train()], 60)
    path.write_text("\n".join(pieces), encoding="utf-8")
    return str(path)


def first_batch(task):
    batch = next(iter(data.TaskData(task).batches(4)))
    return {name: x.numpy() for name, x in batch.items()}


def test_built_in_tasks_are_registered():
    assert {
        "bert_stdlib",
        "language_model_stdlib",
        "prefix_language_model_stdlib",
        "span_corruption_stdlib",
    } <= set(data.task_names())
    with pytest.raises(data.DataError, match="Did you mean 'span_corruption_stdlib'"):
        data.find("span_coruption_stdlib")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, names",
    [
        ("language_model_stdlib", "tokens targets weights segments positions"),
        ("prefix_language_model_stdlib", "tokens targets weights prefix"),
        ("span_corruption_stdlib", "inputs tokens targets weights"),
    ],
)
def test_tasks_of_the_library(name, names):
    batch = first_batch(name)
    assert " ".join(batch) == names and all(
        len(values) == 4 for values in batch.values()
    )
    assert batch["weights"].sum() > 100


def test_a_packed_language_model_has_every_byte_once():
    task = language_model("lm", Texts(), length=64)
    examples = list(task.packing(Texts().train(), (0,)))
    assert sum(len(example["targets"]) for example in examples) == sum(
        len(e["text"]) + 1 for e in Texts().train()
    )
    batch = first_batch(task)
    is_inside = batch["positions"] > 0
    assert np.array_equal(
        batch["tokens"][:, 1:][is_inside[:, 1:]],
        batch["targets"][:, :-1][is_inside[:, 1:]],
    )
    assert "segments" not in first_batch(
        language_model("lm", Texts(), length=64, packed=False)
    )


def test_bert_masks_tokens_and_pairs_texts(words, settings):
    settings.parse_config(f'WordPieceVocabulary.path = "{words}"')
    task = bert_pretraining("bert", Texts(), length=48, predictions=6)
    batch = first_batch(task)
    positions = batch["masked_positions"]
    assert (batch["tokens"][:, 0] == task.vocabulary.bos_id).all()
    assert (
        set(batch["next_sentence_labels"]) <= {0, 1}
        and batch["masked_weights"].sum() > 8
    )
    masked = np.take_along_axis(batch["tokens"], positions, 1)[
        batch["masked_weights"] > 0
    ]
    assert (masked == task.vocabulary.mask_id).mean() > 0.5


@pytest.mark.parametrize("packed", [False, True])
def test_pairs_of_texts_from_a_file(tmp_path, packed):
    (tmp_path / "a.tsv").write_text("\n".join(f"in {k}\tout {k}" for k in range(30)))
    source = data.tsv(str(tmp_path / "a.tsv"), columns=("x", "y"))
    task = sequence_to_sequence(
        "copy", source, fields=("x", "y"), inputs=16, targets=18, packed=packed
    )
    batch = first_batch(task)
    inputs, targets = (
        task.vocabulary.decode(batch[name][0]) for name in ("inputs", "targets")
    )
    assert inputs.replace("in", "out") == targets
    assert ("input_segments" in batch) == packed
    assert batch["inputs"].shape == (4, 16) and batch["targets"].shape == (4, 18)


def test_tasks_configured_by_gin(tmp_path, settings):
    (tmp_path / "a.txt").write_text(
        "\n".join(f"the line of number {k}" for k in range(50))
    )
    settings.parse_config(f"""
      TaskData.task = @span_corruption()
      TaskData.seed = 3
      span_corruption.name = "lines"
      span_corruption.source = @data.text_lines()
      span_corruption.vocabulary = @ByteVocabulary()
      span_corruption.inputs = 40
      ByteVocabulary.extra_ids = 7
      data.text_lines.pattern = "{tmp_path}/*.txt"
  """)
    source = data.TaskData()
    assert source.vocabulary.size == 266 and source.features(2)["inputs"].shape == (
        2,
        40,
    )
    assert next(iter(source.batches(2)))["inputs"].shape == (2, 40)
    settings.parse_config(
        'TaskData.task = "span_corruption_stdlib"\nspan_corruption.inputs = 96'
    )
    assert data.TaskData().features(2)["inputs"].shape == (2, 96)
