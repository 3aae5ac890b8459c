"""Decoding: generates sequences of token ids by sampling or beam search, in one loop on the
mesh.

A step function takes a position in the sequences, the ids at this position and a state, and
returns the logits of the next ids and the next state. A state consists of named tensors in any
nesting, such as key-value caches; or it is None. In this example a table has the probability of
each next id:

    >>> import numpy as np
    >>> import meshtf as mtf
    >>> mesh = mtf.Mesh("data:2; model:2", layout="batch:data; vocab:model")
    >>> bos_id, eos_id = 0, 3
    >>> probabilities = np.array([[0.0, 0.4, 0.6, 0.0],
    ...                           [0.0, 0.0, 0.1, 0.9],      # eos_id nearly always follows id 1
    ...                           [0.0, 0.4, 0.3, 0.3],
    ...                           [0.0, 0.0, 0.0, 1.0]], "float32")
    >>> table = mtf.log(mtf.asarray(mesh, probabilities, "last; vocab"))
    >>> def step(position, ids, state):
    ...   return mtf.gather(table, ids, "last"), state

Ids are generated where the prompt is negative:

    >>> prompt = np.array([[bos_id, -1, -1, -1]] * 2)
    >>> prompt = mtf.asarray(mesh, prompt, "batch; length")

Greedy decoding does not always find the likeliest sequence; beam search finds a likelier
one:

    >>> ids, log_probs = mtf.decoding.sample(step, prompt, eos_id=eos_id, temperature=0)
    >>> ids.numpy()[0].tolist()
    [0, 2, 1, 3]
    >>> ids, scores = mtf.decoding.beam_search(step, prompt, "beam:2", eos_id=eos_id, alpha=0.0)
    >>> for sequence, score in zip(ids.numpy()[0], scores.numpy()[0]):
    ...   print(sequence.tolist(), round(float(np.exp(score)), 3))
    [0, 1, 3, 3] 0.36
    [0, 2, 1, 3] 0.216

The ids of a prompt go through the step one by one. A model that reads its prompt in one
pass (prefill) calls `sample` with a prompt that begins with the last id of its prompt, the
cache as the state, and a step that adds the position of that id:

    sample(lambda i, ids, cache: model.step(last + i, ids, cache), last_id_and_negatives, cache)
"""

from typing import TYPE_CHECKING, Any

from meshtf.decoding.beams import beam_search
from meshtf.decoding.sampling import sample
from meshtf.decoding.sequences import Step
from meshtf.unknown_name import unknown_name

__all__ = ["Step", "beam_search", "sample"]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        raise unknown_name(__name__, name, __all__)
