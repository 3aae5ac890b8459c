"""What forecasts of step times are worth: `python -m benchmarks.regret`."""
