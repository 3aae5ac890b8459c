"""Gating functions: assign tokens to experts, at most `capacity` tokens of a group to each
expert.

    routing = switch(logits, training=True)         # [batch length experts_all]; group: example
    routing.choices.slots                           # [batch choice length], -1: dropped
    routing.tokens                                  # [batch experts_all capacity], -1: empty
    loss = loss + 1e-2 * routing.losses["balance"]

A gating is a function of logits [*groups, length, experts_all]. All other dimensions are
groups, which are routed independently. The choices of a group are queued: the first choices
of all tokens, in their order, then all second choices, and so on; an expert takes the first
`capacity` choices of its queue. So if slots run out, a second choice can be dropped in
favour of first choices of later tokens; a first choice depends on earlier tokens only.

    top_2           GShard (Lepikhin et al. 2020, arXiv 2006.16668), as in its code or its paper
    switch          Switch Transformer (Fedus et al. 2021, arXiv 2101.03961)
    top_k           the k likeliest, gates as in Mixtral (Jiang et al. 2024, arXiv 2401.04088)
    expert_choice   experts choose tokens (Zhou et al. 2022, arXiv 2202.09368)

Losses are not weighted. "balance" is E * sum_e f_e * P_e (Switch, equation 4), the
mean over groups: f_e is the fraction of choices of expert e before any is dropped, P_e the
mean of its probability; it is 1 if all experts have equal shares. "z" is the mean of
logsumexp(logits)**2 (Zoph et al. 2022, arXiv 2202.08906). All means, also those
of statistics, are over the tokens of a group that are not padding, then over groups.
"""

from __future__ import annotations

from typing import NamedTuple

import gin

import meshtf as mtf
from transformer.experts.routing import (
    CAPACITY,
    CHOICE,
    EXPERTS,
    TOKENS,
    Capacity,
    Choices,
    ExpertQueues,
    Routing,
    gather_choices,
)


@gin.configurable
def top_2(
    logits: mtf.Tensor,
    nonpadding: mtf.Tensor | None = None,
    training: bool = False,
    capacity: Capacity | None = None,
    convention: str = "practice",
    threshold: float = 0.5,
    normalize: str = "before",
) -> Routing:
    """Returns the routing of GShard: two experts for each token, the second one sampled.

    In training a second choice is sampled with probability gate / threshold, at most 1.
    Otherwise all are taken. Gates are g1 / (g1 + g2) and g2 / (g1 + g2). The balance
    loss counts first choices.

    Args:
      logits: [*groups, length, experts_all].
      nonpadding: bool [*groups, length]; None: all are tokens.
      training: whether second choices are sampled, and which capacity is used.
      capacity: of experts; default: `Capacity()`.
      convention: "practice" is Lingvo's Top2GatingOnLogits: second choices that are not
        sampled are not queued, and the balance loss is as above. "published" is
        Algorithm 1 of the paper: they are queued, and the loss is divided by
        experts**2.
      threshold: second choices with at least this gate are always taken.
      normalize: whether gates are divided by their sum "before" choices are dropped or
        "after".

    Raises:
      ParseError: an unknown convention, or a value of `normalize` that it does not have.
    """
    published = _check_one_of(convention, "practice", "published") == "published"
    _check_one_of(normalize, *(("before",) if published else ("before", "after")))
    candidates = _top_candidates(logits, min(2, logits.shape[EXPERTS]), nonpadding)
    share = candidates.gates / mtf.reduce_sum(candidates.gates, CHOICE)
    sampled = _sampled_choices(share, threshold) if training else None
    if normalize == "before":
        candidates = candidates._replace(gates=share)
    if sampled is not None and not published:
        candidates = candidates._replace(valid=candidates.valid & sampled)
        sampled = None
    routing = _route_choices(
        candidates,
        capacity,
        training,
        num_counted=1,
        sampled=sampled,
        normalize_after=normalize == "after",
    )
    if published:
        routing.losses["balance"] *= 1.0 / logits.shape[EXPERTS] ** 2
    return routing


@gin.configurable
def switch(
    logits: mtf.Tensor,
    nonpadding: mtf.Tensor | None = None,
    training: bool = False,
    capacity: Capacity | None = None,
) -> Routing:
    """Returns the routing of the Switch Transformer: the likeliest expert, its
    probability as gate.

    Args:
      logits: [*groups, length, experts_all].
      nonpadding: bool [*groups, length]; None: all are tokens.
      training: which capacity counts.
      capacity: of experts; default: `Capacity()`.
    """
    return _route_choices(_top_candidates(logits, 1, nonpadding), capacity, training)


@gin.configurable
def top_k(
    logits: mtf.Tensor,
    nonpadding: mtf.Tensor | None = None,
    training: bool = False,
    capacity: Capacity | None = None,
    k: int = 2,
    normalize: str = "before",
) -> Routing:
    """Returns the routing to the k likeliest experts; the balance loss counts all
    choices.

    Args:
      logits: [*groups, length, experts_all].
      nonpadding: bool [*groups, length]; None: all are tokens.
      training: whether the capacity for training is used.
      capacity: of experts; default: `Capacity()`.
      k: the count of experts.
      normalize: whether the gates of a token are divided by their sum "before" choices
        are dropped, "after", or "never".

    Raises:
      ParseError: an unknown value of `normalize`.
      ShapeError: there are fewer than k experts.
    """
    _check_one_of(normalize, "before", "after", "never")
    _check_k(k, logits, f"top_k.k is {k}")
    candidates = _top_candidates(logits, k, nonpadding)
    if normalize == "before":
        candidates = candidates._replace(
            gates=candidates.gates / mtf.reduce_sum(candidates.gates, CHOICE)
        )
    return _route_choices(
        candidates, capacity, training, normalize_after=normalize == "after"
    )


@gin.configurable
def expert_choice(
    logits: mtf.Tensor,
    nonpadding: mtf.Tensor | None = None,
    training: bool = False,
    capacity: Capacity | None = None,
    k: int = 2,
) -> Routing:
    """Returns the routing in which each expert takes the tokens with the highest
    probability for it.

    A token gets k experts on average, some get none, and all experts have the same
    load, so there is no balance loss. A token's experts depend on later tokens: a
    language model trained with it gets information about the tokens that it predicts,
    which is missing in generation. So it is for encoders.

    Args:
      logits: [*groups, length, experts_all].
      nonpadding: bool [*groups, length]; None: all are tokens.
      training: whether the capacity for training is used.
      capacity: of experts; default: `Capacity()`. The paper's capacity factor is k
        times ours.
      k: experts of a token, on average.

    Raises:
      ShapeError: there are fewer than k experts.
    """
    _check_k(k, logits, f"expert_choice.k is {k}")
    candidates = _top_candidates(logits, 1, nonpadding)
    size = logits.shape.dim(TOKENS)
    slots = _slots(candidates, capacity, training, choices=k)
    score = candidates.probabilities
    if nonpadding is not None:
        score = mtf.where(nonpadding, score, -1.0)
    weights, tokens = mtf.top_k(score, TOKENS, mtf.Dimension(CAPACITY, slots))
    filled = mtf.cast(weights >= 0.0, "float32")
    tokens = mtf.where(weights >= 0.0, tokens, -1)
    num_experts = mtf.segment_sum(filled, tokens, size, candidates.groups)
    is_dropped = mtf.cast(num_experts < 0.5, "float32")
    return Routing(
        tokens,
        weights * filled,
        None,
        tokens,
        {"z": _z_loss(candidates)},
        load=_shares(mtf.reduce_sum(filled, CAPACITY)),
        dropped=_mean(is_dropped, candidates.is_token),
        entropy=_entropy(candidates),
    )


class _Candidates(NamedTuple):
    """The likeliest experts of each token, before capacity is applied."""

    logits: mtf.Tensor  # float32 [*groups, length, experts_all]
    probabilities: mtf.Tensor  # the same shape
    experts: mtf.Tensor  # int32 [*groups, choice, length], the likeliest first
    gates: mtf.Tensor  # float32, the same shape
    valid: mtf.Tensor  # bool, the same shape: whether the choice is queued
    is_token: mtf.Tensor  # float32 [*groups, length]: 1.0, or 0.0 for padding

    @property
    def groups(self) -> list[str]:
        return [n for n in self.logits.shape.names if n not in (TOKENS, EXPERTS)]


def _top_candidates(
    logits: mtf.Tensor, k: int, nonpadding: mtf.Tensor | None
) -> _Candidates:
    """Returns the k likeliest experts of each token."""
    logits = mtf.cast(logits, "float32")
    probabilities = mtf.softmax(logits, EXPERTS)
    gates, experts = mtf.top_k(probabilities, EXPERTS, mtf.Dimension(CHOICE, k))
    order = [
        *(n for n in gates.shape.names if n not in (TOKENS, CHOICE)),
        CHOICE,
        TOKENS,
    ]
    gates = mtf.transpose(gates, order)
    experts = mtf.transpose(experts, order)
    shape = logits.shape.without(EXPERTS)
    if nonpadding is None:
        nonpadding = mtf.ones(logits.mesh, shape, "bool")
    return _Candidates(
        logits,
        probabilities,
        experts,
        gates,
        mtf.broadcast(nonpadding, gates.shape),
        mtf.cast(nonpadding, "float32"),
    )


def _sampled_choices(gates: mtf.Tensor, threshold: float) -> mtf.Tensor:
    """Returns whether each choice is sampled: first choices always, second choices with
    probability gate / threshold.
    """
    u = mtf.random_uniform(
        gates.mesh, gates.shape.without(CHOICE), name="second_choices"
    )
    second = mtf.range(gates.mesh, gates.shape.dim(CHOICE)) > 0
    return mtf.where(second, gates > u * threshold, True)


def _route_choices(
    candidates: _Candidates,
    capacity: Capacity | None,
    training: bool,
    num_counted: int | None = None,
    sampled: mtf.Tensor | None = None,
    normalize_after: bool = False,
) -> Routing:
    """Returns the routing of choices: the first `capacity` of each expert's queue get a
    slot.

    Args:
      candidates: the choices, and whether they are queued.
      capacity: the capacity of experts.
      training: whether to use the capacity for training.
      num_counted: how many choices of a token the balance loss counts; None: all.
      sampled: whether a queued choice may get a slot; None: all may.
      normalize_after: whether the gates of a token are divided by their sum after
        choices are dropped.
    """
    queues = ExpertQueues(
        candidates.experts, candidates.valid, candidates.logits.shape.dim(EXPERTS)
    )
    choices = candidates.gates.shape[CHOICE]
    slots = _slots(candidates, capacity, training, choices)
    positions = mtf.where(candidates.valid, queues.positions, -1)
    has_slot = candidates.valid & (positions < slots)
    sources = queues.heads(slots)
    if sampled is not None:
        has_slot = has_slot & sampled
        sources = mtf.where(
            gather_choices(has_slot, sources) & (sources >= 0), sources, -1
        )
    gates = mtf.where(has_slot, candidates.gates, 0.0)
    if normalize_after:
        gates = mtf.math.divide_no_nan(gates, mtf.reduce_sum(gates, CHOICE))
    size = candidates.logits.shape[TOKENS]
    chosen = Choices(
        candidates.experts,
        gates,
        positions,
        has_slot,
        mtf.where(has_slot, candidates.experts * slots + positions, -1),
    )
    dropped = 1.0 - mtf.reduce_mean(mtf.cast(has_slot, "float32"), CHOICE)
    return Routing(
        mtf.where(sources >= 0, mtf.math.floormod(sources, size), -1),
        gather_choices(gates, sources),
        chosen,
        sources,
        {
            "balance": _balance(
                candidates, queues.count(num_counted or choices), num_counted or choices
            ),
            "z": _z_loss(candidates),
        },
        load=_shares(mtf.cast(queues.counts, "float32")),
        dropped=_mean(dropped, candidates.is_token),
        entropy=_entropy(candidates),
    )


def _slots(
    candidates: _Candidates, capacity: Capacity | None, training: bool, choices: int
) -> int:
    shape = candidates.logits.shape
    return (capacity or Capacity()).slots(
        choices, shape[TOKENS], shape[EXPERTS], training
    )


def _balance(
    candidates: _Candidates, counts: mtf.Tensor, num_counted: int
) -> mtf.Tensor:
    tokens = mtf.maximum(mtf.reduce_sum(candidates.is_token, TOKENS), 1.0)
    mean = (
        mtf.reduce_sum(candidates.probabilities * candidates.is_token, TOKENS) / tokens
    )
    share = mtf.cast(counts, "float32") / tokens * (1.0 / num_counted)
    return mtf.reduce_mean(mtf.reduce_sum(share * mean, EXPERTS)) * float(
        counts.shape[EXPERTS]
    )


def _z_loss(candidates: _Candidates) -> mtf.Tensor:
    return _mean(
        mtf.square(mtf.reduce_logsumexp(candidates.logits, EXPERTS)),
        candidates.is_token,
    )


def _entropy(candidates: _Candidates) -> mtf.Tensor:
    """Returns the mean entropy of the probabilities of a token, in nats."""
    logs = mtf.log_softmax(candidates.logits, EXPERTS)
    return _mean(
        -mtf.reduce_sum(candidates.probabilities * logs, EXPERTS), candidates.is_token
    )


def _mean(x: mtf.Tensor, is_token: mtf.Tensor) -> mtf.Tensor:
    """Returns the mean over groups of means over tokens; microbatches do not change it."""
    tokens = mtf.maximum(mtf.reduce_sum(is_token, TOKENS), 1.0)
    return mtf.reduce_mean(mtf.reduce_sum(x * is_token, TOKENS) / tokens)


def _shares(counts: mtf.Tensor) -> mtf.Tensor:
    """Returns the fraction of the choices of a group that went to each expert, as a mean
    over groups: [experts_all].

    The mean over sharded groups stays a partial sum until the values are read.
    """
    choices = mtf.maximum(mtf.reduce_sum(counts, EXPERTS), 1.0)
    group_dims = [name for name in counts.shape.names if name != EXPERTS]
    return mtf.reduce_mean(counts / choices, group_dims)


def _check_k(k: int, logits: mtf.Tensor, message: str) -> None:
    """Raises ShapeError unless k is from 1 to the count of experts."""
    if not 1 <= k <= logits.shape[EXPERTS]:
        raise mtf.ShapeError(
            f"{message}, but there are {logits.shape[EXPERTS]} experts: a token goes "
            "through 1 to all of them.\n  Use a smaller k, or more "
            "MixtureOfExperts.experts."
        )


def _check_one_of(value: str, *known: str) -> str:
    """Returns a value. Raises ParseError: it is none of the known ones."""
    if value not in known:
        raise mtf.ParseError(
            f"expected one of {', '.join(map(repr, known))}, not {value!r}."
        )
    return value
