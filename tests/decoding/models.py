"""Two tiny models for tests of decoding, in named ops and in NumPy.

A table knows what follows an id. A memory knows everything before: its logits depend on
a sum over all ids so far, which fades, so that a state of another beam shows at once.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

import meshtf as mtf
from meshtf.testing.conformance.exported_suite import run_exported

VOCAB = 4
LENGTH = 6
END = 1
PROMPT = np.array([[0, 2, -1, -1, -1, -1], [3, 1, 2, -1, -1, -1]], "int32")
LAYOUTS = [
    "",
    "batch:x",
    "vocab:y",
    "batch:x;vocab:y",
    "here:x;vocab:y",
    "d:x",
    "vocab:x;d:y",
    "length:x",
    "batch:y;beam:x",
    "beam:x;vocab:y",
]


def numbers(seed):
    """Returns prompt[batch, length], table[here, vocab], embedding[here, d], kernel[d,
    vocab].
    """
    rng = np.random.default_rng(seed)
    shapes = (VOCAB, VOCAB), (VOCAB, 2), (2, VOCAB)
    return [PROMPT, *(rng.normal(size=s).astype("float32") * 1.5 for s in shapes)]


def tensors(layout, seed, **kwargs):
    """Returns the numbers on a mesh."""
    mesh = mtf.Mesh("x:2;y:2", layout=layout, **kwargs)
    names = "batch;length", "here;vocab", "here;d", "d;vocab"
    return [mtf.asarray(mesh, a, n) for a, n in zip(numbers(seed), names)]


def table_step(table):
    """Returns a step without state."""
    return lambda position, ids, state: (mtf.gather(table, ids, "here"), state)


def memory_step(embedding, kernel):
    """Returns a step whose state is a nest: what fades, how many ids there were, and
    nothing.
    """

    def step(position, ids, state):
        fading = mtf.gather(embedding, ids, "here") + state["fading"] * 0.7
        logits = mtf.einsum([fading, kernel], ids.shape + kernel.shape.dim("vocab"))
        return logits, {"fading": fading, "count": state["count"] + 1, "nothing": None}

    return step


def memory_state(mesh, shape):
    """Returns the first state."""
    return {
        "fading": mtf.zeros(mesh, shape),
        "count": mtf.zeros(mesh, "", "int32"),
        "nothing": None,
    }


def log_softmax(x):
    """Returns log(softmax(x)) of a vector, in float64."""
    x = np.asarray(x, "float64")
    return x - x.max() - math.log(np.exp(x - x.max()).sum())


def table_logits(seed):
    """Returns a function: the logits of what follows some ids."""
    _, table, _, _ = numbers(seed)
    return lambda ids: table[ids[-1]]


def memory_logits(seed):
    """Returns a function: the logits of what follows some ids."""
    _, _, embedding, kernel = numbers(seed)

    @functools.cache
    def fading(ids):
        return embedding[ids[-1]] + (fading(ids[:-1]) * 0.7 if ids[1:] else 0)

    return lambda ids: fading(tuple(ids)) @ kernel


def all_sequences(logits, given, length=LENGTH, end=END):
    """Yields all that may follow: ids, filled up with the end, log-probability and
    number of ids.
    """
    for number in range(1, length - len(given) + 1):
        others = [i for i in range(VOCAB) if i != end]
        for middle in itertools.product(others, repeat=number - 1):
            ids = [*given, *middle, end]
            log_prob = sum(
                log_softmax(logits(tuple(ids[:i])))[ids[i]]
                for i in range(len(given), len(ids))
            )
            yield ids + [end] * (length - len(ids)), log_prob, number


def given_part(row):
    """Returns the given ids of a prompt."""
    return [int(i) for i in row if i >= 0]


def run(program, how, args):
    """Runs a program of tensors in one of the ways there are."""
    if how == "exported":
        return run_exported(program, args)
    return (program if how == "eager" else mtf.function(program, jit=how == "jit"))(
        *args
    )
