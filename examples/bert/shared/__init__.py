"""Flags, settings and the training loop of BERT's programs."""
