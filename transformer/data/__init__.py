"""Bytes to learn from: no download, no tokenizer, the same order in every run.

    corpus = python_library()                     # or text_files("books/**/*.txt")
    steps = batches(corpus.train, batch=8, length=256, seed=0, first_step=restored)
    fixed = windows(corpus.held_out, length=256)  # [windows, length + 1]
"""

from transformer.data.batches import batches, evaluation_batches, starts, windows
from transformer.data.corpus import END, Corpus, CorpusError, python_library, text_files

__all__ = ["Corpus", "CorpusError", "END", "batches", "evaluation_batches", "python_library",
           "starts", "text_files", "windows"]
