"""Weights of models from checkpoints: those of a run, and those that a run begins with."""
