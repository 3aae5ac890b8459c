"""Sampling: against a loop in NumPy, against probabilities, in every layout and every
runtime.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from tests.decoding import models
from tests.decoding.models import END, LAYOUTS, LENGTH, PROMPT


def program(memory=True, end=END, **kwargs):
    """Returns a program of the numbers of a model: ids and log-probabilities."""

    def draw(prompt, table, embedding, kernel):
        step = models.table_step(table)
        state = None
        if memory:
            step = models.memory_step(embedding, kernel)
            state = models.memory_state(
                prompt.mesh, prompt.shape.without("length") + mtf.Shape("d:2")
            )
        with mtf.seed(5):
            return list(mtf.decoding.sample(step, prompt, state, end=end, **kwargs))

    return draw


def likeliest(logits, end):
    """Returns the ids that a loop in NumPy finds, and their log-probabilities."""
    texts = []
    log_probs = []
    for row in PROMPT:
        ids = [int(row[0])]
        found = [0.0]
        ended = False
        for given in row[1:]:
            log_prob = models.log_softmax(logits(tuple(ids)))
            ids.append(
                int(given) if given >= 0 else end if ended else int(log_prob.argmax())
            )
            found.append(0.0 if ended else log_prob[ids[-1]])
            ended = ended or (given < 0 and ids[-1] == end)
        texts.append(ids)
        log_probs.append(found)
    return texts, log_probs


def agree(found, want):
    np.testing.assert_array_equal(found[0].numpy(), want[0])
    np.testing.assert_allclose(found[1].numpy(), want[1], 1e-4, 1e-5)


@pytest.mark.parametrize("end", [0, 1, 2, 3, None])
@pytest.mark.parametrize("memory", [False, True], ids=["table", "memory"])
def test_without_temperature_the_likeliest_follows(memory, end, seed):
    logits = (models.memory_logits if memory else models.table_logits)(seed)
    found = program(memory, end, temperature=0)(*models.tensors("", seed))
    agree(found, likeliest(logits, end))


KINDS = [{}, {"temperature": 0}, {"top_k": 3, "top_p": 0.8}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_layout_changes_no_draw(kind, seed):
    want = [x.numpy() for x in program(**kind)(*models.tensors("", seed))]  # eagerly
    for layout in (x for x in LAYOUTS if "beam" not in x):
        agree(mtf.function(program(**kind))(*models.tensors(layout, seed)), want)


@pytest.mark.parametrize(
    "how, devices",
    [("eager", None), ("function", "separate:4"), ("jit", None), ("exported", None)],
)
def test_it_runs_everywhere(how, devices, seed):
    if how == "exported":
        pytest.importorskip("jaxlib")  # Python 3.10 has none
    want = [x.numpy() for x in program(top_k=3)(*models.tensors("", seed))]
    args = models.tensors("batch:x;vocab:y", seed, devices=devices)
    agree(models.run(program(top_k=3), how, args), want)


ROWS = 4096


def frequencies(chances, seed, temperature=1.0, **kwargs):
    """Returns how often each id followed id 0, in each of three places: [place, id]."""
    mesh = mtf.Mesh("x:2;y:2", layout="batch:x;vocab:y")
    table = mtf.asarray(
        mesh, np.log(np.tile(chances, (4, 1))).astype("float32"), "here;vocab"
    )
    prompt = np.full((ROWS, 4), -1, "int32")
    prompt[:, 0] = 0

    @mtf.function(mesh=mesh, prompt="batch;length")
    def draw(prompt):
        with mtf.seed(seed):
            warmth = temperature
            if not isinstance(warmth, float):
                warmth = mtf.asarray(mesh, np.array(warmth, "float32"), "batch")
            return mtf.decoding.sample(
                models.table_step(table), prompt, temperature=warmth, **kwargs
            )[0]

    ids = draw(prompt).numpy()[:, 1:]
    return np.stack([[np.mean(column == i) for i in range(4)] for column in ids.T])


CHANCES = np.array([0.2, 0.4, 0.1, 0.3])


@pytest.mark.parametrize(
    "kwargs, wanted",
    [
        ({}, CHANCES),
        ({"top_p": 1}, CHANCES),
        ({"top_k": 4}, CHANCES),
        ({"top_k": 99}, CHANCES),
        ({"temperature": 0.5}, CHANCES**2),
        ({"top_k": 2}, [0, 4, 0, 3]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_p": 0.65}, [0, 4, 0, 3]),
        ({"top_p": 0.75}, [2, 4, 0, 3]),
        ({"top_p": 1e-6}, [0, 1, 0, 0]),
        (
            {"top_p": 0.8, "temperature": 0.5},
            [0, 16, 0, 9],
        ),  # the mass of what is drawn from
        ({"top_p": 0.6, "top_k": 3}, [0, 4, 0, 3]),  # 4 / 9, 7 / 9
        ({"top_p": 0.9, "vocab_size": 3}, [2, 4, 1, 0]),
    ],
    ids=str,
)
def test_draws_are_as_frequent_as_they_are_probable(kwargs, wanted, seed):
    wanted = np.array(wanted) / np.sum(wanted)
    found = frequencies(CHANCES, seed, **kwargs)
    sigma = np.sqrt(wanted * (1 - wanted) / ROWS)
    assert (np.abs(found - wanted) <= 4.5 * sigma).all(), (seed, found)
    assert (
        len(np.unique(found, axis=0)) > 1 or wanted.max() == 1
    )  # places draw on their own


@pytest.mark.parametrize("kwargs", [{}, {"top_k": 3}, {"top_p": 0.999}], ids=str)
def test_each_sequence_may_have_a_temperature(kwargs, seed):
    warmth = np.where(np.arange(ROWS) % 2, 1.0, 0.0)
    found = frequencies(CHANCES, seed, temperature=warmth, **kwargs)
    few = CHANCES * (1 if "top_k" not in kwargs else CHANCES > 0.1)
    wanted = few / few.sum() / 2 + np.array([0, 0.5, 0, 0])
    assert (np.abs(found - wanted) < 4.5 * 0.5 / np.sqrt(ROWS)).all(), (seed, found)


def test_the_loop_ends_when_all_sequences_have():
    mesh = mtf.Mesh("")
    table = mtf.asarray(
        mesh, np.eye(4, k=1, dtype="float32"), "here;vocab"
    )  # 0 1 2 3 0
    calls = []

    def step(position, ids, state):
        calls.append(ids.numpy().tolist())
        return mtf.gather(table, ids, "here"), None

    prompt = np.array([[0] + [-1] * 99, [2] + [-1] * 99], "int32")
    prompt = mtf.asarray(mesh, prompt, "batch;length")
    ids, log_probs = mtf.decoding.sample(step, prompt, end=3, temperature=0)
    assert calls == [[0, 2], [1, 3], [2, 3]]
    assert ids.numpy()[:, :5].tolist() == [[0, 1, 2, 3, 3], [2, 3, 3, 3, 3]]
    assert ((log_probs.numpy() < 0).sum(1) == [3, 1]).all()


def test_each_of_several_ids_ends_a_sequence():
    mesh = mtf.Mesh("")
    table = mtf.asarray(mesh, np.eye(5, k=1, dtype="float32"), "here;vocab")
    prompt = mtf.asarray(
        mesh, np.array([[0, -1, -1, -1], [2, -1, -1, -1]]), "batch;length"
    )

    def step(position, ids, state):
        return mtf.gather(table, ids, "here"), None

    ids, _ = mtf.decoding.sample(step, prompt, end=(4, 1), temperature=0)
    assert ids.numpy().tolist() == [[0, 1, 4, 4], [2, 3, 4, 4]]
    ids, _ = mtf.decoding.beam_search(step, prompt, "beam:2", end=[4, 1], alpha=0.0)
    assert ids.numpy()[:, 0].tolist() == [[0, 1, 4, 4], [2, 3, 4, 4]]


def test_one_program_looks_for_fewer_or_more_positions(seed):
    prompt, table, *_ = models.tensors("batch:x", seed)
    traced = []

    @mtf.function(until="")
    def draw(prompt, table, until):
        traced.append(until)
        step = models.table_step(table)
        return (
            mtf.decoding.sample(step, prompt, temperature=0, until=until)[0],
            mtf.decoding.beam_search(step, prompt, "beam:1", until=until)[0],
        )

    whole = draw(prompt, table, np.int32(LENGTH))[0].numpy()
    for until in (1, 4, LENGTH, LENGTH + 3):
        sampled, searched = (x.numpy() for x in draw(prompt, table, np.int32(until)))
        want = np.where((PROMPT < 0) & (np.arange(LENGTH) >= until), 0, whole)
        np.testing.assert_array_equal(sampled, want)
        np.testing.assert_array_equal(searched[:, 0], want)
    assert len(traced) == 1


def test_a_sequence_needs_no_batch(seed):
    args = models.tensors("", seed)
    alone = mtf.asarray(args[1].mesh, PROMPT[1], "length")
    found = mtf.function(program(temperature=0))(alone, *args[1:])
    ids, log_probs = likeliest(models.memory_logits(seed), END)
    agree(found, (ids[1], log_probs[1]))


def test_a_long_sequence_is_one_body(seed):
    calls = []

    def draw(prompt, table, *_):
        def step(position, ids, state):
            calls.append(1)
            return mtf.gather(table, ids, "here"), state

        return mtf.decoding.sample(
            step, mtf.pad(prompt, "length", 0, 1000, -1), temperature=0
        )[0]

    ids = mtf.function(draw)(*models.tensors("batch:x", seed)).numpy()
    assert len(calls) == 1 and ids.shape == (2, 1000 + LENGTH) and ids.min() >= 0


def refused(kind, *said, step=None, prompt="int32", **kwargs):
    """Expects that a draw is refused, recorded and eagerly, and that the error says all
    of it.
    """

    def draw(prompt, table, *_):
        return mtf.decoding.sample(step or models.table_step(table), prompt, **kwargs)

    args = models.tensors("batch:x", 0)
    args[0] = mtf.cast(args[0], prompt)
    for run in (draw, mtf.function(draw)):
        with pytest.raises(kind) as caught:
            run(*args)
        assert all(
            text in str(caught.value) for text in (*said, "test_sampling.py:")
        ), caught.value


def test_bad_draws_are_refused():
    def logits(shape, dtype="float32", state=None):
        return lambda position, ids, _: (mtf.zeros(ids.mesh, shape, dtype), state)

    refused(mtf.PlanError, "a temperature is at least 0, not -1", temperature=-1)
    refused(mtf.PlanError, "top_k is at least 1, not 0", "all ids", top_k=0)
    refused(mtf.PlanError, "top_p is above 0 and at most 1, not 1.5", top_p=1.5)
    refused(mtf.PlanError, "needs a seed", "mtf.seed")
    refused(mtf.DTypeError, "not of float32", prompt="float32")
    refused(
        mtf.ShapeError, 'no dimension "lengths"', 'length="length"', length="lengths"
    )
    refused(mtf.ShapeError, '"batch" is to be the dimension of logits', vocab="batch")
    refused(
        mtf.ShapeError,
        "logits [batch words]",
        "[batch:2 vocab:4]",
        "vocab=",
        vocab="words",
    )
    refused(mtf.ShapeError, "logits [batch vocab]", step=logits("vocab:4"))
    refused(
        mtf.DTypeError,
        "logits are floats, not int32",
        step=logits("batch:2;vocab:4", "int32"),
    )
    refused(mtf.ShapeError, "the end, id -1", end=-1)
    refused(mtf.ShapeError, "the end, id 4", end=(1, 4))
    refused(mtf.PlanError, "1 to 6 positions, not 7", until=7)
    refused(
        mtf.PlanError, "two things", "(logits, None)", step=lambda p, ids, state: ids
    )
    refused(
        mtf.PlanError,
        "nested",
        "{'cache': '*'}",
        "None",
        state=None,
        step=lambda p, ids, _: (mtf.zeros(ids.mesh, "batch:2;vocab:4"), {"cache": ids}),
    )
    refused(mtf.PlanError, "made of tensors, not of int", state={"cache": 3})
    with pytest.raises(mtf.PlanError, match="a prompt is a tensor, not ndarray"):
        mtf.decoding.sample(logits("vocab:4"), PROMPT)
