"""Gatings: which experts work on which tokens, each expert on at most `capacity` of a
group's.

    routing = switch(logits, training=True)         # [batch length experts_all]: a group is a row
    routing.choices.slots                           # [batch choice length], -1: dropped
    routing.tokens                                  # [batch experts_all capacity], -1: empty
    loss = loss + 1e-2 * routing.losses["balance"]

A gating is a function of logits [*groups, length, experts_all]. All names but these two
are groups, which know nothing of each other. The choices of a group queue up: all first
choices in the order of the tokens, then all second ones, and so on; an expert takes the
first `capacity` of its queue. So where slots are short, a second choice can be dropped
for later tokens' first ones; a first choice depends on earlier tokens alone.

    top_2           GShard (Lepikhin et al. 2020, arXiv 2006.16668), as run or as published
    switch          Switch Transformer (Fedus et al. 2021, arXiv 2101.03961)
    top_k           the k likeliest, gates as in Mixtral (Jiang et al. 2024, arXiv 2401.04088)
    expert_choice   experts choose tokens (Zhou et al. 2022, arXiv 2202.09368)

Losses have no weights yet. "balance" is E * sum_e f_e * P_e (Switch, equation 4), the
mean over groups: f_e is the share of choices of expert e before any is dropped, P_e the
mean of its probability; 1 where all experts are alike. "z" is the mean of
logsumexp(logits)**2 (Zoph et al. 2022, arXiv 2202.08906). All means, of statistics too,
are means over groups of what is found in each group's tokens that are no padding.
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
    Line,
    Routing,
    at_rows,
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
    """Returns the routing of GShard: two experts for each token, the second one by
    chance.

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
        is Algorithm 1 of the
        paper: they stand in the queue all the same, and the loss is divided by
          experts**2.
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
        likely, drawn = likely._replace(there=likely.there & drawn), None
    routing = _queue_up(
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

    Arguments are those of `top_2`.
    """
    return _queue_up(_likeliest(logits, 1, nonpadding), capacity, training)


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
    _refuse_more_than_all(k, logits, f"top_k.k is {k}")
    likely = _likeliest(logits, k, nonpadding)
    if normalize == "before":
        likely = likely._replace(
            gates=likely.gates / mtf.reduce_sum(likely.gates, CHOICE)
        )
    return _queue_up(likely, capacity, training, normalize_after=normalize == "after")


@gin.configurable
def expert_choice(
    logits: mtf.Tensor,
    nonpadding: mtf.Tensor | None = None,
    training: bool = False,
    capacity: Capacity | None = None,
    k: int = 2,
) -> Routing:
    """Returns the routing in which each expert takes the tokens that are likeliest to
    want it.

    A token gets k experts on average, some get none, and all experts have the same
    load, so there is no balance loss. A token's experts depend on later tokens: a
    language model that is trained so sees something of what it is to predict, and
    writes without it. This is for encoders.

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
    _refuse_more_than_all(k, logits, f"expert_choice.k is {k}")
    likely = _likeliest(logits, 1, nonpadding)
    size = logits.shape.dim(TOKENS)
    slots = _slots(likely, capacity, training, choices=k)
    score = likely.probabilities
    if nonpadding is not None:
        score = mtf.where(nonpadding, score, -1.0)
    weights, tokens = mtf.top_k(score, TOKENS, mtf.Dimension(CAPACITY, slots))
    filled = mtf.cast(weights >= 0.0, "float32")
    tokens = mtf.where(weights >= 0.0, tokens, -1)
    taken = mtf.segment_sum(filled, tokens, size, likely.groups)
    left = mtf.cast(taken < 0.5, "float32")
    return Routing(
        tokens,
        weights * filled,
        None,
        tokens,
        {"z": _z_loss(likely)},
        load=_shares(mtf.reduce_sum(filled, CAPACITY)),
        dropped=_mean(left, likely.real),
        entropy=_entropy(likely),
    )


class _Likely(NamedTuple):
    """What tokens would like."""

    logits: mtf.Tensor  # float32 [*groups, length, experts_all]
    probabilities: mtf.Tensor  # the same shape
    experts: mtf.Tensor  # int32 [*groups, choice, length], the likeliest first
    gates: mtf.Tensor  # float32, the same shape
    there: mtf.Tensor  # bool, the same shape: what stands in a queue
    real: mtf.Tensor  # float32 [*groups, length]: 1; 0 for padding

    @property
    def groups(self) -> list[str]:
        return [n for n in self.logits.shape.names if n not in (TOKENS, EXPERTS)]


def _likeliest(logits: mtf.Tensor, k: int, nonpadding: mtf.Tensor | None) -> _Likely:
    logits = mtf.cast(logits, "float32")
    probabilities = mtf.softmax(logits, EXPERTS)
    gates, experts = mtf.top_k(probabilities, EXPERTS, mtf.Dimension(CHOICE, k))
    order = [
        *(n for n in gates.shape.names if n not in (TOKENS, CHOICE)),
        CHOICE,
        TOKENS,
    ]
    gates, experts = mtf.transpose(gates, order), mtf.transpose(experts, order)
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
    """Returns which choices are kept: all first ones, a second one with chance gate /
    threshold.
    """
    u = mtf.random_uniform(
        gates.mesh, gates.shape.without(CHOICE), name="second_choices"
    )
    second = mtf.range(gates.mesh, gates.shape.dim(CHOICE)) > 0
    return mtf.where(second, gates > u * threshold, True)


def _queue_up(
    likely: _Likely,
    capacity: Capacity | None,
    training: bool,
    counted: int | None = None,
    drawn: mtf.Tensor | None = None,
    normalize_after: bool = False,
) -> Routing:
    """Returns the routing of choices that queue up at their experts.

    Args:
      likely: the choices, and which of them stand in a queue.
      capacity: of experts.
      training: which capacity counts.
      counted: the balance loss counts this many first choices; None: all.
      drawn: which choices an expert works on if their turn comes; None: all.
      normalize_after: whether the gates of a token are divided by their sum in the end.
    """
    line = Line(likely.experts, likely.there, likely.logits.shape.dim(EXPERTS))
    choices = likely.gates.shape[CHOICE]
    slots = _slots(likely, capacity, training, choices)
    positions = mtf.where(likely.there, line.positions, -1)
    kept, sources = likely.there & (positions < slots), line.heads(slots)
    if drawn is not None:
        kept = kept & drawn
        sources = mtf.where(at_rows(kept, sources) & (sources >= 0), sources, -1)
    gates = mtf.where(kept, likely.gates, 0.0)
    if normalize_after:
        gates = mtf.divide_no_nan(gates, mtf.reduce_sum(gates, CHOICE))
    size = likely.logits.shape[TOKENS]
    chosen = Choices(
        likely.experts,
        gates,
        positions,
        kept,
        mtf.where(kept, likely.experts * slots + positions, -1),
    )
    lost = 1.0 - mtf.reduce_mean(mtf.cast(kept, "float32"), CHOICE)
    return Routing(
        mtf.where(sources >= 0, mtf.floormod(sources, size), -1),
        at_rows(gates, sources),
        chosen,
        sources,
        {
            "balance": _balance(
                likely, line.count(counted or choices), counted or choices
            ),
            "z": _z_loss(likely),
        },
        load=_shares(mtf.cast(line.counts, "float32")),
        dropped=_mean(lost, likely.real),
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
    logs = mtf.log_softmax(likely.logits, EXPERTS)
    return _mean(-mtf.reduce_sum(likely.probabilities * logs, EXPERTS), likely.real)


def _mean(x: mtf.Tensor, real: mtf.Tensor) -> mtf.Tensor:
    """Returns the mean over groups of means over tokens: no microbatch changes it."""
    tokens = mtf.maximum(mtf.reduce_sum(real, TOKENS), 1.0)
    return mtf.reduce_mean(mtf.reduce_sum(x * real, TOKENS) / tokens)


def _shares(counts: mtf.Tensor) -> mtf.Tensor:
    """Returns each expert's share of a group's choices [*groups, experts_all], the mean
    over groups.

    So only sums over groups are left to do, which can wait until somebody asks.
    """
    shares = counts / mtf.maximum(mtf.reduce_sum(counts, EXPERTS), 1.0)
    return mtf.reduce_mean(shares, [n for n in counts.shape.names if n != EXPERTS])


def _refuse_more_than_all(k: int, logits: mtf.Tensor, says: str) -> None:
    """Refuses more experts of a token than there are, and none. Raises ShapeError."""
    if not 1 <= k <= logits.shape[EXPERTS]:
        raise mtf.ShapeError(
            f"{says}, and there are {logits.shape[EXPERTS]} experts: a token goes "
            "through 1 to all of them.\n  Take a k of at most so many, or more "
            "MixtureOfExperts.experts."
        )


def _one_of(given: str, *known: str) -> str:
    if given not in known:
        raise mtf.ParseError(
            f"one of {', '.join(map(repr, known))} is wanted here, not {given!r}."
        )
    return given
