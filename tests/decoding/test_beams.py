"""Beam search: against all possible sequences and a search in NumPy, in every layout
and runtime.
"""

from __future__ import annotations

import heapq

import numpy as np
import pytest

import meshtf as mtf
from tests.decoding import models
from tests.decoding.models import EOS_ID, LAYOUTS, LENGTH, PROMPT

BEAMS = 54  # 2 * 54 candidates are all extensions of 27 sequences by 4 ids


def penalty(count, alpha):
    return ((5 + count) / 6) ** alpha


def program(beams, alpha, recurrent, eos_id=EOS_ID):
    """Returns a function of the tensors of a model that returns ids and scores."""

    def search(prompt, table, embedding, kernel):
        beam = f"beam:{beams}"
        if not recurrent:
            outputs = mtf.decoding.beam_search(
                models.table_step(table), prompt, beam, eos_id=eos_id, alpha=alpha
            )
        else:
            state = models.recurrent_state(prompt.mesh, f"batch:2;beam:{beams};d:2")
            outputs = mtf.decoding.beam_search(
                models.recurrent_step(embedding, kernel),
                prompt,
                beam,
                state,
                eos_id=eos_id,
                alpha=alpha,
            )
        return list(outputs)

    return search


def search_in_numpy(logits, prompt, alpha, beams, eos_id=EOS_ID):
    """Returns the results of a beam search that never stops early: (score, ids), best
    first.
    """
    alive = [(0.0, list(prompt))]
    finished = []
    for count in range(1, LENGTH - len(prompt) + 1):
        extensions = [
            (p + q, [*ids, i])
            for p, ids in alive
            for i, q in enumerate(models.log_softmax(logits(tuple(ids))))
        ]
        candidates = heapq.nlargest(2 * beams, extensions)
        finished += [
            (p / penalty(count, alpha), ids + [eos_id] * (LENGTH - len(ids)))
            for p, ids in candidates
            if ids[-1] == eos_id
        ]
        alive = [(p, ids) for p, ids in candidates if ids[-1] != eos_id][:beams]
    unfinished = [(p / penalty(count, alpha), ids) for p, ids in alive]
    return heapq.nlargest(beams, finished or unfinished)


def assert_results(results, expected):
    """Expects ids and scores; a beam without a sequence has the prompt and the score
    -inf.
    """
    ids, scores = (x.numpy() for x in results)
    for i, best in enumerate(expected):
        count = len(best)
        expected_scores = [score for score, _ in best]
        np.testing.assert_allclose(scores[i, :count], expected_scores, 1e-4, 1e-5)
        np.testing.assert_array_equal(ids[i, :count], [x for _, x in best])
        assert (scores[i, count:] == -np.inf).all()
        prompt = np.where(PROMPT[i] < 0, EOS_ID, PROMPT[i])
        assert (ids[i, count:] == prompt).all()


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("recurrent", [False, True], ids=["table", "recurrent"])
def test_enough_beams_find_the_best_of_all_sequences(recurrent, alpha, seed):
    logits = (models.recurrent_logits if recurrent else models.table_logits)(seed)
    search = mtf.function(program(BEAMS, alpha, recurrent))
    results = search(*models.tensors("", seed))
    for prompt, ids, scores in zip(PROMPT, *(x.numpy() for x in results)):
        score_of = {
            tuple(i): p / penalty(n, alpha)
            for i, p, n in models.all_sequences(logits, models.prompt_ids(prompt))
        }
        best = heapq.nlargest(BEAMS, score_of.values())
        np.testing.assert_allclose(scores[: len(best)], best, 1e-4, 1e-5)
        # Where scores tie, any order is right.
        sequences = [tuple(x) for x in ids[: len(best)].tolist()]
        assert len(set(sequences)) == len(best)
        np.testing.assert_allclose(
            scores[: len(best)], [score_of[x] for x in sequences], 1e-4, 1e-5
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_no_sequence(layout, seed):
    expected = [
        search_in_numpy(
            models.recurrent_logits(seed), models.prompt_ids(sequence), 0.6, 4
        )
        for sequence in PROMPT
    ]
    assert_results(
        mtf.function(program(4, 0.6, True))(*models.tensors(layout, seed)), expected
    )


@pytest.mark.parametrize(
    "mode, layout, devices",
    [
        ("eager", "batch:x;vocab:y", None),
        ("function", "batch:x;vocab:y", "separate:4"),
        ("jit", "batch:x;vocab:y", None),
        ("exported", "batch:x;vocab:y", None),
        ("exported", "batch:x;beam:y", None),
    ],
)
def test_all_runtimes_and_modes_agree(mode, layout, devices, seed):
    expected = [
        search_in_numpy(
            models.recurrent_logits(seed), models.prompt_ids(sequence), 0.6, 4
        )
        for sequence in PROMPT
    ]
    assert_results(
        models.run(
            program(4, 0.6, True), mode, models.tensors(layout, seed, devices=devices)
        ),
        expected,
    )


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_stopping_early_does_not_change_the_results(beams, alpha, seed):
    for other in range(seed, seed + 6):
        expected = [
            search_in_numpy(
                models.recurrent_logits(other),
                models.prompt_ids(sequence),
                alpha,
                beams,
            )
            for sequence in PROMPT
        ]
        assert_results(
            mtf.function(program(beams, alpha, True))(*models.tensors("", other)),
            expected,
        )


def test_unfinished_sequences_are_results_where_none_ends(seed):
    args = models.tensors("batch:x", seed)
    endless = mtf.function(program(3, 0.6, True, eos_id=None))(*args)
    logits = models.recurrent_logits(seed)
    assert_results(
        endless,
        [
            search_in_numpy(logits, models.prompt_ids(sequence), 0.6, 3, eos_id=-1)
            for sequence in PROMPT
        ],
    )
    args[1] = mtf.where(
        mtf.equal(mtf.range(args[1].mesh, "vocab:4"), EOS_ID), -np.inf, args[1]
    )
    never = mtf.function(program(3, 0.6, False))(*args)
    assert (
        np.isfinite(never[1].numpy()).all()
        and (never[0].numpy()[:, :, 3:] != EOS_ID).all()
    )


def search_table(probabilities, prompt, **kwargs):
    """Returns the ids and exp(scores) of a search, and the positions of its steps.

    Args:
      probabilities: of each next id, [last, vocab].
      prompt: [length].
      **kwargs: of `beam_search`.
    """
    mesh = mtf.Mesh("")
    with np.errstate(divide="ignore"):
        table = mtf.asarray(
            mesh, np.log(np.array(probabilities, "float32")), "last;vocab"
        )
    calls = []

    def step(position, ids, state):
        calls.append(int(position))
        return mtf.gather(table, ids, "last"), state

    prompt = mtf.asarray(mesh, np.array(prompt, "int32"), "length")
    ids, scores = mtf.decoding.beam_search(step, prompt, "beam:2", **kwargs)
    return (
        ids.numpy().tolist(),
        np.exp(scores.numpy().astype("float64")).round(4).tolist(),
        calls,
    )


def test_the_loop_stops_when_no_score_can_improve():
    probabilities = [
        [0, 0.5, 0.4, 0.1],
        [0, 0, 0.1, 0.9],
        [0, 0.2, 0, 0.8],
        [0, 0, 0, 1],
    ]
    ids, scores, calls = search_table(
        probabilities, [0] + [-1] * 49, eos_id=3, alpha=0.0
    )
    assert calls == [0, 1]
    assert [x[:4] for x in ids] == [[0, 1, 3, 3], [0, 2, 3, 3]] and scores == [
        0.45,
        0.32,
    ]


def test_the_loop_continues_while_the_length_penalty_can_improve_a_score():
    # The sequences: 0 1 3, 0 3, and the long 0 2 4 5 6 7 3.
    probabilities = np.eye(8)[[0, 3, 4, 3, 5, 6, 7, 3]]
    probabilities[0, :4] = [0, 0.25, 0.25, 0.5]
    ids, scores, calls = search_table(
        probabilities, [0] + [-1] * 9, eos_id=3, alpha=2.0
    )
    assert [x[:7] for x in ids] == [[0, 2, 4, 5, 6, 7, 3], [0, 3, 3, 3, 3, 3, 3]]
    assert scores == [round(0.25 ** (6 / 11) ** 2, 4), 0.5] and calls[-1] < 8


def test_impossible_ids_are_never_generated():
    impossible = [0, 0, 0, 0]  # no id may follow 2 or 3
    ids, scores, _ = search_table(
        [[0, 0.5, 0.5, 0], [0, 0, 0, 1], impossible, impossible],
        [0, -1, -1, -1],
        eos_id=3,
        alpha=0.0,
    )
    assert scores == [0.5, 0] and ids == [[0, 1, 3, 3], [0, 3, 3, 3]]
    ids, scores, _ = search_table(
        np.eye(4)[[1, 2, 0, 3]], [0, -1, -1, -1], eos_id=3, alpha=0.0
    )
    assert scores == [1, 0] and ids == [[0, 1, 2, 0], [0, 3, 3, 3]]


def test_padding_of_the_vocabulary_is_never_generated(seed):
    table = np.random.default_rng(seed).normal(size=(4, 4))
    wide = np.concatenate([np.exp(table), np.full((4, 124), 50.0)], 1)
    narrow = np.exp(table) / np.exp(table).sum(1, keepdims=True)
    for eos_id in (3, None):
        ids, scores, _ = search_table(
            wide, [0, -1, -1, -1], eos_id=eos_id, vocab_size=4
        )
        assert (ids, scores) == search_table(narrow, [0, -1, -1, -1], eos_id=eos_id)[:2]


def test_a_complete_prompt_is_the_result():
    probabilities = np.full((4, 4), 0.25)
    assert search_table(probabilities, [2, 3, 1], eos_id=3)[:2] == (
        [[2, 3, 1], [2, 3, 1]],
        [1, 0],
    )
    assert search_table(probabilities, [2], eos_id=3) == ([[2], [2]], [1, 0], [])


def test_a_long_search_records_the_step_once(seed):
    calls = []

    def search(prompt, table, embedding, kernel):
        step = models.table_step(table)

        def counted(*args):
            calls.append(1)
            return step(*args)

        prompt = mtf.pad(prompt, "length", 0, 1000, value=-1)
        return mtf.decoding.beam_search(counted, prompt, "beam:2", eos_id=EOS_ID)[0]

    assert (
        mtf.function(search)(*models.tensors("batch:x", seed)).shape["length"] == 1006
    )
    assert len(calls) == 1


def test_a_shard_of_the_vocabulary_sends_only_its_best(seed):
    mesh = mtf.Mesh("x:4", layout="vocab:x")

    @mtf.function(mesh=mesh, prompt="batch;length", table="last;vocab")
    def search(prompt, table):
        return mtf.decoding.beam_search(
            models.table_step(table), prompt, "beam:3", eos_id=EOS_ID
        )[0]

    report = mtf.explain(search, PROMPT, np.zeros((4096, 4096), "float32"))
    num_beams = PROMPT.shape[0] * 3
    other_shards = 3
    best = 6 * (4 + 4)  # 2 * beam values and ids
    logsumexp = 4
    assert report.bytes_moved() == num_beams * other_shards * (best + logsumexp)


def assert_error(kind, *texts, beam="beam:4", state=None, step=None, **kwargs):
    """Expects that a search raises an error with all texts, recorded and eagerly."""

    def search(prompt, table, embedding, kernel):
        cache = {"cache": mtf.zeros(table.mesh, state)} if state else None
        return mtf.decoding.beam_search(
            step or models.table_step(table), prompt, beam, cache, **kwargs
        )

    args = models.tensors("batch:x", 0)
    for run in (search, mtf.function(search)):
        with pytest.raises(kind) as caught:
            run(*args)
        assert all(text in str(caught.value) for text in (*texts, "test_beams.py:")), (
            caught.value
        )


def test_errors_of_searches():
    assert_error(mtf.PlanError, "alpha is at least 0, not -1", alpha=-1)
    assert_error(
        mtf.ShapeError,
        '"length" cannot be the dimension of beams',
        "[batch:2 length:6",
        beam="length:4",
    )
    assert_error(
        mtf.ShapeError, '"vocab" cannot be the dimension of beams', beam="vocab:4"
    )
    assert_error(
        mtf.ShapeError,
        "eos_id=4 is none of the 4 ids",
        "0 to 3",
        "eos_id=None",
        eos_id=4,
    )
    assert_error(
        mtf.ShapeError, "eos_id=3 is none of the 3 ids", eos_id=3, vocab_size=3
    )
    assert_error(mtf.ShapeError, "vocab_size=5", "1 to 4", vocab_size=5)
    assert_error(
        mtf.ShapeError,
        "an element for each beam",
        "[beam:4]",
        "[batch:2 beam:4]",
        state="beam:4",
    )
    assert_error(
        mtf.ShapeError, "an element for each beam", "beam:3", state="batch:2;beam:3"
    )

    def widens(position, ids, state):
        logits = mtf.zeros(ids.mesh, ids.shape + mtf.Shape("vocab:4"))
        return logits, {"cache": mtf.broadcast(state["cache"], "batch:2;d:3;beam:4")}

    assert_error(
        mtf.ShapeError,
        "before",
        "after",
        "[batch:2 d:3]",
        state="batch:2;d:3",
        step=widens,
    )
