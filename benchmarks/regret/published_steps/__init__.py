"""Predicted steps against published ones: `python -m benchmarks.regret --published`."""
