"""Batches of tasks: a pure function of (seed, position), for any worker, in memory or
on disk.
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

    def __init__(self, number=23, least=1):
        draw = np.random.default_rng(number)
        self.texts = [
            {"text": f"text {k} " * draw.integers(least, 9)} for k in range(number)
        ]

    def train(self):
        return self.texts

    def held_out(self):
        return [{"text": f"held {k}"} for k in range(7)]


def spans(name="spans", number=23, inputs=24):
    return data.span_corruption(name, Texts(number), BYTES, inputs=inputs)


def plain(name="plain", number=23):
    """Each text is an example: rows are known by their numbers, and nothing
    is random.
    """
    step = functools.partial(tokenize, vocabulary=BYTES, fields={"text": "targets"})
    return data.Task(
        name,
        Texts(number),
        BYTES,
        data.LanguageModelFeatures(100),
        preprocessors=[step],
    )


def prefixes(name="prefixes", number=23):
    step = functools.partial(tokenize, vocabulary=BYTES, fields={"text": "targets"})
    return data.Task(
        name,
        Texts(number),
        BYTES,
        data.PrefixFeatures(100),
        preprocessors=[step, split_prefix],
    )


def take(source, number, batch_size=4, **how):
    return [
        {name: values.numpy() for name, values in one.items()}
        for one in source.batches(batch_size, **how).take(number)
    ]


def joined(batches):
    return {name: np.concatenate([one[name] for one in batches]) for name in batches[0]}


def same(one, other):
    return all(np.array_equal(one[name], other[name]) for name in one) and set(
        one
    ) == set(other)


def which(batches):
    """Returns the numbers of the texts in batches of `plain`."""
    return [
        int(BYTES.decode(row).split()[1]) for one in batches for row in one["targets"]
    ]


@pytest.fixture
def mixture(monkeypatch):
    monkeypatch.setattr(tasks, "_known", {})
    data.register(plain("many", 50))
    data.register(plain("few", 5))
    return data.Mixture("both", {"many": 3, "few": 1})


@pytest.mark.parametrize("make", [spans, plain, prefixes])
def test_a_batch_is_what_its_features_say(make):
    source = data.TaskData(make())
    made, wanted = next(iter(source.batches(3))), source.features(3)
    assert {name: (x.shape, x.dtype) for name, x in made.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in wanted.items()
    }
    assert source.batches(3).element_spec.keys() == wanted.keys()
    assert isinstance(source, data.Data) and source.vocabulary is BYTES


def test_every_row_comes_once_in_an_epoch_in_another_order():
    first, second, third = np.reshape(
        which(take(data.TaskData(plain(number=20)), 15)), (3, 20)
    )
    assert sorted(first) == sorted(second) == sorted(third) == list(range(20))
    assert first.tolist() != second.tolist() != third.tolist()
    assert first.tolist() != list(range(20))


@pytest.mark.parametrize("make", [spans, prefixes])
def test_a_row_looks_another_way_in_each_epoch(make):
    task = (
        data.span_corruption("spans", Texts(1, least=8), BYTES, inputs=200)
        if make is spans
        else make(number=1)
    )
    assert len(list(tfrecord_examples.make_examples(task, "train", 0))) == 1
    rows = [
        one["targets"][0].tolist() if make is spans else one["weights"][0].tolist()
        for one in take(data.TaskData(task), 8, batch_size=1)
    ]
    assert len(set(map(tuple, rows))) > 3


@pytest.mark.parametrize("first", [1, 4, 36, 1000])
def test_a_resumed_run_sees_what_it_would_have_seen(first):
    source = data.TaskData(prefixes(), seed=3)
    whole = joined(take(source, 3, batch_size=1 + first // 2, start=first % 3))
    wanted = {name: values[first - first % 3 :] for name, values in whole.items()}
    rest = joined(
        take(
            data.TaskData(prefixes(), seed=3),
            1,
            batch_size=len(wanted["tokens"]),
            start=first,
        )
    )
    assert same(rest, wanted)


def test_another_seed_another_order_and_held_out_the_same():
    one, other = data.TaskData(prefixes(), seed=1), data.TaskData(prefixes(), seed=2)
    assert not same(joined(take(one, 5)), joined(take(other, 5)))
    for a, b in zip(one.held_out(4), other.held_out(4), strict=True):
        assert same(
            {k: v.numpy() for k, v in a.items()}, {k: v.numpy() for k, v in b.items()}
        )


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_read_slices_of_the_same_batches(workers):
    source = data.TaskData(prefixes())
    whole = take(source, 3, batch_size=8, start=5)
    parts = [
        take(source, 3, batch_size=8, start=5, worker=(w, workers))
        for w in range(workers)
    ]
    for step, batch in enumerate(whole):
        assert same(joined([part[step] for part in parts]), batch)


@pytest.mark.parametrize(
    "worker, message", [((2, 2), "worker 2 of 2"), ((0, 3), "batch of 8")]
)
def test_workers_that_cannot_be_are_refused(worker, message):
    for source in (data.TaskData(plain()), data.ByteText()):
        with pytest.raises(data.DataError, match=message):
            source.batches(8, worker=worker)


def test_nothing_tunes_what_is_read():
    for dataset in (
        data.TaskData(plain()).batches(4),
        data.TaskData(plain()).held_out(4),
    ):
        assert dataset.options().autotune.enabled is False


@pytest.mark.parametrize("number", [None, 1, 3, 7, 100])
def test_held_out_examples_come_once_and_what_fills_up_does_not_count(number):
    made = [
        {k: v.numpy() for k, v in one.items()}
        for one in data.TaskData(plain()).held_out(4, number)
    ]
    counts = np.concatenate([one["counts"] for one in made])
    numbers = np.array(
        [
            int((BYTES.decode(row).split() or [0, -1])[1])
            for one in made
            for row in one["targets"]
        ]
    )
    wanted = {None: range(7), 100: range(7), 7: range(7), 3: [1, 3, 5], 1: [3]}[number]
    assert numbers[counts > 0].tolist() == list(wanted)
    assert counts.sum() == len(wanted) and len(counts) % 4 == 0
    assert not joined(made)["weights"][counts == 0].any()


def test_a_mixture_gives_each_its_share_and_goes_on_where_it_was(mixture):
    source = data.TaskData(mixture)
    made = take(source, 50)
    texts = [BYTES.decode(row) for one in made for row in one["targets"]]
    many = {f"text {k} " for k in range(50)}
    assert (
        len(texts) == 200 and {text[: text.index(" ", 5) + 1] for text in texts} == many
    )
    assert same(joined(take(source, 20, start=120)), joined(made[30:]))
    few = [text for text in texts if text in {e["text"] for e in Texts(5).train()}]
    assert 50 <= len(few) < 60  # a text of few words may be one of both
    assert str(source).startswith(
        "75.0% many: 50 training examples, 7 held out; 25.0% few: 5 training"
    )
    assert sum(one["counts"].numpy().sum() for one in source.held_out(4)) == 14


def test_mixtures_that_do_not_fit_are_refused(mixture):
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


def test_errors_of_the_first_example_are_told_at_once():
    broken = data.Task(
        "broken",
        Texts(),
        BYTES,
        data.LanguageModelFeatures(4),
        preprocessors=plain().preprocessors,
    )
    with pytest.raises(
        data.DataError, match="task 'broken': 'targets' of an example has .* 4 fit"
    ):
        data.TaskData(broken).batches(2)


def test_nothing_is_read_for_features():
    class Unread:
        def train(self):
            raise AssertionError("read")

        held_out = train

    task = data.span_corruption("unread", Unread(), inputs=24)
    assert data.TaskData(task).features(2)["inputs"].shape == [2, 24]


@pytest.mark.parametrize("examples_per_file", [3, 1000])
def test_examples_on_disk_are_those_in_memory(tmp_path, examples_per_file):
    manifest = write_examples(spans(), tmp_path, examples_per_file=examples_per_file)
    memory, disk = data.TaskData(spans()), data.TaskData(spans(), folder=str(tmp_path))
    number = len(list(tfrecord_examples.make_examples(spans(), "train", 0)))
    assert same(joined(take(memory, 20)), joined(take(disk, 20)))
    for one, other in zip(memory.held_out(3), disk.held_out(3), strict=True):
        assert same(
            {k: v.numpy() for k, v in one.items()},
            {k: v.numpy() for k, v in other.items()},
        )
    assert manifest == json.loads((tmp_path / "spans" / "manifest.json").read_text())
    assert manifest["train"]["examples"] == number
    assert manifest["train"]["files"] == -(-number // examples_per_file)
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
