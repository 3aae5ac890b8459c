"""Sampling: against a loop in NumPy, against probabilities, in every layout and every
runtime.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from tests.decoding import models
from tests.decoding.models import EOS_ID, LAYOUTS, LENGTH, PROMPT


def program(recurrent=True, eos_id=EOS_ID, **kwargs):
    """Returns a function of the tensors of a model that returns ids and
    log-probabilities.
    """

    def draw(prompt, table, embedding, kernel):
        step = models.table_step(table)
        state = None
        if recurrent:
            step = models.recurrent_step(embedding, kernel)
            state = models.recurrent_state(
                prompt.mesh, prompt.shape.without("length") + mtf.Shape("d:2")
            )
        with mtf.seed(5):
            outputs = mtf.decoding.sample(step, prompt, state, eos_id=eos_id, **kwargs)
            return list(outputs)

    return draw


def greedy_in_numpy(logits, eos_id):
    """Returns the likeliest ids and their log-probabilities, by a loop in NumPy."""
    all_ids = []
    all_log_probs = []
    for sequence in PROMPT:
        ids = [int(sequence[0])]
        log_probs = [0.0]
        ended = False
        for prompt_id in sequence[1:]:
            log_prob = models.log_softmax(logits(tuple(ids)))
            generated = eos_id if ended else int(log_prob.argmax())
            ids.append(int(prompt_id) if prompt_id >= 0 else generated)
            log_probs.append(0.0 if ended else log_prob[ids[-1]])
            ended = ended or (prompt_id < 0 and ids[-1] == eos_id)
        all_ids.append(ids)
        all_log_probs.append(log_probs)
    return all_ids, all_log_probs


def assert_results(results, expected):
    np.testing.assert_array_equal(results[0].numpy(), expected[0])
    np.testing.assert_allclose(results[1].numpy(), expected[1], 1e-4, 1e-5)


@pytest.mark.parametrize("eos_id", [0, 1, 2, 3, None])
@pytest.mark.parametrize("recurrent", [False, True], ids=["table", "recurrent"])
def test_at_temperature_0_decoding_is_greedy(recurrent, eos_id, seed):
    logits = (models.recurrent_logits if recurrent else models.table_logits)(seed)
    greedy = program(recurrent, eos_id, temperature=0)
    results = greedy(*models.tensors("", seed))
    assert_results(results, greedy_in_numpy(logits, eos_id))


SETTINGS = [{}, {"temperature": 0}, {"top_k": 3, "top_p": 0.8}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_layout_changes_no_draw(settings, seed):
    draw = program(**settings)
    expected = [x.numpy() for x in draw(*models.tensors("", seed))]  # eagerly
    for layout in LAYOUTS:
        if "beam" not in layout:
            results = mtf.function(draw)(*models.tensors(layout, seed))
            assert_results(results, expected)


@pytest.mark.parametrize(
    "mode, devices",
    [("eager", None), ("function", "separate:4"), ("jit", None), ("exported", None)],
)
def test_all_runtimes_and_modes_agree(mode, devices, seed):
    expected = [x.numpy() for x in program(top_k=3)(*models.tensors("", seed))]
    args = models.tensors("batch:x;vocab:y", seed, devices=devices)
    assert_results(models.run(program(top_k=3), mode, args), expected)


BATCH_SIZE = 4096


def frequencies(probabilities, seed, temperature=1.0, **kwargs):
    """Returns the share of the batch that drew each id after id 0, at each of three
    positions: [position, vocab].
    """
    mesh = mtf.Mesh("x:2;y:2", layout="batch:x;vocab:y")
    table = mtf.asarray(
        mesh, np.log(np.tile(probabilities, (4, 1))).astype("float32"), "last;vocab"
    )
    prompt = np.full((BATCH_SIZE, 4), -1, "int32")
    prompt[:, 0] = 0

    @mtf.function(mesh=mesh, prompt="batch;length")
    def draw(prompt):
        with mtf.seed(seed):
            t = temperature
            if not isinstance(t, float):
                t = mtf.asarray(mesh, np.array(t, "float32"), "batch")
            step = models.table_step(table)
            return mtf.decoding.sample(step, prompt, temperature=t, **kwargs)[0]

    ids = draw(prompt).numpy()[:, 1:]
    return np.stack([[np.mean(column == i) for i in range(4)] for column in ids.T])


PROBABILITIES = np.array([0.2, 0.4, 0.1, 0.3])


@pytest.mark.parametrize(
    "kwargs, expected",
    [
        ({}, PROBABILITIES),
        ({"top_p": 1}, PROBABILITIES),
        ({"top_k": 4}, PROBABILITIES),
        ({"top_k": 99}, PROBABILITIES),
        ({"temperature": 0.5}, PROBABILITIES**2),
        ({"top_k": 2}, [0, 4, 0, 3]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_p": 0.65}, [0, 4, 0, 3]),
        ({"top_p": 0.75}, [2, 4, 0, 3]),
        ({"top_p": 1e-6}, [0, 1, 0, 0]),
        # top_p counts probabilities at the temperature, and among those of top_k.
        ({"top_p": 0.8, "temperature": 0.5}, [0, 16, 0, 9]),
        ({"top_p": 0.6, "top_k": 3}, [0, 4, 0, 3]),  # 4 / 9, 7 / 9
        ({"top_p": 0.9, "vocab_size": 3}, [2, 4, 1, 0]),
    ],
    ids=str,
)
def test_ids_are_drawn_with_their_probabilities(kwargs, expected, seed):
    expected = np.array(expected) / np.sum(expected)
    drawn = frequencies(PROBABILITIES, seed, **kwargs)
    sigma = np.sqrt(expected * (1 - expected) / BATCH_SIZE)
    assert (np.abs(drawn - expected) <= 4.5 * sigma).all(), (seed, drawn)
    # Positions draw independently.
    assert len(np.unique(drawn, axis=0)) > 1 or expected.max() == 1


@pytest.mark.parametrize("kwargs", [{}, {"top_k": 3}, {"top_p": 0.999}], ids=str)
def test_each_sequence_may_have_a_temperature(kwargs, seed):
    temperature = np.where(np.arange(BATCH_SIZE) % 2, 1.0, 0.0)
    drawn = frequencies(PROBABILITIES, seed, temperature=temperature, **kwargs)
    remaining = np.copy(PROBABILITIES)
    if "top_k" in kwargs:
        remaining[remaining <= 0.1] = 0
    greedy = np.array([0, 1, 0, 0])
    expected = (remaining / remaining.sum() + greedy) / 2
    bound = 4.5 * 0.5 / np.sqrt(BATCH_SIZE)
    assert (np.abs(drawn - expected) < bound).all(), (seed, drawn)


def test_the_loop_ends_when_all_sequences_have():
    mesh = mtf.Mesh("")
    # After 0 comes 1, then 2, then 3.
    table = mtf.asarray(mesh, np.eye(4, k=1, dtype="float32"), "last;vocab")
    calls = []

    def step(position, ids, state):
        calls.append(ids.numpy().tolist())
        return mtf.gather(table, ids, "last"), None

    prompt = np.array([[0] + [-1] * 99, [2] + [-1] * 99], "int32")
    prompt = mtf.asarray(mesh, prompt, "batch;length")
    ids, log_probs = mtf.decoding.sample(step, prompt, eos_id=3, temperature=0)
    assert calls == [[0, 2], [1, 3], [2, 3]]
    assert ids.numpy()[:, :5].tolist() == [[0, 1, 2, 3, 3], [2, 3, 3, 3, 3]]
    assert ((log_probs.numpy() < 0).sum(1) == [3, 1]).all()


def test_each_of_several_ids_ends_a_sequence():
    mesh = mtf.Mesh("")
    table = mtf.asarray(mesh, np.eye(5, k=1, dtype="float32"), "last;vocab")
    prompt = mtf.asarray(
        mesh, np.array([[0, -1, -1, -1], [2, -1, -1, -1]]), "batch;length"
    )

    def step(position, ids, state):
        return mtf.gather(table, ids, "last"), None

    ids, _ = mtf.decoding.sample(step, prompt, eos_id=(4, 1), temperature=0)
    assert ids.numpy().tolist() == [[0, 1, 4, 4], [2, 3, 4, 4]]
    ids, _ = mtf.decoding.beam_search(step, prompt, "beam:2", eos_id=[4, 1], alpha=0.0)
    assert ids.numpy()[:, 0].tolist() == [[0, 1, 4, 4], [2, 3, 4, 4]]


def test_one_program_serves_several_maximum_lengths(seed):
    prompt, table, *_ = models.tensors("batch:x", seed)
    traced = []

    @mtf.function(max_length="")
    def draw(prompt, table, max_length):
        traced.append(max_length)
        step = models.table_step(table)
        return (
            mtf.decoding.sample(step, prompt, temperature=0, max_length=max_length)[0],
            mtf.decoding.beam_search(step, prompt, "beam:1", max_length=max_length)[0],
        )

    complete = draw(prompt, table, np.int32(LENGTH))[0].numpy()
    for max_length in (1, 4, LENGTH, LENGTH + 3):
        results = draw(prompt, table, np.int32(max_length))
        sampled, searched = (x.numpy() for x in results)
        is_beyond = (PROMPT < 0) & (np.arange(LENGTH) >= max_length)
        expected = np.where(is_beyond, 0, complete)
        np.testing.assert_array_equal(sampled, expected)
        np.testing.assert_array_equal(searched[:, 0], expected)
    assert len(traced) == 1


@pytest.mark.parametrize("max_lengths", [(3, 5), (6, 1), (2, 9)])
@pytest.mark.parametrize("layout", ["", "batch:x;vocab:y"])
def test_each_sequence_may_have_a_maximum_length(layout, max_lengths, seed):
    prompt, table, *_ = models.tensors(layout, seed)
    step = models.table_step(table)
    settings = {"eos_id": EOS_ID}

    @mtf.function(max_length="batch")
    def of_each(prompt, max_length):
        settings["max_length"] = max_length
        return (
            *mtf.decoding.sample(step, prompt, temperature=0, **settings),
            *mtf.decoding.beam_search(step, prompt, "beam:2", **settings),
        )

    results = of_each(prompt, np.array(max_lengths, "int32"))
    for i, max_length in enumerate(max_lengths):
        settings["max_length"] = min(max_length, LENGTH)
        alone = mtf.asarray(prompt.mesh, np.stack([PROMPT[i]] * 2), "batch;length")
        expected = (
            *mtf.decoding.sample(step, alone, temperature=0, **settings),
            *mtf.decoding.beam_search(step, alone, "beam:2", **settings),
        )
        for x, y in zip(results, expected):
            np.testing.assert_allclose(x.numpy()[i], y.numpy()[i], 1e-5, 1e-6)


def test_an_ended_sequence_does_not_depend_on_others():
    mesh = mtf.Mesh("")
    # After 0 comes 1, then 2, then 3. The first sequence ends before its last known id.
    table = mtf.asarray(mesh, np.eye(4, k=1, dtype="float32"), "last;vocab")
    step = models.table_step(table)
    prompts = np.array([[1, -1, -1, -1, 2, -1], [0, 0, 0, 0, 0, -1]], "int32")
    results = []
    for array in (prompts, prompts[:1]):
        prompt = mtf.asarray(mesh, array, "batch;length")
        ids, log_probs = mtf.decoding.sample(step, prompt, eos_id=2, temperature=0)
        results.append((ids.numpy()[0].tolist(), log_probs.numpy()[0].tolist()))
    assert results[0] == results[1]
    assert results[0][0] == [1, 2, 2, 2, 2, 2]


def test_a_sequence_needs_no_batch(seed):
    args = models.tensors("", seed)
    prompt = mtf.asarray(args[1].mesh, PROMPT[1], "length")
    results = mtf.function(program(temperature=0))(prompt, *args[1:])
    ids, log_probs = greedy_in_numpy(models.recurrent_logits(seed), EOS_ID)
    assert_results(results, (ids[1], log_probs[1]))


def test_a_long_sequence_records_the_step_once(seed):
    calls = []

    def draw(prompt, table, *_):
        def step(position, ids, state):
            calls.append(1)
            return mtf.gather(table, ids, "last"), state

        return mtf.decoding.sample(
            step, mtf.pad(prompt, "length", 0, 1000, -1), temperature=0
        )[0]

    ids = mtf.function(draw)(*models.tensors("batch:x", seed)).numpy()
    assert len(calls) == 1 and ids.shape == (2, 1000 + LENGTH) and ids.min() >= 0


def assert_error(kind, *texts, step=None, prompt="int32", **kwargs):
    """Expects that sampling raises an error with all texts, recorded and eagerly.

    `prompt` is the type of the prompt.
    """

    def draw(prompt, table, *_):
        return mtf.decoding.sample(step or models.table_step(table), prompt, **kwargs)

    args = models.tensors("batch:x", 0)
    args[0] = mtf.cast(args[0], prompt)
    for run in (draw, mtf.function(draw)):
        with pytest.raises(kind) as caught:
            run(*args)
        assert all(
            text in str(caught.value) for text in (*texts, "test_sampling.py:")
        ), caught.value


def test_errors_of_sampling():
    def logits(shape, dtype="float32", state=None):
        return lambda position, ids, _: (mtf.zeros(ids.mesh, shape, dtype), state)

    assert_error(mtf.PlanError, "a temperature is at least 0, not -1", temperature=-1)
    assert_error(mtf.PlanError, "top_k is at least 1, not 0", "all ids", top_k=0)
    assert_error(mtf.PlanError, "top_p is above 0 and at most 1, not 1.5", top_p=1.5)
    assert_error(mtf.PlanError, "needs a seed", "mtf.seed")
    assert_error(mtf.DTypeError, "not float32", prompt="float32")
    assert_error(
        mtf.ShapeError, 'no dimension "lengths"', 'length="length"', length="lengths"
    )
    assert_error(
        mtf.ShapeError, '"batch" cannot be the dimension of logits', vocab="batch"
    )
    assert_error(
        mtf.ShapeError,
        "logits [batch words]",
        "[batch:2 vocab:4]",
        "vocab=",
        vocab="words",
    )
    assert_error(mtf.ShapeError, "logits [batch vocab]", step=logits("vocab:4"))
    assert_error(
        mtf.DTypeError,
        "logits are floats, not int32",
        step=logits("batch:2;vocab:4", "int32"),
    )
    assert_error(mtf.ShapeError, "eos_id=-1", eos_id=-1)
    assert_error(mtf.ShapeError, "eos_id=4", eos_id=(1, 4))
    assert_error(
        mtf.PlanError, "1 to 6, the positions of the prompt, not 7", max_length=7
    )
    assert_error(
        mtf.ShapeError,
        "max_length is an integer, a scalar of int32, or int32 [batch]",
        max_length=mtf.ones(mtf.Mesh(""), "beam:4", "int32"),
    )


def test_errors_of_steps_and_states():
    def logits(shape, dtype="float32", state=None):
        return lambda position, ids, _: (mtf.zeros(ids.mesh, shape, dtype), state)

    assert_error(
        mtf.PlanError, "two values", "(logits, None)", step=lambda p, ids, state: ids
    )
    assert_error(
        mtf.PlanError,
        "nested",
        "{'cache': '*'}",
        "None",
        state=None,
        step=lambda p, ids, _: (mtf.zeros(ids.mesh, "batch:2;vocab:4"), {"cache": ids}),
    )
    assert_error(
        mtf.PlanError, "a state has tensors, not values of type int", state={"cache": 3}
    )
    with pytest.raises(mtf.PlanError, match="a prompt is a tensor, not ndarray"):
        mtf.decoding.sample(logits("vocab:4"), PROMPT)
