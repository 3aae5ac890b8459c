"""Batches of tasks: a pure function of (seed, index), for any worker, in memory or on
disk.
"""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

from transformer import data
from transformer.data.datasets import tasks, tfrecord_examples
from transformer.data.datasets.tfrecord_examples import write_examples
from transformer.data.preprocessors import split_prefix, tokenize

BYTES = data.ByteVocabulary(extra_ids=30)


class Texts:
    """A source in memory."""

    def __init__(self, count=23, min_words=1):
        rng = np.random.default_rng(count)
        self.texts = [
            {"text": f"text {k} " * rng.integers(min_words, 9)} for k in range(count)
        ]

    def train(self):
        return self.texts

    def held_out(self):
        return [{"text": f"held {k}"} for k in range(7)]


def spans(name="spans", count=23, inputs=24):
    return data.span_corruption(name, Texts(count), BYTES, inputs=inputs)


def plain(name="plain", count=23):
    """Returns a task without packing and random choices; each text has its index."""
    step = functools.partial(tokenize, vocabulary=BYTES, fields={"text": "targets"})
    return data.Task(
        name,
        Texts(count),
        BYTES,
        data.LanguageModelFeatures(100),
        preprocessors=[step],
    )


def prefixes(name="prefixes", count=23):
    step = functools.partial(tokenize, vocabulary=BYTES, fields={"text": "targets"})
    return data.Task(
        name,
        Texts(count),
        BYTES,
        data.PrefixFeatures(100),
        preprocessors=[step, split_prefix],
    )


def take(source, num_batches, batch_size=4, **kwargs):
    return [
        {name: values.numpy() for name, values in batch.items()}
        for batch in source.batches(batch_size, **kwargs).take(num_batches)
    ]


def concatenate(batches):
    return {
        name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]
    }


def is_equal(batch, other):
    return batch.keys() == other.keys() and all(
        np.array_equal(batch[name], other[name]) for name in batch
    )


def text_indices(batches):
    """Returns the indices of the texts in batches of `plain`."""
    return [
        int(BYTES.decode(ids).split()[1])
        for batch in batches
        for ids in batch["targets"]
    ]


@pytest.fixture
def mixture(monkeypatch):
    monkeypatch.setattr(tasks, "_task_makers", {})
    data.register(plain("many", 50))
    data.register(plain("few", 5))
    return data.Mixture("both", {"many": 3, "few": 1})


@pytest.mark.parametrize("make", [spans, plain, prefixes])
def test_batches_have_the_features(make):
    source = data.TaskData(make())
    batch = next(iter(source.batches(3)))
    features = source.features(3)
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in features.items()
    }
    assert source.batches(3).element_spec.keys() == features.keys()
    assert isinstance(source, data.Data) and source.vocabulary is BYTES


def test_each_epoch_has_each_example_once_in_another_order():
    epochs = np.reshape(text_indices(take(data.TaskData(plain(count=20)), 15)), (3, 20))
    in_order = list(range(20))
    assert all(sorted(epoch) == in_order for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs} | {tuple(in_order)}) == 4


@pytest.mark.parametrize("make", [spans, prefixes])
def test_an_example_is_preprocessed_differently_in_each_epoch(make):
    task = (
        data.span_corruption("spans", Texts(1, min_words=8), BYTES, inputs=200)
        if make is spans
        else make(count=1)
    )
    assert len(list(tfrecord_examples.make_examples(task, "train", 0))) == 1
    name = "targets" if make is spans else "weights"
    batches = take(data.TaskData(task), 8, batch_size=1)
    assert len({tuple(batch[name][0]) for batch in batches}) > 3


@pytest.mark.parametrize("start", [1, 4, 36, 1000])
def test_a_resumed_run_gets_the_batches_of_an_uninterrupted_one(start):
    source = data.TaskData(prefixes(), seed=3)
    complete = concatenate(take(source, 3, batch_size=1 + start // 2, start=start % 3))
    expected = {name: x[start - start % 3 :] for name, x in complete.items()}
    resumed = concatenate(
        take(
            data.TaskData(prefixes(), seed=3),
            1,
            batch_size=len(expected["tokens"]),
            start=start,
        )
    )
    assert is_equal(resumed, expected)


def test_the_seed_changes_the_order_but_not_held_out_examples():
    one, other = data.TaskData(prefixes(), seed=1), data.TaskData(prefixes(), seed=2)
    assert not is_equal(concatenate(take(one, 5)), concatenate(take(other, 5)))
    for a, b in zip(one.held_out(4), other.held_out(4), strict=True):
        assert is_equal(
            {k: v.numpy() for k, v in a.items()}, {k: v.numpy() for k, v in b.items()}
        )


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_read_slices_of_the_same_batches(workers):
    source = data.TaskData(prefixes())
    batches = take(source, 3, batch_size=8, start=5)
    slices = [
        take(source, 3, batch_size=8, start=5, worker=(w, workers))
        for w in range(workers)
    ]
    for step, batch in enumerate(batches):
        assert is_equal(concatenate([x[step] for x in slices]), batch)


@pytest.mark.parametrize(
    "worker, message", [((2, 2), "worker 2 of 2"), ((0, 3), "batch of 8")]
)
def test_errors_of_workers(worker, message):
    for source in (data.TaskData(plain()), data.ByteText()):
        with pytest.raises(data.DataError, match=message):
            source.batches(8, worker=worker)


def test_autotuning_is_off():
    for dataset in (
        data.TaskData(plain()).batches(4),
        data.TaskData(plain()).held_out(4),
    ):
        assert dataset.options().autotune.enabled is False


@pytest.mark.parametrize("num_examples", [None, 1, 3, 7, 100])
def test_held_out_examples_come_once_and_padding_does_not_count(num_examples):
    batches = [
        {name: x.numpy() for name, x in batch.items()}
        for batch in data.TaskData(plain()).held_out(4, num_examples)
    ]
    examples = concatenate(batches)
    counts = examples["counts"]
    texts = [BYTES.decode(ids).split() or [0, -1] for ids in examples["targets"]]
    indices = np.array([int(words[1]) for words in texts])
    expected = {3: [1, 3, 5], 1: [3]}.get(num_examples, range(7))
    assert indices[counts > 0].tolist() == list(expected)
    assert counts.sum() == len(expected) and len(counts) % 4 == 0
    assert not examples["weights"][counts == 0].any()


def test_a_mixture_has_each_share_and_resumes(mixture):
    source = data.TaskData(mixture)
    batches = take(source, 50)
    texts = [BYTES.decode(ids) for ids in concatenate(batches)["targets"]]
    many = {f"text {k} " for k in range(50)}
    assert (
        len(texts) == 200 and {text[: text.index(" ", 5) + 1] for text in texts} == many
    )
    assert is_equal(concatenate(take(source, 20, start=120)), concatenate(batches[30:]))
    few = [text for text in texts if text in {e["text"] for e in Texts(5).train()}]
    assert 50 <= len(few) < 60  # a text of few words may be one of both
    assert str(source).startswith(
        "75.0% many: 50 training examples, 7 held out; 25.0% few: 5 training"
    )
    assert sum(batch["counts"].numpy().sum() for batch in source.held_out(4)) == 14


def test_errors_of_mixtures(mixture):
    data.register(spans("spans"))
    data.register(mixture)
    other = plain("other")
    data.register(
        data.Task(
            "other",
            other.source,
            data.ByteVocabulary(),
            other.features,
            preprocessors=other.preprocessors,
        )
    )
    for shares, message in (
        ({"many": 1, "spans": 1}, "features of its tasks differ"),
        ({"many": 1, "other": 1}, "vocabularies of its tasks differ"),
        ({"both": 1}, "has a mixture among its tasks"),
        ({"man": 1}, "Did you mean 'many'"),
    ):
        with pytest.raises(data.DataError, match=message):
            data.TaskData(data.Mixture("bad", shares))
    for shares in ({}, {"many": 0}, {"many": float("nan")}):
        with pytest.raises(data.DataError, match="shares above 0"):
            data.Mixture("bad", shares)
    with pytest.raises(data.DataError, match="a task 'many' already"):
        data.register(plain("many"))


def test_errors_of_the_first_example_are_raised_at_once():
    broken = data.Task(
        "broken",
        Texts(),
        BYTES,
        data.LanguageModelFeatures(4),
        preprocessors=plain().preprocessors,
    )
    with pytest.raises(
        data.DataError,
        match="task 'broken': 'targets' of an example has .* more than 4",
    ):
        data.TaskData(broken).batches(2)


def test_features_read_no_examples():
    class Unread:
        def train(self):
            raise AssertionError("read")

        held_out = train

    task = data.span_corruption("unread", Unread(), inputs=24)
    assert data.TaskData(task).features(2)["inputs"].shape == (2, 24)


@pytest.mark.parametrize("examples_per_file", [3, 1000])
def test_examples_on_disk_are_those_in_memory(tmp_path, examples_per_file):
    manifest = write_examples(spans(), tmp_path, examples_per_file=examples_per_file)
    memory = data.TaskData(spans())
    disk = data.TaskData(spans(), folder=str(tmp_path))
    num_examples = len(list(tfrecord_examples.make_examples(spans(), "train", 0)))
    assert is_equal(concatenate(take(memory, 20)), concatenate(take(disk, 20)))
    for batch, other in zip(memory.held_out(3), disk.held_out(3), strict=True):
        assert is_equal(
            {k: v.numpy() for k, v in batch.items()},
            {k: v.numpy() for k, v in other.items()},
        )
    assert manifest == json.loads((tmp_path / "spans" / "manifest.json").read_text())
    assert manifest["train"]["examples"] == num_examples
    assert manifest["train"]["files"] == -(-num_examples // examples_per_file)
    assert str(disk).endswith(f"from {tmp_path}")
    tokens = sum(len(text["text"]) + 1 for text in Texts().train())
    assert manifest["train"]["tokens"] == tokens


def test_examples_made_with_other_settings_are_refused(tmp_path):
    write_examples(spans(), tmp_path)
    for task, message in (
        (spans(inputs=48), r"other settings(?s:.*)length=26(?s:.*)length=52"),
        (data.span_corruption("spans", Texts(), inputs=24), "byte-3-30"),
        (spans("others"), "no examples of task 'others'(?s:.*)transformer.tokenize"),
    ):
        with pytest.raises(data.DataError, match=message):
            data.TaskData(task, folder=str(tmp_path)).batches(2)
    (tmp_path / "spans" / "train-00000-of-00001.tfrecord").unlink()
    with pytest.raises(data.DataError, match="should have 1 files of train, and has 0"):
        data.TaskData(spans(), folder=str(tmp_path)).batches(2)


def test_the_folder_is_complete_or_absent(tmp_path):
    class Breaks(Texts):
        def held_out(self):
            raise RuntimeError("the disk is full")

    task = data.span_corruption("spans", Breaks(), BYTES, inputs=24)
    with pytest.raises(RuntimeError, match="full"):
        write_examples(task, tmp_path)
    assert not list(tmp_path.iterdir())
    write_examples(spans(), tmp_path)
    with pytest.raises(data.DataError, match="spans exists already"):
        write_examples(spans(), tmp_path)
    with pytest.raises(data.DataError, match="has no packing"):
        write_examples(plain(), tmp_path)
