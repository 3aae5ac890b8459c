"""Predictions and baselines."""
