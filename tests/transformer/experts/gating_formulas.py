"""The gatings in NumPy, token by token. `slots` is a function of the count of real tokens of
a group: how many slots an expert has for it.
"""

from __future__ import annotations

import numpy as np


def softmax(x):
    y = np.exp(x - x.max(-1, keepdims=True))
    return y / y.sum(-1, keepdims=True)


def gshard_as_published(logits, real, u, slots):
    """Algorithm 1 of GShard, with gates, counters and loss in its words."""
    groups, tokens, experts = logits.shape
    combine, losses, expected = (
        np.zeros((groups, tokens, experts, slots(tokens))),
        [],
        min(2, experts),
    )
    for g in range(groups):
        gates = softmax(logits[g])
        c = np.zeros(experts, int)
        real_tokens = np.flatnonzero(real[g])
        capacity = slots(len(real_tokens))
        m = gates[real_tokens].mean(0) if len(real_tokens) else np.zeros(experts)
        second = []
        for s in real_tokens:
            e1, *others = np.argsort(-gates[s], kind="stable")[:2]
            g1, g2 = gates[s, e1], sum(gates[s, e] for e in others)
            if c[e1] < capacity:
                combine[g, s, e1, c[e1]] = g1 / (g1 + g2)
            c[e1] += 1
            second += [(s, e2, g2 / (g1 + g2)) for e2 in others]
        losses.append((c / max(len(real_tokens), 1) * m).sum() / experts)
        for s, e2, g2 in second:
            if c[e2] < capacity and 2 * g2 > u[g, s]:
                combine[g, s, e2, c[e2]] = g2
            c[e2] += 1
    return combine, mean(losses, real), lost(combine, real, expected)


def gshard_as_run(logits, real, u, slots, threshold, normalize):
    """Top2GatingOnLogits of Lingvo, as masks and cumulative sums."""
    groups, tokens, experts = logits.shape
    raw = softmax(logits)
    mask_1 = np.eye(experts)[raw.argmax(-1)] * real[..., None]
    left = np.where(np.eye(experts)[raw.argmax(-1)] > 0, -1.0, raw)
    mask_2 = np.eye(experts)[left.argmax(-1)] * real[..., None] * (experts > 1)
    g1, g2 = raw.max(-1), np.maximum(left.max(-1), 0.0)
    share = g2 / (g1 + g2)
    position_1 = np.cumsum(mask_1, 1) - mask_1
    capacity = np.array([slots(n) for n in real.sum(1)])[:, None, None]
    count = np.maximum(real.sum(1), 1)[:, None]
    proxy = (raw * real[..., None]).sum(1) / count
    aux = mean((mask_1.sum(1) / count * proxy).sum(1), real) * experts
    if u is not None:
        mask_2 = mask_2 * (share > u * threshold)[..., None]
    position_2 = (
        np.cumsum(mask_2, 1)
        - mask_2
        + np.minimum(mask_1.sum(1, keepdims=True), capacity)
    )
    kept_1, kept_2 = mask_1 * (position_1 < capacity), mask_2 * (position_2 < capacity)
    w1, w2 = g1[..., None] * kept_1, g2[..., None] * kept_2
    if normalize == "after":
        total = (w1 + w2).sum(-1, keepdims=True) + 1e-9
    else:
        total = (g1 + g2)[..., None] + 1e-9
    slot = np.eye(slots(tokens))
    combine = sum(
        (w / total)[..., None] * slot[np.where(kept > 0, place, 0).astype(int)]
        for w, kept, place in ((w1, kept_1, position_1), (w2, kept_2, position_2))
    )
    return combine, aux, lost(combine, real, min(2, experts))


def token_choice(logits, real, k, slots, normalize):
    """Switch with k = 1; otherwise its queues, once for each choice."""
    groups, tokens, experts = logits.shape
    k = min(k, experts)
    combine, losses = np.zeros((groups, tokens, experts, slots(tokens))), []
    for g in range(groups):
        p = softmax(logits[g])
        real_tokens = np.flatnonzero(real[g])
        capacity = slots(len(real_tokens))
        best = np.argsort(-p, axis=-1, kind="stable")[:, :k]
        count = np.zeros(experts, int)
        for choice in range(k):
            for s in real_tokens:
                e = best[s, choice]
                if count[e] < capacity:
                    combine[g, s, e, count[e]] = p[s, e]
                count[e] += 1
        for s in real_tokens:
            total = {
                "before": p[s, best[s]].sum(),
                "after": combine[g, s].sum(),
                "never": 1.0,
            }[normalize]
            combine[g, s] /= total or 1.0
        f = count / max(k * len(real_tokens), 1)
        losses.append(
            experts
            * (f * (p[real_tokens].mean(0) if len(real_tokens) else 0 * f)).sum()
        )
    return combine, mean(losses, real), lost(combine, real, k)


def experts_choose(logits, real, slots):
    """Algorithm of section 3.2: top-k of the transposed probabilities, a group at a
    time.
    """
    groups, tokens, experts = logits.shape
    combine = np.zeros((groups, tokens, experts, slots(tokens)))
    for g in range(groups):
        capacity = slots(real[g].sum())
        p = np.where(real[g][:, None], softmax(logits[g]), -1.0)
        for e in range(experts):
            for c, s in enumerate(np.argsort(-p[:, e], kind="stable")[:capacity]):
                combine[g, s, e, c] = max(p[s, e], 0.0)
    alone = real & ~combine.any((-1, -2))
    return combine, alone.sum() / real.sum()


def lost(combine, real, choices):
    """Returns the share of the choices of real tokens that have no slot."""
    return 1 - (combine > 0).sum() / (choices * real.sum())


def mean(values, real):
    """Returns the mean of a value of each group over all real tokens."""
    return np.average(values, weights=real.sum(1))
