"""The losses and statistics of a router: means over tokens.

    candidates = top_candidates(logits, k=2, nonpadding=None)
    z_loss(candidates)                                # a scalar
    balance_loss(candidates, counts, num_counted=1)   # counts [*groups, experts_all]

A gating function takes the likeliest experts of each token, the *candidates*, gives slots
(the storage of one token at one expert) to some candidates, and computes auxiliary losses
from all. The formulae are in `transformer.experts.gating`. Padding does not count in means.
They are weighted means (`mtf.layers.weighted_mean`), so microbatches of different counts of
tokens give those of the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import meshtf as mtf
from transformer.experts.routing import CHOICE, EXPERTS, TOKENS


class Candidates(NamedTuple):
    """The likeliest experts of each token, before capacity is applied.

    Attributes:
      logits: the logits of the router, float32 [*groups, length, experts_all].
      probabilities: the softmax of the logits, [*groups, length, experts_all].
      experts: the indices of the likeliest experts, int32 [*groups, choice, length],
        likeliest first.
      gates: the weights of the experts' results, float32 [*groups, choice, length].
      valid: whether each choice is queued, bool [*groups, choice, length].
      is_token: 1.0, or 0.0 for padding, float32 [*groups, length].
    """

    logits: mtf.Tensor
    probabilities: mtf.Tensor
    experts: mtf.Tensor
    gates: mtf.Tensor
    valid: mtf.Tensor
    is_token: mtf.Tensor

    @property
    def groups(self) -> list[str]:
        """The names of the dimensions of groups."""
        return [
            name for name in self.logits.shape.names if name not in (TOKENS, EXPERTS)
        ]


def top_candidates(
    logits: mtf.Tensor, k: int, nonpadding: mtf.Tensor | None
) -> Candidates:
    """Returns the k likeliest experts of each token, with their probabilities as gates.

    Args:
      logits: the logits of the router, [*groups, length, experts_all].
      k: the count of experts.
      nonpadding: bool [*groups, length], False for padding; None: all are tokens.
    """
    logits = mtf.cast(logits, "float32")
    probabilities = mtf.softmax(logits, EXPERTS)
    gates, experts = mtf.top_k(probabilities, EXPERTS, mtf.Dimension(CHOICE, k))
    groups = [name for name in gates.shape.names if name not in (TOKENS, CHOICE)]
    gates = mtf.transpose(gates, [*groups, CHOICE, TOKENS])
    experts = mtf.transpose(experts, [*groups, CHOICE, TOKENS])
    if nonpadding is None:
        nonpadding = mtf.ones(logits.mesh, logits.shape.without(EXPERTS), "bool")
    return Candidates(
        logits=logits,
        probabilities=probabilities,
        experts=experts,
        gates=gates,
        valid=mtf.broadcast(nonpadding, gates.shape),
        is_token=mtf.cast(nonpadding, "float32"),
    )


def balance_loss(
    candidates: Candidates, counts: mtf.Tensor, num_counted: int
) -> mtf.Tensor:
    """Returns E * sum_e f_e * P_e, the mean over groups, weighted by their counts of tokens:
    a scalar.

    E is the count of experts, f_e the fraction of the counted choices of a group that chose
    expert e, and P_e the mean probability of expert e in the group. So a loss of a group is a
    product of its means, not a mean over tokens; microbatches do not change it, since they
    do not split groups.

    Args:
      candidates: the candidates of all tokens.
      counts: the count of choices of each expert, int32 [*groups, experts_all]; only the
        first `num_counted` choices of a token are counted.
      num_counted: the count of choices of a token that are counted.
    """
    num_experts = counts.shape[EXPERTS]
    tokens_of_group = mtf.reduce_sum(candidates.is_token, TOKENS)
    num_tokens = mtf.maximum(tokens_of_group, 1.0)
    token_probabilities = candidates.probabilities * candidates.is_token
    mean_probability = mtf.reduce_sum(token_probabilities, TOKENS) / num_tokens
    fraction = mtf.cast(counts, "float32") / num_tokens * (1.0 / num_counted)
    loss_of_group = mtf.reduce_sum(fraction * mean_probability, EXPERTS)
    mean_loss = mtf.layers.weighted_mean(loss_of_group, tokens_of_group)
    return mean_loss * float(num_experts)


def z_loss(candidates: Candidates) -> mtf.Tensor:
    """Returns the mean of logsumexp(logits)**2 over tokens, a scalar."""
    logsumexp = mtf.reduce_logsumexp(candidates.logits, EXPERTS)
    return mean_over_tokens(mtf.square(logsumexp), candidates.is_token)


def mean_entropy(candidates: Candidates) -> mtf.Tensor:
    """Returns the mean entropy of a token's probabilities in nats, a scalar."""
    log_probabilities = mtf.log_softmax(candidates.logits, EXPERTS)
    entropy = -mtf.reduce_sum(candidates.probabilities * log_probabilities, EXPERTS)
    return mean_over_tokens(entropy, candidates.is_token)


def mean_over_tokens(x: mtf.Tensor, is_token: mtf.Tensor) -> mtf.Tensor:
    """Returns the mean over all tokens that are no padding, a scalar.

    Args:
      x: a value for each token, [*groups, length].
      is_token: 1.0, or 0.0 for padding, float32 [*groups, length].
    """
    return mtf.layers.weighted_mean(x, is_token)


def expert_load(counts: mtf.Tensor) -> mtf.Tensor:
    """Returns the fraction of the choices of a group that went to each expert, as a mean
    over groups: [experts_all].

    If groups are sharded, the mean stays a partial sum until the values are read.

    Args:
      counts: the count of choices of each expert, float32 [*groups, experts_all].
    """
    num_choices = mtf.maximum(mtf.reduce_sum(counts, EXPERTS), 1.0)
    groups = [name for name in counts.shape.names if name != EXPERTS]
    return mtf.reduce_mean(counts / num_choices, groups)
