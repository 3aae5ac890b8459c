"""Gating functions: assign tokens to experts, at most `capacity` tokens of a group to each
expert.

    routing = switch(logits, training=True)         # [batch length experts_all]; group: example
    routing.choices.slots                           # [batch choice length], -1: dropped
    routing.tokens                                  # [batch experts_all capacity], -1: empty
    loss = loss + 1e-2 * routing.losses["balance"]

A gating is a function of logits [*groups, length, experts_all]. All other dimensions are
groups, which are routed independently. The choices of a group are queued: all first choices
in the order of the tokens, then all second ones, and so on; an expert takes the first
`capacity` of its queue. So if slots run out, a second choice can be dropped in favour of
first choices of later tokens; a first choice depends on earlier tokens only.

    top_2           GShard (Lepikhin et al. 2020, arXiv 2006.16668), as run or as published
    switch          Switch Transformer (Fedus et al. 2021, arXiv 2101.03961)
    top_k           the k likeliest, gates as in Mixtral (Jiang et al. 2024, arXiv 2401.04088)
    expert_choice   experts choose tokens (Zhou et al. 2022, arXiv 2202.09368)

Losses are not weighted. "balance" is E * sum_e f_e * P_e (Switch, equation 4), the
mean over groups: f_e is the fraction of choices of expert e before any is dropped, P_e the
mean of its probability; it is 1 where all experts have equal shares. "z" is the mean of
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
    at_entries,
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

    In training a second choice is kept with probability gate / threshold, at most 1.
    Otherwise all are kept. Gates are g1 / (g1 + g2) and g2 / (g1 + g2). The balance
    loss counts first choices.

    Args:
      logits: [*groups, length, experts_all].
      nonpadding: bool [*groups, length]; None: all are tokens.
      training: whether second choices are drawn, and which capacity counts.
      capacity: of experts; default: `Capacity()`.
      convention: "practice" is what Lingvo's Top2GatingOnLogits does: second choices
        that are not drawn take no slots, and the balance loss is as above. "published"
        is Algorithm 1 of the paper: they are queued nevertheless, and the loss is
        divided by experts**2.
      threshold: the gate from which on second choices are always kept.
      normalize: whether gates are divided by their sum "before" choices are dropped or
        "after".

    Raises:
      ParseError: there is no such convention, or none that normalizes so.
    """
    published = _one_of(convention, "practice", "published") == "published"
    _one_of(normalize, *(("before",) if published else ("before", "after")))
    likely = _likeliest(logits, min(2, logits.shape[EXPERTS]), nonpadding)
    share = likely.gates / mtf.reduce_sum(likely.gates, CHOICE)
    drawn = _drawn(share, threshold) if training else None
    if normalize == "before":
        likely = likely._replace(gates=share)
    if drawn is not None and not published:
        likely = likely._replace(valid=likely.valid & drawn)
        drawn = None
    routing = _route_choices(
        likely,
        capacity,
        training,
        counted=1,
        drawn=drawn,
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
    return _route_choices(_likeliest(logits, 1, nonpadding), capacity, training)


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
      training: which capacity counts.
      capacity: of experts; default: `Capacity()`.
      k: how many experts.
      normalize: whether the gates of a token are divided by their sum "before" choices
        are dropped, "after", or "never".

    Raises:
      ParseError: gates are to be normalized in no such way.
      ShapeError: there are fewer than k experts.
    """
    _one_of(normalize, "before", "after", "never")
    _check_k(k, logits, f"top_k.k is {k}")
    likely = _likeliest(logits, k, nonpadding)
    if normalize == "before":
        likely = likely._replace(
            gates=likely.gates / mtf.reduce_sum(likely.gates, CHOICE)
        )
    return _route_choices(
        likely, capacity, training, normalize_after=normalize == "after"
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
    language model trained with it sees something of the tokens it is to predict, and
    does not when it generates text. So it is for encoders.

    Args:
      logits: [*groups, length, experts_all].
      nonpadding: bool [*groups, length]; None: all are tokens.
      training: which capacity counts.
      capacity: of experts; default: `Capacity()`. The paper's capacity factor is k
        times ours.
      k: experts of a token, on average.

    Raises:
      ShapeError: there are fewer than k experts.
    """
    _check_k(k, logits, f"expert_choice.k is {k}")
    likely = _likeliest(logits, 1, nonpadding)
    size = logits.shape.dim(TOKENS)
    slots = _slots(likely, capacity, training, choices=k)
    score = likely.probabilities
    if nonpadding is not None:
        score = mtf.where(nonpadding, score, -1.0)
    weights, tokens = mtf.top_k(score, TOKENS, mtf.Dimension(CAPACITY, slots))
    filled = mtf.cast(weights >= 0.0, "float32")
    tokens = mtf.where(weights >= 0.0, tokens, -1)
    num_experts = mtf.segment_sum(filled, tokens, size, likely.groups)
    is_dropped = mtf.cast(num_experts < 0.5, "float32")
    return Routing(
        tokens,
        weights * filled,
        None,
        tokens,
        {"z": _z_loss(likely)},
        load=_shares(mtf.reduce_sum(filled, CAPACITY)),
        dropped=_mean(is_dropped, likely.real),
        entropy=_entropy(likely),
    )


class _Likely(NamedTuple):
    """The likeliest experts of tokens, before capacity is applied."""

    logits: mtf.Tensor  # float32 [*groups, length, experts_all]
    probabilities: mtf.Tensor  # the same shape
    experts: mtf.Tensor  # int32 [*groups, choice, length], the likeliest first
    gates: mtf.Tensor  # float32, the same shape
    valid: mtf.Tensor  # bool, the same shape: whether the choice is queued
    real: mtf.Tensor  # float32 [*groups, length]: 1; 0 for padding

    @property
    def groups(self) -> list[str]:
        return [n for n in self.logits.shape.names if n not in (TOKENS, EXPERTS)]


def _likeliest(logits: mtf.Tensor, k: int, nonpadding: mtf.Tensor | None) -> _Likely:
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
    return _Likely(
        logits,
        probabilities,
        experts,
        gates,
        mtf.broadcast(nonpadding, gates.shape),
        mtf.cast(nonpadding, "float32"),
    )


def _drawn(gates: mtf.Tensor, threshold: float) -> mtf.Tensor:
    """Returns which choices are sampled: all first ones, and second ones with
    probability gate / threshold.
    """
    u = mtf.random_uniform(
        gates.mesh, gates.shape.without(CHOICE), name="second_choices"
    )
    second = mtf.range(gates.mesh, gates.shape.dim(CHOICE)) > 0
    return mtf.where(second, gates > u * threshold, True)


def _route_choices(
    likely: _Likely,
    capacity: Capacity | None,
    training: bool,
    counted: int | None = None,
    drawn: mtf.Tensor | None = None,
    normalize_after: bool = False,
) -> Routing:
    """Returns the routing of choices: the first `capacity` of each expert's queue get a
    slot.

    Args:
      likely: the choices, and which of them are queued.
      capacity: of experts.
      training: whether to use the capacity for training.
      counted: the balance loss counts this many choices of a token; None: all.
      drawn: which queued choices may get a slot; None: all.
      normalize_after: whether the gates of a token are divided by their sum after
        choices are dropped.
    """
    queues = ExpertQueues(
        likely.experts, likely.valid, likely.logits.shape.dim(EXPERTS)
    )
    choices = likely.gates.shape[CHOICE]
    slots = _slots(likely, capacity, training, choices)
    positions = mtf.where(likely.valid, queues.positions, -1)
    kept = likely.valid & (positions < slots)
    sources = queues.heads(slots)
    if drawn is not None:
        kept = kept & drawn
        sources = mtf.where(at_entries(kept, sources) & (sources >= 0), sources, -1)
    gates = mtf.where(kept, likely.gates, 0.0)
    if normalize_after:
        gates = mtf.math.divide_no_nan(gates, mtf.reduce_sum(gates, CHOICE))
    size = likely.logits.shape[TOKENS]
    chosen = Choices(
        likely.experts,
        gates,
        positions,
        kept,
        mtf.where(kept, likely.experts * slots + positions, -1),
    )
    dropped = 1.0 - mtf.reduce_mean(mtf.cast(kept, "float32"), CHOICE)
    return Routing(
        mtf.where(sources >= 0, mtf.math.floormod(sources, size), -1),
        at_entries(gates, sources),
        chosen,
        sources,
        {
            "balance": _balance(
                likely, queues.count(counted or choices), counted or choices
            ),
            "z": _z_loss(likely),
        },
        load=_shares(mtf.cast(queues.counts, "float32")),
        dropped=_mean(dropped, likely.real),
        entropy=_entropy(likely),
    )


def _slots(
    likely: _Likely, capacity: Capacity | None, training: bool, choices: int
) -> int:
    shape = likely.logits.shape
    return (capacity or Capacity()).slots(
        choices, shape[TOKENS], shape[EXPERTS], training
    )


def _balance(likely: _Likely, counts: mtf.Tensor, counted: int) -> mtf.Tensor:
    tokens = mtf.maximum(mtf.reduce_sum(likely.real, TOKENS), 1.0)
    mean = mtf.reduce_sum(likely.probabilities * likely.real, TOKENS) / tokens
    share = mtf.cast(counts, "float32") / tokens * (1.0 / counted)
    return mtf.reduce_mean(mtf.reduce_sum(share * mean, EXPERTS)) * float(
        counts.shape[EXPERTS]
    )


def _z_loss(likely: _Likely) -> mtf.Tensor:
    return _mean(mtf.square(mtf.reduce_logsumexp(likely.logits, EXPERTS)), likely.real)


def _entropy(likely: _Likely) -> mtf.Tensor:
    """Returns the mean entropy of the probabilities of a token, in nats."""
    logs = mtf.log_softmax(likely.logits, EXPERTS)
    return _mean(-mtf.reduce_sum(likely.probabilities * logs, EXPERTS), likely.real)


def _mean(x: mtf.Tensor, real: mtf.Tensor) -> mtf.Tensor:
    """Returns the mean over groups of means over tokens; microbatches do not change it."""
    tokens = mtf.maximum(mtf.reduce_sum(real, TOKENS), 1.0)
    return mtf.reduce_mean(mtf.reduce_sum(x * real, TOKENS) / tokens)


def _shares(counts: mtf.Tensor) -> mtf.Tensor:
    """Returns the fraction of the choices of a group that went to each expert, as a mean
    over groups: [experts_all].

    The mean over sharded groups stays a partial sum until the values are read.
    """
    choices = mtf.maximum(mtf.reduce_sum(counts, EXPERTS), 1.0)
    group_dims = [name for name in counts.shape.names if name != EXPERTS]
    return mtf.reduce_mean(counts / choices, group_dims)


def _check_k(k: int, logits: mtf.Tensor, message: str) -> None:
    """Raises ShapeError unless k is from 1 to the number of experts."""
    if not 1 <= k <= logits.shape[EXPERTS]:
        raise mtf.ShapeError(
            f"{message}, and there are {logits.shape[EXPERTS]} experts: a token goes "
            "through 1 to all of them.\n  Take a k of at most so many, or more "
            "MixtureOfExperts.experts."
        )


def _one_of(value: str, *known: str) -> str:
    """Returns a value that is one of the known ones. Raises ParseError."""
    if value not in known:
        raise mtf.ParseError(
            f"one of {', '.join(map(repr, known))} is wanted here, not {value!r}."
        )
    return value
