"""What there is to learn from: tasks, corpora, records."""
