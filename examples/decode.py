"""Likely lines of Python, by beam search and at random, from counts of what follows
what.

    python -m examples.decode

Nothing is trained: two tables hold how often a word comes next, or next but one, in the
modules of the standard library. Words are cut over one half of the mesh, lines over the
other.
"""

import os
import re
from collections import Counter
from pathlib import Path

import numpy as np

import meshtf as mtf

WORDS, LENGTH = 2048, 12
BEGINNINGS = ("for", "def", "if", "raise")


def count() -> tuple[list[str], list[np.ndarray]]:
    """Returns words, the first of which ends a line, and two tables of
    log-probabilities.
    """
    text = "".join(
        path.read_text("utf-8")
        for path in sorted(Path(os.__file__).parent.glob("*.py"))
    )
    text = re.sub(r'#[^\n]*|"{3}.*?"{3}', "", text, flags=re.DOTALL)
    found = re.findall(r"\w+|[^\w\s]|\n", text)
    words = [word for word, _ in Counter(found).most_common(WORDS - 1)]
    words.insert(0, words.pop(words.index("\n")))
    number = {word: i for i, word in enumerate(words)}
    ids = np.array(
        [number.get(word, WORDS - 1) for word in found]
    )  # the last: any rare word
    tables = []
    for distance in (1, 2):
        pairs = np.full((WORDS, WORDS), 0.001)
        np.add.at(pairs, (ids[:-distance], ids[distance:]), 1)
        tables.append(np.log(pairs / pairs.sum(1, keepdims=True)).astype("float32"))
    return words, tables


if __name__ == "__main__":
    mtf.configure_process()
    words, tables = count()
    mesh = mtf.Mesh("data:2; model:2", layout="batch:data; vocab:model")
    after, later = (mtf.asarray(mesh, table, "here; vocab") for table in tables)

    def step(
        position: mtf.Tensor, ids: mtf.Tensor, before: mtf.Tensor
    ) -> tuple:  # state: a word
        return mtf.gather(after, ids, "here") + 0.5 * mtf.gather(
            later, before, "here"
        ), ids

    @mtf.function(mesh=mesh, prompt="batch; length")
    def lines(prompt: mtf.Tensor) -> list[mtf.Tensor]:
        known = {"eos_id": 0, "vocab_size": WORDS - 1}
        state = mtf.zeros(mesh, "batch:4; beam:4", "int32")
        best = mtf.decoding.beam_search(
            step, prompt, "beam:4", state, alpha=1.5, **known
        )
        with mtf.seed(1):
            state = mtf.zeros(mesh, "batch:4", "int32")
            return [
                *best,
                *mtf.decoding.sample(step, prompt, state, top_p=0.8, **known),
            ]

    begun = [[words.index(word), *[-1] * (LENGTH - 1)] for word in BEGINNINGS]
    best, scores, drawn, _ = (x.numpy() for x in lines(np.array(begun, "int32")))
    for ids, score in zip(best.reshape(-1, LENGTH), scores.ravel()):
        print(f"{score:6.2f}  " + " ".join(words[i] for i in ids if i))
    print(
        *(" drawn  " + " ".join(words[i] for i in ids if i) for ids in drawn), sep="\n"
    )
