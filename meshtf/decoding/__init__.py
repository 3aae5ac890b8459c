"""Decoding: sequences drawn id by id, or searched for, in one loop on the mesh.

A step is given the ids at a position and returns the logits of the ids that follow, and
a state: whatever named tensors it keeps, such as caches, or None. Here a table says
what follows what:

    >>> import numpy as np
    >>> import meshtf as mtf
    >>> mesh = mtf.Mesh("data:2; model:2", layout="batch:data; vocab:model")
    >>> chances = np.array([[0.0, 0.4, 0.6, 0.0],            # 0 begins, 3 ends
    ...                     [0.0, 0.0, 0.1, 0.9],            # 1 nearly always ends
    ...                     [0.0, 0.4, 0.3, 0.3],
    ...                     [0.0, 0.0, 0.0, 1.0]], "float32")
    >>> table = mtf.log(mtf.asarray(mesh, chances, "here; vocab"))
    >>> def step(position, ids, state):
    ...   return mtf.gather(table, ids, "here"), state
    >>> prompt = mtf.asarray(mesh, np.array([[0, -1, -1, -1]] * 2), "batch; length")

What is negative in a prompt is to be found. The likeliest next id is not always the
best one:

    >>> ids, log_probs = mtf.decoding.sample(step, prompt, end=3, temperature=0)
    >>> ids.numpy()[0].tolist()
    [0, 2, 1, 3]
    >>> ids, scores = mtf.decoding.beam_search(step, prompt, "beam:2", end=3, alpha=0.0)
    >>> for row, score in zip(ids.numpy()[0], scores.numpy()[0]):
    ...   print(row.tolist(), round(float(np.exp(score)), 3))
    [0, 1, 3, 3] 0.36
    [0, 2, 1, 3] 0.216

Given ids go through the step one by one. If all but what follows the last one is known
already, as when a model reads its prompt in one pass, the prompt here is that last id
alone, the state is what was read, and the step counts its positions from there:

    sample(lambda at, ids, held: model.step(last + at, ids, held), last_ids_and_room, held)
"""

from meshtf.decoding.beams import beam_search
from meshtf.decoding.sampling import sample
from meshtf.decoding.sequences import Step

__all__ = ["Step", "beam_search", "sample"]
