"""Flags, settings and the training loop of the programs."""
