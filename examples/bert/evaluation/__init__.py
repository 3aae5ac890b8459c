"""Answers from logits, their scores, and baselines to compare them with."""
