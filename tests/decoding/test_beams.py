"""Beam search: against all sequences there are and against NumPy, in every layout and
runtime.
"""

from __future__ import annotations

import heapq

import numpy as np
import pytest

import meshtf as mtf
from tests.decoding import models
from tests.decoding.models import END, LAYOUTS, LENGTH, PROMPT

BEAMS = 54  # twice as many as 27 beginnings with any of 4 ids, so nothing is left out


def penalty(number, alpha):
    return ((5 + number) / 6) ** alpha


def program(beams, alpha, memory, end=END):
    """Returns a program of the numbers of a model: ids and scores."""

    def search(prompt, table, embedding, kernel):
        beam = f"beam:{beams}"
        if not memory:
            found = mtf.decoding.beam_search(
                models.table_step(table), prompt, beam, end=end, alpha=alpha
            )
        else:
            state = models.memory_state(prompt.mesh, f"batch:2;beam:{beams};d:2")
            found = mtf.decoding.beam_search(
                models.memory_step(embedding, kernel),
                prompt,
                beam,
                state,
                end=end,
                alpha=alpha,
            )
        return list(found)

    return search


def searched(logits, given, alpha, beams, end=END):
    """Returns what a beam search finds that never stops early: (score, ids), the best
    first.
    """
    alive = [(0.0, list(given))]
    done = []
    for number in range(1, LENGTH - len(given) + 1):
        grown = [
            (p + q, [*ids, i])
            for p, ids in alive
            for i, q in enumerate(models.log_softmax(logits(tuple(ids))))
        ]
        best = heapq.nlargest(2 * beams, grown)
        done += [
            (p / penalty(number, alpha), ids + [end] * (LENGTH - len(ids)))
            for p, ids in best
            if ids[-1] == end
        ]
        alive = [(p, ids) for p, ids in best if ids[-1] != end][:beams]
    unfinished = [(p / penalty(number, alpha), ids) for p, ids in alive]
    return heapq.nlargest(beams, done or unfinished)


def agree(found, want):
    """Expects ids and scores; places without a sequence hold the prompt and the score
    -inf.
    """
    ids, scores = (x.numpy() for x in found)
    for row, wanted in enumerate(want):
        np.testing.assert_allclose(
            scores[row, : len(wanted)], [s for s, _ in wanted], 1e-4, 1e-5
        )
        np.testing.assert_array_equal(ids[row, : len(wanted)], [i for _, i in wanted])
        assert (scores[row, len(wanted) :] == -np.inf).all()
        assert (
            ids[row, len(wanted) :] == np.where(PROMPT[row] < 0, END, PROMPT[row])
        ).all()


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("memory", [False, True], ids=["table", "memory"])
def test_enough_beams_find_the_best_of_all_sequences(memory, alpha, seed):
    logits = (models.memory_logits if memory else models.table_logits)(seed)
    found = mtf.function(program(BEAMS, alpha, memory))(*models.tensors("", seed))
    for given, ids, scores in zip(PROMPT, *(x.numpy() for x in found)):
        true = {
            tuple(i): p / penalty(n, alpha)
            for i, p, n in models.all_sequences(logits, models.given_part(given))
        }
        best = heapq.nlargest(BEAMS, true.values())
        np.testing.assert_allclose(scores[: len(best)], best, 1e-4, 1e-5)
        rows = [
            *map(tuple, ids[: len(best)].tolist())
        ]  # where scores tie, any order is right
        assert len(set(rows)) == len(best)
        np.testing.assert_allclose(
            scores[: len(best)], [true[row] for row in rows], 1e-4, 1e-5
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_no_sequence(layout, seed):
    want = [
        searched(models.memory_logits(seed), models.given_part(row), 0.6, 4)
        for row in PROMPT
    ]
    agree(mtf.function(program(4, 0.6, True))(*models.tensors(layout, seed)), want)


@pytest.mark.parametrize(
    "how, layout, devices",
    [
        ("eager", "batch:x;vocab:y", None),
        ("function", "batch:x;vocab:y", "separate:4"),
        ("jit", "batch:x;vocab:y", None),
        ("exported", "batch:x;vocab:y", None),
        ("exported", "batch:x;beam:y", None),
    ],
)
def test_it_runs_everywhere(how, layout, devices, seed):
    if how == "exported":
        pytest.importorskip("jaxlib")  # Python 3.10 has none
    want = [
        searched(models.memory_logits(seed), models.given_part(row), 0.6, 4)
        for row in PROMPT
    ]
    agree(
        models.run(
            program(4, 0.6, True), how, models.tensors(layout, seed, devices=devices)
        ),
        want,
    )


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_few_beams_find_what_they_would_without_stopping_early(beams, alpha, seed):
    for other in range(seed, seed + 6):
        want = [
            searched(models.memory_logits(other), models.given_part(row), alpha, beams)
            for row in PROMPT
        ]
        agree(
            mtf.function(program(beams, alpha, True))(*models.tensors("", other)), want
        )


def test_what_never_ends_is_found_unfinished(seed):
    args = models.tensors("batch:x", seed)
    endless = mtf.function(program(3, 0.6, True, end=None))(*args)
    logits = models.memory_logits(seed)
    agree(
        endless,
        [searched(logits, models.given_part(row), 0.6, 3, end=-1) for row in PROMPT],
    )
    args[1] = mtf.where(
        mtf.equal(mtf.range(args[1].mesh, "vocab:4"), END), -np.inf, args[1]
    )
    never = mtf.function(program(3, 0.6, False))(*args)
    assert (
        np.isfinite(never[1].numpy()).all()
        and (never[0].numpy()[:, :, 3:] != END).all()
    )


def table_of(chances, prompt, **kwargs):
    """Returns ids and scores of a search in a table of probabilities."""
    mesh = mtf.Mesh("")
    with np.errstate(divide="ignore"):
        table = mtf.asarray(mesh, np.log(np.array(chances, "float32")), "here;vocab")
    calls = []

    def step(position, ids, state):
        calls.append(int(position))
        return mtf.gather(table, ids, "here"), state

    prompt = mtf.asarray(mesh, np.array(prompt, "int32"), "length")
    ids, scores = mtf.decoding.beam_search(step, prompt, "beam:2", **kwargs)
    return (
        ids.numpy().tolist(),
        np.exp(scores.numpy().astype("float64")).round(4).tolist(),
        calls,
    )


def test_the_loop_ends_when_nothing_better_can_come():
    chances = [[0, 0.5, 0.4, 0.1], [0, 0, 0.1, 0.9], [0, 0.2, 0, 0.8], [0, 0, 0, 1]]
    ids, scores, calls = table_of(chances, [0] + [-1] * 49, end=3, alpha=0.0)
    assert calls == [0, 1]
    assert [row[:4] for row in ids] == [[0, 1, 3, 3], [0, 2, 3, 3]] and scores == [
        0.45,
        0.32,
    ]


def test_the_loop_goes_on_while_a_penalty_may_yet_help():
    chances = np.eye(8)[[0, 3, 4, 3, 5, 6, 7, 3]]  # 1 ends; 2 goes by 4, 5, 6 and 7
    chances[0, :4] = [0, 0.25, 0.25, 0.5]
    ids, scores, calls = table_of(chances, [0] + [-1] * 9, end=3, alpha=2.0)
    assert [row[:7] for row in ids] == [[0, 2, 4, 5, 6, 7, 3], [0, 3, 3, 3, 3, 3, 3]]
    assert scores == [round(0.25 ** (6 / 11) ** 2, 4), 0.5] and calls[-1] < 8


def test_what_cannot_follow_is_never_found():
    nothing = [0, 0, 0, 0]  # no id may follow 2, nor a lone 1
    ids, scores, _ = table_of(
        [[0, 0.5, 0.5, 0], [0, 0, 0, 1], nothing, nothing],
        [0, -1, -1, -1],
        end=3,
        alpha=0.0,
    )
    assert scores == [0.5, 0] and ids == [[0, 1, 3, 3], [0, 3, 3, 3]]
    ids, scores, _ = table_of(
        np.eye(4)[[1, 2, 0, 3]], [0, -1, -1, -1], end=3, alpha=0.0
    )
    assert scores == [1, 0] and ids == [[0, 1, 2, 0], [0, 3, 3, 3]]


def test_padding_of_the_vocabulary_is_never_found(seed):
    table = np.random.default_rng(seed).normal(size=(4, 4))
    wide = np.concatenate([np.exp(table), np.full((4, 124), 50.0)], 1)
    narrow = np.exp(table) / np.exp(table).sum(1, keepdims=True)
    for end in (3, None):
        ids, scores, _ = table_of(wide, [0, -1, -1, -1], end=end, vocab_size=4)
        assert (ids, scores) == table_of(narrow, [0, -1, -1, -1], end=end)[:2]


def test_a_given_sequence_is_a_result():
    chances = np.full((4, 4), 0.25)
    assert table_of(chances, [2, 3, 1], end=3)[:2] == ([[2, 3, 1], [2, 3, 1]], [1, 0])
    assert table_of(chances, [2], end=3) == ([[2], [2]], [1, 0], [])


def test_a_long_search_is_one_body(seed):
    calls = []

    def search(prompt, table, embedding, kernel):
        step = models.table_step(table)

        def counted(*args):
            calls.append(1)
            return step(*args)

        prompt = mtf.pad(prompt, "length", 0, 1000, value=-1)
        return mtf.decoding.beam_search(counted, prompt, "beam:2", end=END)[0]

    assert (
        mtf.function(search)(*models.tensors("batch:x", seed)).shape["length"] == 1006
    )
    assert len(calls) == 1


def test_no_slice_tells_more_than_its_best_few(seed):
    mesh = mtf.Mesh("x:4", layout="vocab:x")

    @mtf.function(mesh=mesh, prompt="batch;length", table="here;vocab")
    def search(prompt, table):
        return mtf.decoding.beam_search(
            models.table_step(table), prompt, "beam:3", end=END
        )[0]

    report = mtf.explain(search, PROMPT, np.zeros((4096, 4096), "float32"))
    rows = PROMPT.shape[0] * 3
    others = 3
    # 2 * beam values and ids
    best = 6 * (4 + 4)
    logsumexp = 4
    assert report.bytes_moved() == rows * others * (best + logsumexp)


def refused(kind, *said, beam="beam:4", state=None, step=None, **kwargs):
    """Expects that a search is refused, recorded and eagerly, and that the error says
    all of it.
    """

    def search(prompt, table, embedding, kernel):
        made = step or models.table_step(table)
        mesh = table.mesh
        held = {"cache": mtf.zeros(mesh, state)} if state else None
        return mtf.decoding.beam_search(made, prompt, beam, held, **kwargs)

    args = models.tensors("batch:x", 0)
    for run in (search, mtf.function(search)):
        with pytest.raises(kind) as caught:
            run(*args)
        assert all(text in str(caught.value) for text in (*said, "test_beams.py:")), (
            caught.value
        )


def test_bad_searches_are_refused():
    refused(mtf.PlanError, "alpha is at least 0, not -1", alpha=-1)
    refused(
        mtf.ShapeError,
        '"length" is to be the dimension of beams',
        "[batch:2 length:6",
        beam="length:4",
    )
    refused(mtf.ShapeError, '"vocab" is to be the dimension of beams', beam="vocab:4")
    refused(
        mtf.ShapeError,
        "the end, id 4, is none of the 4 ids",
        "0 to 3",
        "end=None",
        end=4,
    )
    refused(mtf.ShapeError, "the end, id 3, is none of the 3 ids", end=3, vocab_size=3)
    refused(mtf.ShapeError, "vocab_size=5", "1 to 4", vocab_size=5)
    refused(
        mtf.ShapeError,
        "one row for each beam",
        "[beam:4]",
        "[batch:2 beam:4]",
        state="beam:4",
    )
    refused(mtf.ShapeError, "one row for each beam", "beam:3", state="batch:2;beam:3")

    def widens(position, ids, state):
        logits = mtf.zeros(ids.mesh, ids.shape + mtf.Shape("vocab:4"))
        return logits, {"cache": mtf.broadcast(state["cache"], "batch:2;d:3;beam:4")}

    refused(
        mtf.ShapeError,
        "before",
        "after",
        "[batch:2 d:3]",
        state="batch:2;d:3",
        step=widens,
    )
