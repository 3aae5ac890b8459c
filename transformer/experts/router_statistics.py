"""The losses and statistics of a router: means over all tokens that are no padding.

    candidates = top_candidates(logits, k=2, nonpadding=None)
    z_loss(candidates)                                # a scalar
    balance_loss(candidates, counts, num_counted=1)   # counts [*groups, experts_all]

A gating function takes the likeliest experts of each token, the *candidates*, gives slots
(the storage of one token at one expert) to some candidates, and computes auxiliary losses
from all. The formulae are in `transformer.experts.gating`. Padding does not count in means: with
more of it, or in other groups, no value changes. What is computed for a group, such as the
balance loss, is a mean over its tokens: so groups are weighted by their counts of tokens.
All means are those of the batch (`mtf.mean_over_microbatches`), also in microbatches of different
counts of tokens.
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
      is_token: 1.0, or 0.0 for padding, float32 [*groups, length]; None: no padding.
      group_tokens: the count of tokens of each group, float32 [*groups]; None: all tokens
        of the shape.
      num_tokens: the count of all tokens, a float32 scalar.
      token_weight: 1 / num_tokens, in a microbatch that of the mean count of all of them: a
        float32 scalar. None: no padding.
    """

    logits: mtf.Tensor
    probabilities: mtf.Tensor
    experts: mtf.Tensor
    gates: mtf.Tensor
    valid: mtf.Tensor
    is_token: mtf.Tensor | None
    group_tokens: mtf.Tensor | None
    num_tokens: mtf.Tensor
    token_weight: mtf.Tensor | None

    @property
    def groups(self) -> list[str]:
        """The names of the dimensions of groups."""
        return [
            name for name in self.logits.shape.names if name not in (TOKENS, EXPERTS)
        ]

    def mean_in_group(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns the mean over the tokens of each group, 0 for a group without tokens.

        Args:
          x: a value for each token, [*groups, length, ...].
        """
        if self.is_token is None or self.group_tokens is None:
            return mtf.reduce_mean(x, TOKENS)
        total = mtf.reduce_sum(x * self.is_token, TOKENS)
        return total / mtf.maximum(self.group_tokens, 1.0)

    def mean_over_groups(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns the mean over groups, weighted by their counts of tokens: [...].

        If groups are sharded, the mean stays a partial sum until the values are read.

        Args:
          x: a value for each group, [*groups, ...].
        """
        if self.group_tokens is None or self.token_weight is None:
            return mtf.reduce_mean(x, self.groups)
        total = mtf.reduce_sum(x * self.group_tokens, self.groups)
        return total * self.token_weight

    def mean(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns the mean over all tokens of x [*groups, length], a scalar."""
        if self.is_token is None or self.token_weight is None:
            return mtf.reduce_mean(x)
        return mtf.reduce_sum(x * self.is_token) * self.token_weight


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
    is_token = group_tokens = token_weight = None
    if nonpadding is None:
        valid = mtf.ones(logits.mesh, gates.shape, "bool")
        # A sum, not a number: in a pipeline, the count of the batch is the sum of the counts of
        # its microbatches.
        num_tokens = mtf.reduce_sum(
            mtf.ones(logits.mesh, logits.shape.without(EXPERTS))
        )
    else:
        valid = mtf.broadcast(nonpadding, gates.shape)
        is_token = mtf.cast(nonpadding, "float32")
        group_tokens = mtf.reduce_sum(is_token, TOKENS)
        num_tokens = mtf.reduce_sum(group_tokens)
        # Where groups are sharded, the maximum is of the complete sum, which is so reduced
        # once for all means. A product with its inverse stays a partial sum. In a microbatch,
        # it is the mean count of all of them, of which some may have no tokens.
        complete_sum = mtf.maximum(num_tokens, 0.0)
        batch_tokens = mtf.mean_over_microbatches(complete_sum)
        token_weight = 1.0 / mtf.maximum(batch_tokens, 1e-9)
    return Candidates(
        logits=logits,
        probabilities=probabilities,
        experts=experts,
        gates=gates,
        valid=valid,
        is_token=is_token,
        group_tokens=group_tokens,
        num_tokens=num_tokens,
        token_weight=token_weight,
    )


def balance_loss(
    candidates: Candidates, counts: mtf.Tensor, num_counted: int
) -> mtf.Tensor:
    """Returns E * sum_e f_e * P_e, the mean over groups by their tokens: a scalar.

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
    mean_probability = candidates.mean_in_group(candidates.probabilities)
    group_tokens: mtf.Tensor | float = float(candidates.logits.shape[TOKENS])
    if candidates.group_tokens is not None:
        group_tokens = mtf.maximum(candidates.group_tokens, 1.0)
    fraction = mtf.cast(counts, "float32") / group_tokens * (1.0 / num_counted)
    loss_of_group = mtf.reduce_sum(fraction * mean_probability, EXPERTS)
    return candidates.mean_over_groups(loss_of_group) * float(num_experts)


def z_loss(candidates: Candidates) -> mtf.Tensor:
    """Returns the mean of logsumexp(logits)**2, a scalar."""
    logsumexp = mtf.reduce_logsumexp(candidates.logits, EXPERTS)
    return candidates.mean(mtf.square(logsumexp))


def mean_entropy(candidates: Candidates) -> mtf.Tensor:
    """Returns the mean entropy of a token's probabilities in nats, a scalar."""
    log_probabilities = mtf.log_softmax(candidates.logits, EXPERTS)
    entropy = -mtf.reduce_sum(candidates.probabilities * log_probabilities, EXPERTS)
    return candidates.mean(entropy)


def expert_load(candidates: Candidates, counts: mtf.Tensor) -> mtf.Tensor:
    """Returns the fraction of the choices of a group that went to each expert, as a mean
    over groups by their tokens: [experts_all].

    Args:
      candidates: the candidates of all tokens.
      counts: the count of choices of each expert, float32 [*groups, experts_all].
    """
    num_choices = mtf.maximum(mtf.reduce_sum(counts, EXPERTS), 1.0)
    return candidates.mean_over_groups(counts / num_choices)
