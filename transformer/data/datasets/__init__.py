"""Data sets: corpora, tasks, mixtures of tasks, and tokenized examples on disk."""
