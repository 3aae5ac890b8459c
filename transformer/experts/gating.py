"""Gating functions: assign tokens to experts, at most `capacity` tokens of a group to each
expert.

    routing = switch(logits, training=True)         # logits [batch length experts_all]
    routing.choices.slots                           # [batch choice length], -1: dropped
    routing.tokens                                  # [batch experts_all capacity], -1: empty
    loss = loss + 1e-2 * routing.losses["balance"]

A gating is a function of logits [*groups, length, experts_all]. Each group, here an example
of the batch, is routed independently. A *choice* is an expert that a token would like to go
through, a *slot* the storage of one token at one expert, and a *gate* the weight of the
expert's result. The choices of a group are queued: first choices of all tokens, in the order
of tokens, then all second choices, and so on; an expert takes the first `capacity` choices of
its queue. So if slots run out, second choices are dropped before first choices. Whether a
first choice gets a slot depends only on earlier tokens.

    top_2           GShard (Lepikhin et al. 2020, arXiv 2006.16668), as in its code or its paper
    switch          Switch Transformer (Fedus et al. 2021, arXiv 2101.03961)
    top_k           the k likeliest, gates as in Mixtral (Jiang et al. 2024, arXiv 2401.04088)
    expert_choice   experts choose tokens (Zhou et al. 2022, arXiv 2202.09368)

Losses are not weighted, and padding counts in none. "balance" is E * sum_e f_e * P_e (Switch,
equation 4), the mean over groups, weighted by their counts of tokens: E is the count of
experts, f_e the fraction of choices of expert e before any is dropped, and P_e the mean of its
probability. It is 1 if all experts have equal load. "z" is the mean over tokens of
logsumexp(logits)**2 (Zoph et al. 2022, arXiv 2202.08906).
"""

from __future__ import annotations

import gin

import meshtf as mtf
from transformer.experts.router_statistics import (
    Candidates,
    balance_loss,
    expert_load,
    mean_entropy,
    top_candidates,
    z_loss,
)
from transformer.experts.routing import (
    CAPACITY,
    CHOICE,
    EXPERTS,
    TOKENS,
    Capacity,
    Choices,
    ExpertQueues,
    Routing,
    check_count,
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

    In training, a second choice is taken with probability gate / threshold, at most 1;
    otherwise, every second choice is taken. For probabilities p1 and p2 of the two
    experts, gates are p1 / (p1 + p2) and p2 / (p1 + p2). The balance loss counts first
    choices only.

    Args:
      logits: the router's logits, [*groups, length, experts_all].
      nonpadding: bool [*groups, length], False at padding; None: there is no padding.
      training: whether second choices are sampled, and the capacity for training is used.
      capacity: the capacity of experts; None: `Capacity()`.
      convention: "practice" is Lingvo's Top2GatingOnLogits: second choices that are not
        sampled are not queued, and the balance loss is as above. "published"
        is Algorithm 1 of the paper: second choices that are not sampled are queued, too,
        but get no slot, and the balance loss is divided by experts**2.
      threshold: second choices with at least this gate are always taken.
      normalize: "before": gates are divided by their sum before choices are dropped;
        "after": gates of the choices that are not dropped are divided by their sum.

    Raises:
      ParseError: an unknown `convention` or `normalize`, or "published" with "after".
    """
    _check_one_of(convention, "practice", "published")
    is_published = convention == "published"
    if is_published:
        _check_one_of(normalize, "before")
    else:
        _check_one_of(normalize, "before", "after")
    num_experts = logits.shape[EXPERTS]
    candidates = top_candidates(logits, k=min(2, num_experts), nonpadding=nonpadding)
    normalized_gates = candidates.gates / mtf.reduce_sum(candidates.gates, CHOICE)
    if normalize == "before":
        candidates = candidates._replace(gates=normalized_gates)
    may_have_slot = None
    if training:
        is_sampled = _sample_choices(normalized_gates, threshold)
        if is_published:
            may_have_slot = is_sampled
        else:
            candidates = candidates._replace(valid=candidates.valid & is_sampled)
    routing = _route_choices(
        candidates,
        capacity,
        training=training,
        num_counted=1,
        may_have_slot=may_have_slot,
        normalize_after=normalize == "after",
    )
    if is_published:
        routing.losses["balance"] *= 1.0 / num_experts**2
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
      logits: the router's logits, [*groups, length, experts_all].
      nonpadding: bool [*groups, length], False at padding; None: there is no padding.
      training: whether the capacity for training is used.
      capacity: the capacity of experts; None: `Capacity()`.
    """
    candidates = top_candidates(logits, k=1, nonpadding=nonpadding)
    return _route_choices(candidates, capacity, training=training)


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
      logits: the router's logits, [*groups, length, experts_all].
      nonpadding: bool [*groups, length], False at padding; None: there is no padding.
      training: whether the capacity for training is used.
      capacity: the capacity of experts; None: `Capacity()`.
      k: the count of experts of a token.
      normalize: "before": the gates of a token are divided by their sum before choices
        are dropped; "after": gates of the choices that are not dropped are divided by
        their sum; "never": gates are the probabilities.

    Raises:
      ParseError: an unknown value of `normalize`, or k is not an integer, at least 1.
      ShapeError: there are fewer than k experts.
    """
    _check_one_of(normalize, "before", "after", "never")
    _check_k(k, logits, setting="top_k.k")
    candidates = top_candidates(logits, k=k, nonpadding=nonpadding)
    if normalize == "before":
        candidates = candidates._replace(
            gates=candidates.gates / mtf.reduce_sum(candidates.gates, CHOICE)
        )
    return _route_choices(
        candidates,
        capacity,
        training=training,
        normalize_after=normalize == "after",
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
    probability for this expert.

    A token gets k experts on average, some get none, and all experts have the same load,
    so there is no balance loss. This routing is for encoders: the experts of a token
    depend on later tokens, which a language model must not see when it predicts them.

    Args:
      logits: the router's logits, [*groups, length, experts_all].
      nonpadding: bool [*groups, length], False at padding; None: there is no padding.
      training: whether the capacity for training is used.
      capacity: the capacity of experts; None: `Capacity()`. The paper's capacity factor
        is k times the factor of `Capacity`.
      k: the mean count of experts of a token.

    Raises:
      ParseError: k is not an integer, at least 1.
      ShapeError: there are fewer than k experts.
    """
    _check_k(k, logits, setting="expert_choice.k")
    # Experts choose among all tokens: only the probabilities of the candidates are used.
    candidates = top_candidates(logits, k=1, nonpadding=nonpadding)
    token_dim = logits.shape.dim(TOKENS)
    num_slots, is_available = _slots(candidates, capacity, training, choices=k)
    scores = candidates.probabilities
    if nonpadding is not None:
        # Lower than any probability: padding comes last.
        scores = mtf.where(nonpadding, scores, -1.0)
    # The scores and indices of the tokens that each expert takes.
    weights, tokens = mtf.top_k(scores, TOKENS, mtf.Dimension(CAPACITY, num_slots))
    # A negative score is that of padding: the slot stays empty.
    has_token = weights >= 0.0
    if is_available is not None:
        has_token = has_token & is_available
    is_filled = mtf.cast(has_token, "float32")
    tokens = mtf.where(has_token, tokens, -1)
    experts_per_token = mtf.segment_sum(
        is_filled, tokens, dim=token_dim, batch=candidates.groups
    )
    # The count is an integer in float32, so less than 0.5 means 0.
    is_dropped = mtf.cast(experts_per_token < 0.5, "float32")
    return Routing(
        tokens=tokens,
        weights=weights * is_filled,
        choices=None,
        sources=tokens,
        losses={"z": z_loss(candidates)},
        load=expert_load(candidates, mtf.reduce_sum(is_filled, CAPACITY)),
        dropped=candidates.mean(is_dropped),
        entropy=mean_entropy(candidates),
        num_tokens=candidates.num_tokens,
    )


def _sample_choices(gates: mtf.Tensor, threshold: float) -> mtf.Tensor:
    """Returns whether each choice is sampled: first choices always, second choices with
    probability gate / threshold. Bool, shaped as gates [*groups, choice, length].
    """
    # One number from 0 to 1 for the second choice of each token.
    random_numbers = mtf.random_uniform(
        gates.mesh, gates.shape.without(CHOICE), name="second_choices"
    )
    is_second = mtf.range(gates.mesh, gates.shape.dim(CHOICE)) > 0
    return mtf.where(is_second, gates > random_numbers * threshold, True)


def _route_choices(
    candidates: Candidates,
    capacity: Capacity | None,
    training: bool,
    num_counted: int | None = None,
    may_have_slot: mtf.Tensor | None = None,
    normalize_after: bool = False,
) -> Routing:
    """Returns the routing in which the first `capacity` choices of each expert's queue get
    a slot.

    Args:
      candidates: the choices, and whether they are queued.
      capacity: the capacity of experts; None: `Capacity()`.
      training: whether the capacity for training is used.
      num_counted: the count of choices of a token that the balance loss counts; None: all.
      may_have_slot: whether a queued choice may get a slot, bool [*groups, choice,
        length]; None: all may.
      normalize_after: whether the gates of a token are divided by their sum after
        choices are dropped.
    """
    queues = ExpertQueues(
        candidates.experts,
        valid=candidates.valid,
        dim=candidates.logits.shape.dim(EXPERTS),
    )
    num_choices = candidates.gates.shape[CHOICE]
    num_slots, is_available = _slots(candidates, capacity, training, num_choices)
    positions = mtf.where(candidates.valid, queues.positions, -1)
    # The choice in each slot, as the integer choice * tokens + token.
    sources = queues.front(num_slots)
    limit: mtf.Tensor | int = num_slots
    if is_available is not None:
        limit = mtf.reduce_sum(mtf.cast(is_available, "int32"), CAPACITY)
        sources = mtf.where(is_available, sources, -1)
    has_slot = candidates.valid & (positions < limit)
    if may_have_slot is not None:
        has_slot = has_slot & may_have_slot
        # The slots of choices that may have none stay empty.
        is_filled = gather_choices(has_slot, sources) & (sources >= 0)
        sources = mtf.where(is_filled, sources, -1)
    gates = mtf.where(has_slot, candidates.gates, 0.0)
    if normalize_after:
        gates = mtf.math.divide_no_nan(gates, mtf.reduce_sum(gates, CHOICE))
    choices = Choices(
        experts=candidates.experts,
        gates=gates,
        positions=positions,
        has_slot=has_slot,
        slots=mtf.where(has_slot, candidates.experts * num_slots + positions, -1),
    )
    # The token in each slot: `sources` without the choice.
    num_tokens = candidates.logits.shape[TOKENS]
    tokens = mtf.where(sources >= 0, mtf.math.floormod(sources, num_tokens), -1)
    weights = gather_choices(gates, sources)
    if num_counted is None:
        num_counted = num_choices
    counts = queues.count(num_counted)
    balance = balance_loss(candidates, counts, num_counted=num_counted)
    dropped = 1.0 - mtf.reduce_mean(mtf.cast(has_slot, "float32"), CHOICE)
    return Routing(
        tokens=tokens,
        weights=weights,
        choices=choices,
        sources=sources,
        losses={"balance": balance, "z": z_loss(candidates)},
        load=expert_load(candidates, mtf.cast(queues.counts, "float32")),
        dropped=candidates.mean(dropped),
        entropy=mean_entropy(candidates),
        num_tokens=candidates.num_tokens,
    )


def _slots(
    candidates: Candidates, capacity: Capacity | None, training: bool, choices: int
) -> tuple[int, mtf.Tensor | None]:
    """Returns the count of slots of an expert for the largest group, and whether an expert
    has each of them for a group, bool [*groups, capacity]; None: it has all.

    Args:
      candidates: the candidates, whose shape has the counts of tokens and experts.
      capacity: the capacity of experts; None: `Capacity()`.
      training: whether the capacity for training is used.
      choices: the count of choices of a token.
    """
    if capacity is None:
        capacity = Capacity()
    shape = candidates.logits.shape
    sizes = (choices, shape[TOKENS], shape[EXPERTS], training)
    num_slots = capacity.slots(*sizes)
    if candidates.group_tokens is None:
        return num_slots, None
    thresholds = capacity.tokens_per_slot(*sizes)
    if thresholds == list(range(1, num_slots + 1)):
        return num_slots, None  # as many slots as tokens: no queue is longer
    mesh = candidates.logits.mesh
    assert mesh is not None, "logits have the mesh of the router's kernel"
    needed_tokens = mtf.constant(mesh, thresholds, CAPACITY, "float32")
    is_available = mtf.outer(candidates.group_tokens, needed_tokens, mtf.greater_equal)
    return num_slots, is_available


def _check_k(k: int, logits: mtf.Tensor, setting: str) -> None:
    """Raises an error unless k, the value of a setting, is an integer from 1 to the count of
    experts.
    """
    check_count(setting, k, minimum=1)
    if k > logits.shape[EXPERTS]:
        raise mtf.ShapeError(
            f"{setting} is {k}, but there are {logits.shape[EXPERTS]} experts: a token goes "
            "through 1 to all of them.\n  Use a smaller k, or more "
            "MixtureOfExperts.experts."
        )


def _check_one_of(value: str, *known: str) -> None:
    """Raises ParseError if a value is none of the known ones."""
    if value not in known:
        raise mtf.ParseError(
            f"expected one of {', '.join(map(repr, known))}, not {value!r}."
        )
