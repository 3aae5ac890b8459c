"""Generates likely lines of Python, by beam search and by sampling, from bigram counts.

    python -m examples.decode

Nothing is trained: two tables of log-probabilities say how often a word follows another
one directly, or at distance two, in the modules of the standard library. The vocabulary is
sharded along one mesh axis, the batch of lines along the other.
"""

import os
import re
from collections import Counter
from pathlib import Path

import numpy as np

import meshtf as mtf

VOCAB_SIZE = 2048
LENGTH = 12
END_ID = 0  # the newline that ends a line
RARE_ID = VOCAB_SIZE - 1  # the id of all words that are not in the vocabulary
FIRST_WORDS = ("for", "def", "if", "raise")


def read_words() -> list[str]:
    """Returns the words, signs and newlines of all modules, without comments."""
    paths = sorted(Path(os.__file__).parent.glob("*.py"))
    text = "".join(path.read_text("utf-8") for path in paths)
    text = re.sub(r'#[^\n]*|"{3}.*?"{3}', "", text, flags=re.DOTALL)
    return re.findall(r"\w+|[^\w\s]|\n", text)


def make_vocabulary(words: list[str]) -> list[str]:
    """Returns the most frequent words by id; the newline has id 0."""
    vocabulary = [word for word, _ in Counter(words).most_common(VOCAB_SIZE - 1)]
    vocabulary.remove("\n")
    return ["\n", *vocabulary]


def log_probabilities(ids: np.ndarray, distance: int) -> np.ndarray:
    """Returns log p(word at i + distance | word at i): [VOCAB_SIZE, VOCAB_SIZE]."""
    counts = np.full((VOCAB_SIZE, VOCAB_SIZE), 0.001)
    np.add.at(counts, (ids[:-distance], ids[distance:]), 1)
    return np.log(counts / counts.sum(1, keepdims=True)).astype("float32")


def as_text(ids: np.ndarray, vocabulary: list[str]) -> str:
    """Returns the words of a generated line, without the id that ends it."""
    return " ".join(vocabulary[i] for i in ids if i != END_ID)


if __name__ == "__main__":
    mtf.configure_process()
    words = read_words()
    vocabulary = make_vocabulary(words)
    id_of = {word: i for i, word in enumerate(vocabulary)}
    word_ids = np.array([id_of.get(word, RARE_ID) for word in words])

    mesh = mtf.Mesh("data:2; model:2", layout="batch:data; vocab:model")
    adjacent, skipping = (log_probabilities(word_ids, distance) for distance in (1, 2))
    bigrams = mtf.asarray(mesh, adjacent, "previous; vocab")
    skip_bigrams = mtf.asarray(mesh, skipping, "previous; vocab")

    def step(
        position: mtf.Tensor, ids: mtf.Tensor, previous_ids: mtf.Tensor
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Returns the logits of the next word, and the state that the next step gets.

        Args:
          position: the index of `ids` in the line; not used.
          ids: the last words.
          previous_ids: the state: the words before the last ones; at first 0, newlines.
        """
        logits = mtf.gather(bigrams, ids, "previous")
        skip_logits = mtf.gather(skip_bigrams, previous_ids, "previous")
        return logits + 0.5 * skip_logits, ids

    @mtf.function(mesh=mesh, prompt="batch; length")
    def generate(prompt: mtf.Tensor) -> list[mtf.Tensor]:
        """Returns beams, their scores, and samples, which start with the prompts."""
        state = mtf.zeros(mesh, "batch:4; beam:4", "int32")
        beams, scores = mtf.decoding.beam_search(
            step, prompt, "beam:4", state, alpha=1.5, eos_id=END_ID, vocab_size=RARE_ID
        )  # `vocab_size` excludes the last id, that of rare words
        with mtf.seed(1):
            state = mtf.zeros(mesh, "batch:4", "int32")
            samples, _ = mtf.decoding.sample(
                step, prompt, state, top_p=0.8, eos_id=END_ID, vocab_size=RARE_ID
            )
        return [beams, scores, samples]

    # -1: a word that is to be generated.
    prompts = [[id_of[word], *[-1] * (LENGTH - 1)] for word in FIRST_WORDS]
    beams, scores, samples = (x.numpy() for x in generate(np.array(prompts, "int32")))
    # beams [batch, beam, length], scores [batch, beam], samples [batch, length]
    for ids, score in zip(beams.reshape(-1, LENGTH), scores.ravel()):
        print(f"{score:6.2f}  {as_text(ids, vocabulary)}")
    for ids in samples:
        print(f"sample  {as_text(ids, vocabulary)}")
