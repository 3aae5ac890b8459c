"""Two tiny models for tests of decoding, in named ops and in NumPy.

The logits of a table depend on the last id alone. The logits of a recurrent model depend
on a decaying sum over all ids, so that they are wrong with the state of another beam.
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
EOS_ID = 1
PROMPT = np.array([[0, 2, -1, -1, -1, -1], [3, 1, 2, -1, -1, -1]], "int32")
LAYOUTS = [
    "",
    "batch:x",
    "vocab:y",
    "batch:x;vocab:y",
    "last:x;vocab:y",
    "d:x",
    "vocab:x;d:y",
    "length:x",
    "batch:y;beam:x",
    "beam:x;vocab:y",
]


def arrays(seed):
    """Returns prompt[batch, length], table[last, vocab], embedding[last, d], kernel[d,
    vocab].
    """
    rng = np.random.default_rng(seed)
    shapes = (VOCAB, VOCAB), (VOCAB, 2), (2, VOCAB)
    return [PROMPT, *(rng.normal(size=s).astype("float32") * 1.5 for s in shapes)]


def tensors(layout, seed, **kwargs):
    """Returns the arrays as tensors on a mesh."""
    mesh = mtf.Mesh("x:2;y:2", layout=layout, **kwargs)
    names = "batch;length", "last;vocab", "last;d", "d;vocab"
    return [mtf.asarray(mesh, a, n) for a, n in zip(arrays(seed), names)]


def table_step(table):
    """Returns a step without state."""
    return lambda position, ids, state: (mtf.gather(table, ids, "last"), state)


def recurrent_step(embedding, kernel):
    """Returns a step with a nested state: a decaying sum, the count of ids, and None."""

    def step(position, ids, state):
        hidden = mtf.gather(embedding, ids, "last") + state["hidden"] * 0.7
        logits = mtf.einsum([hidden, kernel], ids.shape + kernel.shape.dim("vocab"))
        return logits, {"hidden": hidden, "count": state["count"] + 1, "none": None}

    return step


def recurrent_state(mesh, shape):
    """Returns the initial state."""
    return {
        "hidden": mtf.zeros(mesh, shape),
        "count": mtf.zeros(mesh, "", "int32"),
        "none": None,
    }


def log_softmax(x):
    """Returns log(softmax(x)) of a vector, in float64."""
    x = np.asarray(x, "float64")
    return x - x.max() - math.log(np.exp(x - x.max()).sum())


def table_logits(seed):
    """Returns a function: ids -> logits [vocab] of the next id."""
    _, table, _, _ = arrays(seed)
    return lambda ids: table[ids[-1]]


def recurrent_logits(seed):
    """Returns a function: ids -> logits [vocab] of the next id."""
    _, _, embedding, kernel = arrays(seed)

    @functools.cache
    def hidden(ids):
        return embedding[ids[-1]] + (hidden(ids[:-1]) * 0.7 if ids[1:] else 0)

    return lambda ids: hidden(tuple(ids)) @ kernel


def all_sequences(logits, prompt, length=LENGTH, eos_id=EOS_ID):
    """Yields all sequences that may follow a prompt: ids, padded with `eos_id`, their
    log-probability and the count of generated ids.
    """
    for count in range(1, length - len(prompt) + 1):
        not_eos = [i for i in range(VOCAB) if i != eos_id]
        for middle in itertools.product(not_eos, repeat=count - 1):
            ids = [*prompt, *middle, eos_id]
            log_prob = sum(
                log_softmax(logits(tuple(ids[:i])))[ids[i]]
                for i in range(len(prompt), len(ids))
            )
            yield ids + [eos_id] * (length - len(ids)), log_prob, count


def prompt_ids(sequence):
    """Returns the ids of a sequence that are not negative."""
    return [int(i) for i in sequence if i >= 0]


def run(program, mode, args):
    """Runs a program of tensors: "eager", as a "function", with "jit", or "exported"."""
    if mode == "exported":
        return run_exported(program, args)
    if mode != "eager":
        program = mtf.function(program, jit=mode == "jit")
    return program(*args)
