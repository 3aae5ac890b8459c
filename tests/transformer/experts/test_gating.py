"""Gatings, compared with plain transcriptions of their algorithms, token by token."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from tests.transformer.experts.gating_formulas import (
    experts_choose,
    gshard_as_published,
    gshard_as_run,
    softmax,
    token_choice,
)
from transformer.experts import gating
from transformer.experts.routing import Capacity

# whether second choices that are not drawn leave their slots to others
FREED = {"practice": True, "published": False}


def random_logits(case):
    """Returns logits [groups, tokens, experts] and which tokens are real."""
    groups, tokens, experts, kind = case
    random = np.random.default_rng(tokens * experts + len(kind))
    logits = random.normal(size=(groups, tokens, experts)).astype("float32")
    real = np.ones((groups, tokens), bool)
    if kind == "ties":
        logits = np.round(logits)
    if kind == "empty experts":
        logits[..., ::2] = -30.0
    if kind == "overflow":
        logits[..., 0] += 6.0
    if kind == "padding":
        real = (random.random((groups, tokens)) < 0.6) & (np.arange(groups) > 0)[
            :, None
        ]
    return logits, real


CASES = [
    (2, 8, 4, "plain"),
    (2, 12, 4, "ties"),
    (2, 12, 4, "overflow"),
    (2, 12, 6, "empty experts"),
    (3, 10, 4, "padding"),
    (2, 6, 1, "one expert"),
    (2, 3, 8, "more experts than tokens"),
]
IDS = [case[-1] for case in CASES]
TIGHT = Capacity(train=0.75, evaluate=1.0, minimum=2)


def route(gate, logits, real, padded):
    mesh = mtf.Mesh("")
    logits = mtf.asarray(mesh, logits, "batch;length;experts_all")
    real = mtf.asarray(mesh, real, "batch;length") if padded else None
    with mtf.seed(3):
        return gate(logits, nonpadding=real)


def draws(shape):
    with mtf.seed(3):
        return mtf.random_uniform(
            mtf.Mesh(""),
            [("batch", shape[0]), ("length", shape[1])],
            name="second_choices",
        ).numpy()


def check(routing, combine, balance, z, dropped):
    """Compares both views of a routing with combine weights [groups, tokens, experts,
    capacity].
    """
    groups, tokens, experts, capacity = combine.shape
    assert routing.tokens.shape.sizes == (groups, experts, capacity)
    have = np.zeros_like(combine)
    for g, e, c in np.argwhere(routing.tokens.numpy() >= 0):
        have[g, routing.tokens.numpy()[g, e, c], e, c] = routing.weights.numpy()[
            g, e, c
        ]
    np.testing.assert_allclose(have, combine, rtol=1e-5, atol=1e-7)
    assert not routing.weights.numpy()[routing.tokens.numpy() < 0].any()
    if routing.choices is not None:
        chosen = np.zeros_like(combine)
        slots, gates = routing.choices.slots.numpy(), routing.choices.gates.numpy()
        for g, k, s in np.argwhere(slots >= 0):
            e, c = divmod(slots[g, k, s], capacity)
            assert e == routing.choices.experts.numpy()[g, k, s]
            assert c == routing.choices.positions.numpy()[g, k, s]
            chosen[g, s, e, c] = gates[g, k, s]
        np.testing.assert_allclose(chosen, combine, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(routing.choices.has_slot.numpy(), slots >= 0)
        assert not gates[slots < 0].any()
        np.testing.assert_allclose(float(routing.losses["balance"]), balance, rtol=1e-5)
    np.testing.assert_allclose(float(routing.losses["z"]), z, rtol=1e-5)
    np.testing.assert_allclose(float(routing.dropped), dropped, rtol=1e-5, atol=1e-6)


def z_loss(logits, real):
    return np.square(np.log(np.exp(logits).sum(-1)))[real].mean()


def slots_of(choices, experts, training=True):
    """Returns the function of the count of real tokens of a group that the formulas take."""
    return lambda tokens: TIGHT.slots(choices, tokens, experts, training)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_top_2_as_published(case):
    logits, real = random_logits(case)
    slots = slots_of(min(2, case[2]), case[2])
    gate = functools.partial(
        gating.top_2, training=True, capacity=TIGHT, convention="published"
    )
    combine, balance, dropped = gshard_as_published(
        logits, real, draws(real.shape), slots
    )
    check(
        route(gate, logits, real, case[-1] == "padding"),
        combine,
        balance,
        z_loss(logits, real),
        dropped,
    )


@pytest.mark.parametrize(
    "training, threshold, normalize",
    [(True, 0.5, "before"), (True, 0.2, "after"), (False, 0.5, "before")],
)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_top_2_as_run(case, training, threshold, normalize):
    logits, real = random_logits(case)
    slots = slots_of(min(2, case[2]), case[2], training)
    gate = functools.partial(
        gating.top_2,
        training=training,
        capacity=TIGHT,
        threshold=threshold,
        normalize=normalize,
    )
    combine, balance, dropped = gshard_as_run(
        logits,
        real,
        draws(real.shape) if training else None,
        slots,
        threshold,
        normalize,
    )
    check(
        route(gate, logits, real, case[-1] == "padding"),
        combine,
        balance,
        z_loss(logits, real),
        dropped,
    )


@pytest.mark.parametrize(
    "k, normalize", [(1, "never"), (2, "before"), (3, "after"), (3, "never")]
)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_top_k(case, k, normalize):
    (logits, real), k = random_logits(case), min(k, case[2])
    slots = slots_of(k, case[2])
    gate = functools.partial(
        gating.top_k, training=True, capacity=TIGHT, k=k, normalize=normalize
    )
    combine, balance, dropped = token_choice(logits, real, k, slots, normalize)
    check(
        route(gate, logits, real, case[-1] == "padding"),
        combine,
        balance,
        z_loss(logits, real),
        dropped,
    )


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_switch(case):
    logits, real = random_logits(case)
    slots = slots_of(1, case[2])
    gate = functools.partial(gating.switch, training=True, capacity=TIGHT)
    combine, balance, dropped = token_choice(logits, real, 1, slots, "never")
    check(
        route(gate, logits, real, case[-1] == "padding"),
        combine,
        balance,
        z_loss(logits, real),
        dropped,
    )


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_expert_choice(case):
    (logits, real), k = random_logits(case), min(2, case[2])
    gate = functools.partial(gating.expert_choice, training=True, capacity=TIGHT, k=k)
    combine, dropped = experts_choose(logits, real, slots_of(k, case[2]))
    check(
        route(gate, logits, real, case[-1] == "padding"),
        combine,
        None,
        z_loss(logits, real),
        dropped,
    )


@pytest.mark.parametrize("gate", [gating.top_2, gating.top_k, gating.switch])
def test_without_a_limit_no_choice_is_dropped(gate):
    logits, real = random_logits((2, 12, 4, "overflow"))
    routing = route(
        functools.partial(gate, capacity=Capacity(evaluate=None)), logits, real, False
    )
    assert float(routing.dropped) == 0 and routing.choices.has_slot.numpy().all()
    assert routing.tokens.shape["capacity"] == 12


def test_statistics():
    logits, real = random_logits((3, 10, 4, "padding"))
    routing = route(functools.partial(gating.top_k, capacity=TIGHT), logits, real, True)
    p = softmax(logits)
    best = np.argsort(-p, axis=-1, kind="stable")[..., :2]
    load = [
        np.bincount(best[g][real[g]].ravel(), minlength=4) / 2 / max(real[g].sum(), 1)
        for g in range(3)
    ]
    expected = np.average(load, axis=0, weights=real.sum(1))
    np.testing.assert_allclose(routing.load.numpy(), expected, rtol=1e-6)
    entropy = -(p * np.log(p)).sum(-1)
    np.testing.assert_allclose(float(routing.entropy), entropy[real].mean(), rtol=1e-5)
    assert float(routing.num_tokens) == real.sum()


def test_losses_where_all_experts_are_alike():
    even = np.zeros((1, 8, 4), "float32")
    even[0, np.arange(8), np.arange(8) % 4] = (
        1e-6  # ties would all go to the first expert
    )
    real = np.ones((1, 8), bool)
    balance = {
        convention: float(
            route(
                functools.partial(gating.top_2, convention=convention),
                even,
                real,
                False,
            ).losses["balance"]
        )
        for convention in FREED
    }
    np.testing.assert_allclose(
        [balance["practice"], balance["published"]], [1, 1 / 16], rtol=1e-5
    )
    routing = route(gating.switch, even, real, False)
    np.testing.assert_allclose(
        [
            float(routing.losses["balance"]),
            float(routing.losses["z"]),
            float(routing.entropy),
        ],
        [1, np.log(4) ** 2, np.log(4)],
        rtol=1e-5,
    )


@pytest.mark.parametrize("convention", FREED)
def test_second_choices_that_are_not_drawn_take_slots_only_as_published(convention):
    logits = np.full((1, 40, 3), -9.0, "float32")
    logits[..., 0], logits[..., 1] = 3.0, 0.5  # all want expert 0, and then expert 1
    gate = functools.partial(
        gating.top_2,
        training=True,
        convention=convention,
        capacity=Capacity(train=None),
    )
    routing = route(gate, logits, np.ones((1, 40), bool), False)
    selected = np.flatnonzero(routing.tokens.numpy()[0, 1] >= 0)
    assert 0 < len(selected) < 20  # a gate of 0.08 is kept one time in six
    assert (selected[-1] == len(selected) - 1) == FREED[convention]


@pytest.mark.parametrize(
    "choices, tokens, experts, expected",
    [
        (2, 64, 8, 20),
        (1, 64, 8, 10),
        (2, 64, 64, 4),
        (2, 4, 2, 4),
        (2, 100, 16, 16),
        (2, 64, 5, 32),
    ],
)
def test_capacity(choices, tokens, experts, expected):
    assert (
        Capacity(multiple=2 if experts > 4 else 1).slots(choices, tokens, experts, True)
        == expected
    )


@pytest.mark.parametrize(
    "capacity",
    [Capacity(), Capacity(train=0.3, multiple=4), Capacity(train=1.1, minimum=0)],
    ids=str,
)
def test_padding_takes_no_capacity(capacity):
    thresholds = capacity.tokens_per_slot(2, 50, 7, True)
    for tokens in range(51):
        slots = sum(tokens >= threshold for threshold in thresholds)
        assert slots == capacity.slots(2, tokens, 7, True)


@pytest.mark.parametrize(
    "gate, option",
    [
        (gating.top_2, {"convention": "other"}),
        (gating.top_2, {"normalize": "never"}),
        (gating.top_2, {"convention": "published", "normalize": "after"}),
        (gating.top_k, {"normalize": "later"}),
    ],
)
def test_unknown_options_are_refused(gate, option):
    logits, real = random_logits(CASES[0])
    with pytest.raises(ValueError, match="expected one of"):
        route(functools.partial(gate, **option), logits, real, False)
